// What is told to everybody who looks or listens: one line of news, and failures with what to do.
import { byId, el, show } from "./dom.js";

const PATIENCE_MS = 2_000;

/** Says what happened. */
export function say(text) {
  byId("said").textContent = text;
}

/** Says what is waited for, and after a while that it still is. Returns what ends that. */
export function wait(text) {
  say(text);
  const timer = setTimeout(() => say(`${text} Still waiting for the engine; nothing has come yet.`), PATIENCE_MS);
  return () => clearTimeout(timer);
}

/** Shows why something failed, with a way to try it again. */
export function fail(refusal, retry) {
  const message = (refusal.message || "Something failed.").replace(/^: /u, "");
  const fields = (refusal.fields ?? []).filter(({ problem }) => !message.includes(problem)); // often it says them all
  show(
    byId("failure"),
    el("strong", {}, message),
    ...fields.map(({ field, problem }) => el("p", {}, field ? `${field}: ${problem}` : problem)),
    el("p", {}, refusal.advice ?? "Load the page again."),
    el("button", { type: "button", on: { click: () => (clear(), retry()) } }, "Try again"),
  );
}

/** Takes the failure away. */
export function clear() {
  show(byId("failure"));
}
