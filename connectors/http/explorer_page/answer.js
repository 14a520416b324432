// One memory of an answer: its text with the question's words marked, why it is there, and how its score came about.
import { el } from "./dom.js";
import { meter } from "./details.js";
import { inUnits, marked } from "./text.js";
import { when } from "./times.js";

/** The memory as an item of a list. `open(id)`: shows it in the graph. */
export function answered(memory, open) {
  const { content, why } = memory;
  const places = why.flatMap((reason) => reason.words ?? []).flatMap((word) => word.places);
  return el(
    "li", { class: "card" },
    el("p", { class: "over" }, el("span", { class: "rank" }, `${memory.rank}`), el("bdi", {}, memory.name ?? memory.role ?? memory.kind), el("span", {}, when(memory.created_at)), memory.current ? null : el("span", { class: "mark" }, "earlier version")),
    el("blockquote", {}, marked(content, inUnits(content, places))),
    el("h3", {}, "Why it is included"),
    el("ul", { class: "why" }, why.map((reason) => el("li", {}, el("bdi", {}, reason.text), path(reason.edge)))),
    el("p", { class: "scores" }, score("Relevance", memory.relevance), score("Score", memory.score), el("span", {}, `Rank ${memory.rank}`)),
    el("p", { class: "hint" }, "Relevance: the probability that this memory is evidence for the question. Score: what ranks it in this answer alone; it compares with no other answer. Rank: its place."),
    memory.explanation ? el("details", { class: "inner" }, el("summary", {}, "How the score came about"), factors(memory.explanation, memory)) : null,
    el("button", { type: "button", class: "small", on: { click: () => open(memory.id) } }, "Show in graph"),
  );
}

const score = (name, value) => el("span", {}, `${name} `, name === "Score" ? el("b", {}, number(value)) : meter(value));
const number = (value) => value.toFixed(Math.abs(value) < 10 ? 3 : 1);

function path(edge) {
  if (!edge) return null;
  const told = ["type", "edge_type", "from", "node", "hops", "weight", "confidence"].flatMap((name) => (edge[name] === undefined ? [] : [`${name.replaceAll("_", " ")} ${typeof edge[name] === "number" ? +edge[name].toFixed(3) : edge[name]}`]));
  return el("span", { class: "hint" }, told.length ? ` (${told.join(", ")})` : "");
}

/** Score = Σ weight · factor + Σ boosts; without weights the product of the factors. */
function factors({ factors: values, weights, boosts }, { score: total, rank }) {
  const isSum = Object.keys(weights).length > 0;
  const parts = Object.entries(values).map(([name, value]) => [name, value, weights[name], isSum ? value * (weights[name] ?? 0) : value]);
  const added = Object.entries(boosts).map(([name, value]) => [`${name} (boost)`, null, null, value]);
  const most = Math.max(...[...parts, ...added].map(([, , , gain]) => Math.abs(gain)), 1e-9);
  const rows = [...parts, ...added].map(([name, value, weight, gain]) => el(
    "tr", {},
    el("th", { scope: "row" }, name),
    el("td", {}, value === null ? "" : number(value)),
    el("td", {}, weight === null || weight === undefined ? "" : number(weight)),
    el("td", {}, el("span", { class: "meter" }, el("span", { class: "bar", "aria-hidden": "true", style: { "--share": String(Math.abs(gain) / most) } }), number(gain))),
  ));
  const head = ["Factor", "Value", "Weight", isSum ? "Adds" : "Multiplies"].map((name) => el("th", { scope: "col" }, name));
  const last = el("tr", {}, el("th", { scope: "row" }, "Score"), el("td", {}), el("td", {}), el("td", {}, el("b", {}, number(total))));
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Factors of the score of answer ${rank}` }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows), el("tfoot", {}, last)));
}
