// What is told to everybody who looks or listens: one line of news, and failures with what to do.
import { byId, el, show } from "./dom.js";

/** Says what happened. */
export function say(text) {
  byId("said").textContent = text;
}

/** Shows why something failed, with a way to try it again. */
export function fail(refusal, retry) {
  show(
    byId("failure"),
    el("strong", {}, refusal.message || "Something failed."),
    ...(refusal.fields ?? []).map(({ field, problem }) => el("p", {}, `${field}: ${problem}`)),
    el("p", {}, refusal.advice ?? "Load the page again."),
    el("button", { type: "button", on: { click: () => (clear(), retry()) } }, "Try again"),
  );
}

/** Takes the failure away. */
export function clear() {
  show(byId("failure"));
}
