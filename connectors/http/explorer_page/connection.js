// Asks whose memories are to be shown, and for the credentials.
import { owners } from "./api.js";
import { erase } from "./change.js";
import { byId, el, show } from "./dom.js";
import { become, current, isComplete } from "./session.js";

const KINDS = [["none", "none"], ["key", "API key"], ["token", "Bearer token"]];

/** Has the button at the top open the form; `changed()`: calls back once it is filled in. */
export function connection(changed) {
  const dialog = byId("connection");
  byId("who").addEventListener("click", () => open());
  name();
  if (!isComplete()) begin();

  /** Takes the only owner there is; else has one chosen. */
  async function begin() {
    const found = await owners();
    if (isComplete() || dialog.open) return;
    if (found.length === 1) start(found[0]);
    else open();
  }

  function start(one) {
    become({ ...current(), tenant: one.tenant_id, user: one.user_id, environment: one.environment === "prod" ? "" : one.environment });
    name();
    changed();
  }

  /** Fills the lists of tenants and users with those that the credentials may see. */
  async function suggest(lists) {
    const found = await owners();
    for (const [list, field] of lists) show(list, [...new Set(found.map((one) => one[field]))].map((value) => el("option", { value })));
  }

  function open() {
    const given = current();
    const text = (field, label, attributes = {}) => el("label", { class: "line" }, label, el("input", { name: field, value: given[field], autocomplete: "off", spellcheck: "false", ...attributes }));
    const secret = text("secret", "Key or token", { type: "password", value: given.secret });
    const kind = el("select", { name: "kind", on: { change: () => (secret.hidden = kind.value === "none") } }, KINDS.map(([value, label]) => el("option", { value, selected: value === given.kind }, label)));
    secret.hidden = given.kind === "none";
    const lists = [[el("datalist", { id: "tenants" }), "tenant_id"], [el("datalist", { id: "users" }), "user_id"]];
    const form = el(
      "form", { on: { submit: (event) => (event.preventDefault(), take(new FormData(form))) } },
      el("h2", { id: "connection-title" }, "Whose memories?"),
      lists.map(([list]) => list),
      text("tenant", "Tenant", { required: true, autofocus: true, list: "tenants" }),
      text("user", "User", { required: true, list: "users" }),
      el("label", { class: "line" }, "Credentials", kind),
      secret,
      el(
        "details", { class: "inner", open: Boolean(given.environment || given.project) }, el("summary", {}, "More"),
        text("environment", "Environment", { placeholder: "prod" }), text("project", "Only project"),
        el("label", { class: "choice" }, el("input", { type: "checkbox", name: "keep", checked: given.keep }), el("span", {}, "Keep credentials until this tab is closed")),
      ),
      el("p", { class: "hint" }, "Credentials stay in this tab, and go to this gateway alone."),
      el("div", { class: "buttons" }, el("button", { class: "main" }, "Show memories"), isComplete() ? el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel") : null),
      isComplete() ? el("button", { type: "button", class: "small", on: { click: () => (dialog.close(), erase(changed)) } }, "Erase this user…") : null,
    );
    show(dialog, form);
    dialog.showModal();
    suggest(lists);
  }

  function take(form) {
    const text = (field) => form.get(field).trim();
    become({
      tenant: text("tenant"), user: text("user"), environment: text("environment"), project: text("project"),
      kind: form.get("kind"), secret: text("secret"), keep: form.get("keep") !== null,
    });
    dialog.close();
    name();
    changed();
  }

  function name() {
    const { tenant, user } = current();
    show(byId("who"), isComplete() ? el("bdi", {}, `${tenant} / ${user}`) : "Choose whose memories…");
    byId("who").setAttribute("aria-label", isComplete() ? `Memories of ${user} at ${tenant}: change` : "Choose whose memories");
  }
}
