// Changes to memories: add, correct, forget, and erase the user, each confirmed in a dialog.
import { store } from "./api.js";
import { byId, el, show } from "./dom.js";
import { current } from "./session.js";

/** Opens a dialog that stores one event; `changed()`: calls back once it is applied. */
function open({ title, text, fields, action, event, changed, isSure = () => true }) {
  const dialog = byId("change");
  const problem = el("p", { class: "hint", role: "alert" });
  const form = el(
    "form", { on: { submit: (submitted) => (submitted.preventDefault(), send()) } },
    el("h2", { id: "change-title" }, title),
    text ? el("p", {}, text) : null,
    fields,
    problem,
    el("div", { class: "buttons" }, el("button", { class: "main" }, action), el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel")),
  );
  show(dialog, form);
  dialog.showModal();

  async function send() {
    const given = new FormData(form);
    if (!isSure(given)) return;
    try {
      await store(event(given));
    } catch (refusal) {
      show(problem, `${(refusal.message || "It was not stored.").replace(/^: /u, "")} ${refusal.advice ?? ""}`);
      return;
    }
    dialog.close();
    changed();
  }
}

const words = (content = "") => {
  const area = el("textarea", { name: "content", rows: 4, required: true, autofocus: true, "aria-label": "What to remember" });
  area.value = content;
  return area;
};

/** Asks for a new memory. */
export function add(changed) {
  open({ title: "Remember something", fields: [words()], action: "Remember", changed, event: (given) => ({ type: "memory", content: given.get("content") }) });
}

/** Asks for what a memory should say. */
export function correct(memory, changed) {
  open({
    title: "Correct this memory", text: "The memory says this from now on; its earlier version stays in its history.",
    fields: [words(memory.content)], action: "Correct", changed,
    event: (given) => ({ type: "memory.update", memory_id: memory.id, content: given.get("content") }),
  });
}

/** Asks whether a memory should be forgotten. */
export function forget(memory, changed) {
  open({ title: "Forget this memory?", text: `It is taken away for good, with its history: ${memory.content.slice(0, 200)}`, fields: [], action: "Forget", changed, event: () => ({ type: "memory.forget", memory_id: memory.id }) });
}

/** Asks whether the user should be erased: the user's name has to be typed. */
export function erase(changed) {
  const { user, environment } = current();
  const name = el("input", { name: "user", required: true, autocomplete: "off", autofocus: true, "aria-label": "User to erase" });
  open({
    title: "Erase this user?",
    text: `All memories, indexes and keys of ${user}${environment ? ` in ${environment}` : " in every environment"} are removed for good. Type the user's name to confirm.`,
    fields: [name], action: "Erase", changed,
    isSure: (given) => {
      name.setCustomValidity(given.get("user") === user ? "" : "This is not the user's name.");
      return name.reportValidity();
    },
    event: () => ({ type: "user.erase" }),
  });
  name.addEventListener("input", () => name.setCustomValidity(""));
}
