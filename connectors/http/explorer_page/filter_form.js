// The legend, which is what filters are set with, too.
import { byId, el, show } from "./dom.js";
import { MARKS, UNMARKED, everything } from "./filters.js";
import { LINK, kindIndex, kindName, kindSwatch, typeName, typeSwatch } from "./palette.js";

const TYPES_MOST = 24;
const SHORT = new Intl.NumberFormat("en", { notation: "compact" });
const SEARCH_PAUSE_MS = 150;

export class FilterForm {
  /** `changed()`: calls back when something else is chosen. */
  constructor(changed) {
    this.chosen = everything();
    this.changed = changed;
    this.pause = null;
    if (matchMedia("(max-width: 860px)").matches) byId("filters").open = false;
    byId("search").addEventListener("input", ({ target }) => {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.#set({ search: target.value.trim() }), SEARCH_PAUSE_MS);
    });
  }

  /** Names what a graph has, with how many of each. */
  show(graph) {
    const isEmpty = graph.nodes.length === 0;
    byId("search").disabled = isEmpty;
    if (isEmpty) return show(byId("filter-form"), el("p", { class: "hint" }, "There is nothing to filter."));
    const kinds = counted(graph.nodes.map(({ kind }) => kind)).sort((a, b) => kindIndex(a[0]) - kindIndex(b[0]));
    const types = counted(graph.edges.map(({ type }) => type));
    const projects = graph.nodes.filter(({ kind }) => kind === "repo");
    return show(
      byId("filter-form"),
      this.#boxes("Nodes", "kinds", kinds, kindName, kindSwatch),
      this.#boxes("Relations", "types", types.slice(0, TYPES_MOST), typeName, typeSwatch),
      this.#more(graph, projects),
    );
  }

  /** Shows the memories of a time alone (ms; null: all). */
  span(from, to) {
    this.#set({ from, to });
  }

  #set(change) {
    Object.assign(this.chosen, change);
    this.changed();
  }

  #boxes(title, field, entries, name, swatch) {
    const rows = entries.map(([value, count]) => {
      const change = ({ target }) => {
        this.chosen[field][target.checked ? "delete" : "add"](value);
        this.changed();
      };
      const box = el("input", { type: "checkbox", checked: !this.chosen[field].has(value), on: { change } });
      const number = count === null ? null : el("span", { class: "number" }, SHORT.format(count));
      return el("label", { class: "choice" }, box, swatch ? swatch(value) : null, el("span", {}, name(value)), number);
    });
    return el("fieldset", { class: `of-${field}` }, el("legend", {}, title), el("div", { class: "choices" }, rows));
  }

  #more(graph, projects) {
    const project = el(
      "select", { on: { change: ({ target }) => this.#set({ project: target.value }) } },
      el("option", { value: "" }, "all projects"),
      projects.map(({ key, name }) => el("option", { value: key, selected: key === this.chosen.project }, name || key)),
    );
    const day = (field, extra) => el("input", {
      type: "date", value: this.chosen[field] === null ? "" : new Date(this.chosen[field] - extra).toISOString().slice(0, 10),
      on: { change: ({ target }) => this.#set({ [field]: target.value ? Date.parse(target.value) + extra : null }) },
    });
    const marks = MARKS.map((mark) => [mark, null]);
    return el(
      "details", { class: "inner" }, el("summary", {}, "Project, time, marks"),
      el("label", { class: "line" }, "Project", project),
      el("label", { class: "line" }, "Memories from", day("from", 0)),
      el("label", { class: "line" }, "up to", day("to", 86_400_000)),
      this.#boxes("Counts or not", "marks", marks, (mark) => (mark === UNMARKED ? "counts now" : mark.replaceAll("_", " "))),
      el("button", { type: "button", on: { click: () => this.#clear(graph) } }, "Clear filters"),
    );
  }

  #clear(graph) {
    this.chosen = everything();
    byId("search").value = "";
    this.show(graph);
    this.changed();
  }
}

function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort(([a, many], [b, few]) => Number(b === LINK) - Number(a === LINK) || few - many);
}
