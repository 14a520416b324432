// The API reference: the gateway's own OpenAPI document, as a page to read.
import { byId, el, show } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

const response = await fetch(new URL("../openapi.json", import.meta.url), { credentials: "omit" });
const api = await response.json();
show(byId("about"), code(api.info.description), ` Version ${api.info.version}.`);
show(byId("operations"), Object.entries(api.paths).flatMap(([path, methods]) => METHODS.filter((method) => methods[method]).map((method) => operation(method, path, methods[method]))));
show(byId("schemas"), el("h2", {}, "Schemas"), Object.entries(api.components.schemas).sort(([a], [b]) => a.localeCompare(b)).map(([name, schema]) => schemaOf(name, schema)));
document.documentElement.dataset.loaded = "reference";

function operation(method, path, { summary, parameters = [], requestBody, responses }) {
  const bodies = Object.entries(requestBody?.content ?? {});
  const named = `${method.toUpperCase()} ${path}`;
  return el(
    "details", { class: "operation", id: `${method}-${path}` },
    el("summary", {}, el("code", { class: "method" }, method.toUpperCase()), " ", el("code", {}, path), summary ? ` ${summary}` : ""),
    parameters.length ? table(`Parameters of ${named}`, ["Parameter", "In", "Type", "Description"], parameters.map((one) => [one.name, one.in, typeOf(one.schema), [one.required ? "required. " : "", one.description ?? ""].join("")])) : null,
    bodies.map(([type, { schema, examples = {} }]) => el("div", {}, el("h2", {}, "Body ", el("code", {}, type), " ", typeOf(schema)), Object.entries(examples).map(([name, { value }]) => el("figure", {}, el("figcaption", {}, name.replaceAll("_", " ")), el("pre", { tabindex: "0" }, curl(method, path, type, value)))))),
    el("h2", {}, "Responses"),
    table(`Responses of ${named}`, ["Status", "Meaning", "Body"], Object.entries(responses).map(([status, { description, content = {} }]) => [status, description, Object.values(content).map(({ schema }) => typeOf(schema ?? {}))])),
  );
}

function schemaOf(name, schema) {
  const required = new Set(schema.required);
  const fields = Object.entries(schema.properties ?? {});
  const choices = schema.oneOf ?? schema.anyOf;
  return el(
    "details", { class: "operation", id: `schema-${name}` }, el("summary", {}, el("code", {}, name)),
    schema.description ? el("p", {}, code(schema.description)) : null,
    choices ? el("p", {}, "One of ", typeOf(schema)) : null,
    fields.length ? table(`Fields of ${name}`, ["Field", "Type", "Description"], fields.map(([field, of]) => [field, typeOf(of), [required.has(field) ? "required. " : "", of.description ?? ""].join("")])) : null,
  );
}

function table(label, head, rows) {
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}

/** A type in words; the name of a schema leads to it. */
function typeOf(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    const open = () => document.getElementById(`schema-${name}`)?.setAttribute("open", "");
    return el("a", { href: `#schema-${name}`, on: { click: open } }, name);
  }
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const choices = (schema.oneOf ?? schema.anyOf)?.filter(({ type }) => type !== "null");
  if (choices) return el("span", {}, choices.flatMap((one, at) => (at ? [", ", typeOf(one)] : [typeOf(one)])));
  if (schema.type === "array") return el("span", {}, "list of ", typeOf(schema.items ?? {}));
  const bounds = [["minimum", "≥"], ["maximum", "≤"]].filter(([name]) => schema[name] !== undefined).map(([name, sign]) => ` ${sign} ${schema[name]}`);
  return `${schema.format ?? schema.type ?? "any"}${bounds.join("")}`;
}

/** A text whose words between backticks are code. */
function code(text) {
  return el("span", {}, text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part)));
}

function curl(method, path, type, value) {
  const body = JSON.stringify(value).replaceAll("'", "'\\''");
  return `curl ${method === "post" ? "" : `-X ${method.toUpperCase()} `}${new URL(`..${path}`, import.meta.url)} -H 'content-type: ${type}' -d '${body}'`;
}
