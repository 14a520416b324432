// Dark or light: as the system has it, or as chosen here.
import { byId } from "./dom.js";

const STORE = "recallflow.colours";
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Sets the colours up, and calls `changed` whenever they are others. */
export function follow(changed) {
  const select = byId("theme");
  select.value = localStorage.getItem(STORE) ?? "";
  const apply = () => {
    document.documentElement.dataset.theme = select.value || (dark.matches ? "dark" : "light");
    changed();
  };
  select.addEventListener("change", () => (localStorage.setItem(STORE, select.value), apply()));
  dark.addEventListener("change", apply);
  apply();
}

/** A colour of the style sheet, by its name. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
