// The views, as tabs: arrow keys move among them.
import { byId } from "./dom.js";

const NAMES = ["graph", "question", "episodes"];
const tab = (name) => byId(`tab-${name}`);

/** Has the tabs work; `opened(name)`: calls back when another view is shown. */
export function tabs(opened) {
  for (const name of NAMES) {
    tab(name).addEventListener("click", () => (openTab(name), opened(name)));
    tab(name).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = NAMES[(NAMES.indexOf(name) + step + NAMES.length) % NAMES.length];
      tab(next).focus();
      tab(next).click();
    });
  }
}

/** Has the heading of the view that is shown have the focus. */
export function focusView() {
  const heading = document.querySelector("main > section:not([hidden]) h2");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

/** Shows a view. */
export function openTab(opened) {
  for (const name of NAMES) {
    byId(`view-${name}`).hidden = name !== opened;
    tab(name).setAttribute("aria-selected", String(name === opened));
    tab(name).tabIndex = name === opened ? 0 : -1;
  }
}
