// What is known of the node or the edge that is chosen.
import { correct, forget } from "./change.js";
import { byId, el, show } from "./dom.js";
import { evidenceOf } from "./evidence.js";
import { LINK, kindName, kindSwatch, typeName, typeSwatch } from "./palette.js";
import { grow, rove } from "./roving.js";
import { found, marked, short } from "./text.js";
import { when } from "./times.js";

const SYMMETRIC = new Set(["similar_to", "contradicts"]);

export class Details {
  /** `choose({ node, edge })`: calls back with what is chosen here. `asOf()`: the time that is shown; `changed()`:
   *  calls back once a memory was changed. */
  constructor(choose, asOf, changed) {
    this.choose = choose;
    this.asOf = asOf;
    this.changed = changed;
    this.turn = 0;
    this.nothing();
  }

  /** Says what could be chosen. */
  nothing() {
    this.turn++;
    show(
      byId("details"),
      el("h2", {}, "Nothing selected"),
      el("p", { class: "hint" }, "Select a node or a line in the picture, or a node in the list, to see what it says, what it rests on, and until when it holds."),
    );
  }

  /** Shows a node, by its number. */
  node(graph, index) {
    this.turn++;
    const node = graph.nodes[index];
    const { memory } = node;
    const [links, relations] = [[], []];
    for (const edge of node.edges) (graph.edges[edge].type === LINK ? links : relations).push(edge);
    show(
      byId("details"),
      el("p", { class: "over" }, kindSwatch(node.kind), kindName(node.kind), marks(node.marks)),
      el("h2", {}, marked(short(graph.label(index), 120))),
      memory ? el("blockquote", {}, marked(memory.content)) : null,
      memory ? el("p", { class: "buttons" }, el("button", { type: "button", class: "small", on: { click: () => correct(memory, this.changed) } }, "Correct…"), el("button", { type: "button", class: "small", on: { click: () => forget(memory, this.changed) } }, "Forget…")) : null,
      facts([
        ["Said by", memory && (memory.name ?? memory.role)],
        ["Kind", memory?.kind],
        ["When", memory && when(memory.created_at)],
        ["Key", node.key],
        ["URN", node.urn],
        ["Also called", node.aliases?.join(", ")],
        ...Object.entries(node.properties ?? {}).map(([name, value]) => [name, plain(value)]),
      ]),
      this.#list(`Relations (${relations.length})`, relations, (edge) => this.#relation(graph, edge, index)),
      this.#list(`${memory ? "Belongs to" : "Memories"} (${links.length})`, links, (edge) => this.#linked(graph, edge, index)),
    );
  }

  /** Shows two nodes that memories name together, by their numbers. */
  together(graph, source, target) {
    this.turn++;
    const named = (index) => new Set(graph.nodes[index].edges.map((edge) => graph.other(graph.edges[edge], index)));
    const [first, second] = [named(source), named(target)];
    const both = [...first].filter((index) => second.has(index) && graph.nodes[index].kind === "memory");
    show(
      byId("details"),
      el("h2", {}, "Named together"),
      el("p", { class: "ends" }, this.#end(graph, source), " ", this.#end(graph, target)),
      this.#list(`Memories (${both.length})`, both, (index) => el("li", {}, this.#end(graph, index))),
    );
  }

  /** Shows an edge, by its number: direction, weight, confidence, evidence, and until when it holds. */
  edge(graph, index) {
    const turn = ++this.turn;
    const edge = graph.edges[index];
    const { data } = edge;
    const both = SYMMETRIC.has(edge.type);
    const evidence = el("ul", { class: "rows" });
    show(
      byId("details"),
      el("p", { class: "over" }, typeSwatch(edge.type), data ? "relation" : "link", marks(edge.marks)),
      el("h2", {}, typeName(edge.type)),
      el("div", { class: "ends" }, this.#end(graph, edge.source), el("span", { class: "arrow" }, both ? "↔" : "→", el("span", { class: "hidden" }, both ? " and " : " to ")), this.#end(graph, edge.target)),
      facts([
        ["Direction", both ? "both ways" : "from the first to the second"],
        ["Role", edge.role],
        ["Weight", data && meter(data.weight)],
        ["Confidence", data && meter(data.confidence)],
        ["Holds from", data && (when(data.valid_from) ?? "always")],
        ["Holds until", data && (when(data.valid_to) ?? "no end known")],
        ["Expires", data && (when(data.expires_at) ?? "never")],
        ["Known since", data && when(data.ingested_at)],
        ...Object.entries(data?.properties ?? {}).map(([name, value]) => [name === "evidence" ? "Given as evidence" : name, plain(value)]),
      ]),
      el("h3", {}, "Evidence"),
      evidence,
    );
    evidenceOf(graph, edge, this.asOf(), (memories) => {
      if (turn !== this.turn) return; // something else is shown by now
      const rows = memories.map(({ id, content, spans, node }) => el("li", {}, this.#evidence(id, content, spans, node)));
      show(evidence, rows.length ? rows : el("li", { class: "hint" }, "No memory states it: it was worked out, or given as such."));
    });
  }

  #evidence(id, content, spans, node) {
    const text = content === null ? el("span", { class: "hint" }, "cannot be read, or is not there at this time") : marked(content, spans);
    const open = node === undefined ? null : el("button", { type: "button", class: "small", on: { click: () => this.choose({ node, edge: null }) } }, "Open memory");
    return el("figure", {}, el("blockquote", {}, text), el("figcaption", {}, el("bdi", {}, id), open));
  }

  #end(graph, index) {
    const { kind } = graph.nodes[index];
    return el("button", { type: "button", class: "chip", on: { click: () => this.choose({ node: index, edge: null }) } }, kindSwatch(kind), marked(short(graph.label(index), 60)));
  }

  #relation(graph, index, own) {
    const edge = graph.edges[index];
    const arrow = SYMMETRIC.has(edge.type) ? "↔" : edge.source === own ? "→" : "←";
    const name = marked(short(graph.label(graph.other(edge, own)), 60));
    const open = { click: () => this.choose({ node: null, edge: index }) };
    return el("li", {}, el("button", { type: "button", on: open }, typeSwatch(edge.type), el("span", { class: "type" }, `${typeName(edge.type)} ${arrow}`), name, marks(edge.marks)));
  }

  #linked(graph, index, own) {
    const edge = graph.edges[index];
    const other = graph.other(edge, own);
    const label = short(graph.label(other), 140);
    const { name, aliases } = graph.nodes[own];
    const open = { click: () => this.choose({ node: other, edge: null }) };
    return el("li", {}, el("button", { type: "button", on: open }, kindSwatch(graph.nodes[other].kind), marked(label, found(label, [name, ...(aliases ?? [])])), marks(graph.nodes[other].marks)));
  }

  #list(title, items, row) {
    if (!items.length) return null;
    const list = el("ul", { class: "rows", "aria-label": title });
    rove(list);
    grow(list, items, row, 40);
    return el("section", {}, el("h3", {}, title), list);
  }
}

/** Names and values, without those that have none. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, typeof value === "string" ? el("bdi", {}, value) : value)]));
}

/** A share, 0 to 1, as a number and a bar. */
export function meter(share) {
  return el("span", { class: "meter" }, el("span", { class: "bar", "aria-hidden": "true", style: { "--share": String(Math.min(1, Math.max(0, share))) } }), share.toFixed(2));
}

const marks = (own) => own.map((mark) => el("span", { class: "mark" }, mark.replaceAll("_", " ")));
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
