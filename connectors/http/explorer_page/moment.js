// The time that is shown: now, or then, by what had happened or by what was known.
import { byId } from "./dom.js";
import { when } from "./times.js";

const STEPS = 400; // of the slider
const PAUSE_MS = 250; // while it is moved

export class Moment {
  /** `changed()`: calls back once another time is chosen. */
  constructor(changed) {
    this.slider = byId("moment-slider");
    this.exact = byId("moment-exact");
    this.axis = byId("moment-axis");
    this.changed = changed;
    this.at = null; // ms; null: now
    this.from = null;
    this.pause = null;
    this.slider.addEventListener("input", () => this.#set(this.#ofSlider(), PAUSE_MS));
    this.exact.addEventListener("change", () => this.#set(Date.parse(this.exact.value) || null, 0));
    this.axis.addEventListener("change", () => this.at !== null && this.changed());
    byId("moment-now").addEventListener("click", () => this.#set(null, 0));
  }

  /** The slider reaches back to the earliest of these times (ms), and is not moved. */
  reach(times) {
    const earliest = times.reduce((one, other) => Math.min(one, other), Infinity);
    if (this.at !== null) return;
    for (const element of [this.slider, this.exact, this.axis]) element.disabled = earliest === Infinity;
    if (earliest === Infinity) return;
    this.from = earliest;
    this.until = Math.max(Date.now(), times.reduce((one, other) => Math.max(one, other), 0));
    this.#tell();
  }

  /** Back to now, of another person. */
  reset() {
    this.at = null;
    this.#tell();
  }

  /** What a query says to be answered as of this time. */
  query() {
    return this.at === null ? {} : { as_of: { [this.axis.value]: new Date(this.at).toISOString() } };
  }

  #ofSlider() {
    const step = Number(this.slider.value);
    return step === STEPS ? null : this.from + Math.round(((this.until - this.from) * (step + 1)) / STEPS);
  }

  #set(at, pause) {
    this.at = at;
    this.#tell();
    clearTimeout(this.pause);
    this.pause = setTimeout(this.changed, pause);
  }

  #tell() {
    const share = this.at === null || this.from === null ? 1 : (this.at - this.from) / (this.until - this.from || 1);
    if (document.activeElement !== this.slider || this.at === null) this.slider.value = String(Math.round(share * STEPS));
    this.slider.setAttribute("aria-valuetext", this.at === null ? "now" : when(this.at));
    const local = this.at === null ? null : new Date(this.at - new Date(this.at).getTimezoneOffset() * 60_000);
    this.exact.value = local === null ? "" : local.toISOString().slice(0, 16);
    byId("moment").classList.toggle("past", this.at !== null);
    byId("moment-now").disabled = this.at === null;
  }
}
