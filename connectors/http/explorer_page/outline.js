// The list of nodes: what the picture shows, for whoever does not see or point.
import { byId, el } from "./dom.js";
import { kindName, kindSwatch } from "./palette.js";
import { grow, rove } from "./roving.js";
import { marked, short } from "./text.js";

export class Outline {
  /** `choose(node)`: calls back with the number of the node that is chosen. */
  constructor(choose) {
    this.list = byId("outline");
    this.choose = choose;
    rove(this.list);
  }

  /** Lists what is shown, or of it what a search found; what is joined to most comes first. */
  show(graph, { nodes, found }) {
    const seen = found ?? nodes;
    const listed = graph.nodes.flatMap((_, index) => (seen[index] ? [index] : []));
    listed.sort((a, b) => rank(graph.nodes[b]) - rank(graph.nodes[a]));
    byId("outline-title").textContent = found ? `Found (${listed.length.toLocaleString("en")})` : `Nodes (${listed.length.toLocaleString("en")})`;
    grow(this.list, listed, (index) => this.#row(graph, index));
    return listed;
  }

  /** Shows which node is chosen; null: none. */
  mark(node) {
    for (const button of this.list.querySelectorAll("button[data-node]")) {
      button.setAttribute("aria-pressed", String(button.dataset.node === String(node)));
    }
  }

  #row(graph, index) {
    const { kind, edges } = graph.nodes[index];
    const name = marked(short(graph.label(index), 70));
    const said = el("span", { class: "hidden" }, `${kindName(kind)}, `);
    const joined = el("span", { class: "number" }, String(edges.length), el("span", { class: "hidden" }, " relations"));
    const choose = () => this.choose(index);
    return el("li", {}, el("button", { type: "button", "data-node": index, "aria-pressed": "false", on: { click: choose } }, kindSwatch(kind), said, name, joined));
  }
}

// Shared nodes before memories, and among memories the newest.
const rank = ({ kind, at, edges }) => (kind === "memory" ? at / 1e15 - 1 : edges.length);
