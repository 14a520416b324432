// The picture of a graph on the page: its canvas, and what pointers and keys do to it. A worker draws.
import { d3 } from "./d3.js";
import { byId } from "./dom.js";
import { radius } from "./painter.js";
import { KIND_COLOURS, TYPE_COLOURS, kindIndex, typeIndex } from "./palette.js";
import { short } from "./text.js";
import { colour } from "./theme.js";

const NEAR = 8; // pixels between a pointer and what it means
const FIT_MOST = 1.8; // zoom at which a small graph is shown
const KEY_STEP = 60; // pixels
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

export class Stage {
  /** `chosen({ node, edge })`: calls back with what a pointer chooses; null of both where there is nothing. */
  constructor(chosen) {
    this.canvas = byId("canvas");
    this.worker = started();
    this.graph = null;
    this.unplaced = 0; // graphs that the worker has not placed yet
    this.positions = new Float32Array();
    this.shown = { nodes: [], edges: [] };
    this.view = d3.zoomIdentity;
    this.isFitted = true;
    this.hasSent = false;
    const drawing = this.canvas.transferControlToOffscreen();
    this.worker.postMessage({ what: "canvas", canvas: drawing }, [drawing]);
    this.worker.onmessage = ({ data }) => this.#placed(data.positions);
    this.zoom = d3.zoom().scaleExtent([0.02, 12]).on("zoom", (event) => this.#moved(event));
    d3.select(this.canvas).call(this.zoom).on("dblclick.zoom", null).on("click", (event) => chosen(this.#at(event)));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#resized()).observe(this.canvas);
    byId("zoom-in").addEventListener("click", () => this.#scale(1.5));
    byId("zoom-out").addEventListener("click", () => this.#scale(1 / 1.5));
    byId("zoom-fit").addEventListener("click", () => this.fit());
  }

  /** Draws this graph from now on. `after`: called once it is placed. */
  load(graph, after = () => {}) {
    this.graph = graph;
    this.after = after;
    this.unplaced++;
    const { nodes, edges } = graph;
    this.sizes = Float32Array.from(nodes, sizeOf);
    const isMemory = Uint8Array.from(nodes, ({ kind }) => Number(kind === "memory"));
    const sent = {
      count: nodes.length,
      isMemory,
      isForm: Uint8Array.from(nodes, ({ kind }) => Number(kind === "type")),
      kinds: Uint8Array.from(nodes, ({ kind }) => kindIndex(kind)),
      sizes: this.sizes,
      names: nodes.map((_, index) => short(graph.label(index), 32)),
      order: Uint32Array.from(d3.sort(d3.range(nodes.length), (node) => isMemory[node], (node) => -nodes[node].edges.length)),
      pairs: Uint32Array.from(edges.flatMap(({ source, target }) => [source, target])),
      types: Uint8Array.from(edges, ({ type }) => typeIndex(type)),
      weights: Float32Array.from(edges, ({ weight }) => weight ?? 0),
      marked: {
        nodes: Uint8Array.from(nodes, ({ marks }) => Number(marks.length > 0)),
        edges: Uint8Array.from(edges, ({ marks }) => Number(marks.length > 0)),
      },
    };
    this.worker.postMessage({ what: "graph", graph: sent, isStill: stillness.matches });
  }

  /** Shows of the graph what filters let through; `found`: what a search finds, or null. */
  filter(shown) {
    this.shown = shown;
    this.worker.postMessage({ what: "shown", shown: { nodes: shown.nodes, edges: shown.edges }, found: shown.found });
  }

  /** Puts a node or an edge (by number, or null) before all others, with what is joined to it. */
  focus(node, edge) {
    const near = node === null && edge === null ? null : this.#near(node, edge);
    this.worker.postMessage({ what: "focus", focus: { node, edge }, near });
  }

  /** Brings a node into the middle, unless it can be seen. */
  reveal(node) {
    if (this.unplaced) return void (this.after = () => this.reveal(node));
    const [x, y] = this.view.apply([this.positions[2 * node], this.positions[2 * node + 1]]);
    const { width, height } = this.canvas.getBoundingClientRect();
    if (x > 40 && y > 40 && x < width - 40 && y < height - 40 && this.view.k > 0.5) return;
    const k = Math.max(this.view.k, 0.9);
    this.#go(d3.zoomIdentity.translate(width / 2 - this.positions[2 * node] * k, height / 2 - this.positions[2 * node + 1] * k).scale(k));
  }

  /** Takes the colours of the style sheet, which may have changed. */
  recolour() {
    const colours = {
      kinds: KIND_COLOURS.map(colour), types: TYPE_COLOURS.map(colour), text: colour("text"), ground: colour("ground"),
    };
    this.worker.postMessage({ what: "colours", colours });
  }

  /** Shows the whole picture. */
  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const seen = d3.range(this.positions.length / 2).filter((node) => this.shown.nodes[node]);
    if (!seen.length || !width) return;
    const [left, right] = d3.extent(seen, (node) => this.positions[2 * node]);
    const [top, bottom] = d3.extent(seen, (node) => this.positions[2 * node + 1]);
    const k = Math.min(FIT_MOST, width / (right - left + 120), height / (bottom - top + 120));
    this.#go(d3.zoomIdentity.translate(width / 2 - (k * (left + right)) / 2, height / 2 - (k * (top + bottom)) / 2).scale(k));
    this.isFitted = true;
  }

  #placed(positions) {
    if (--this.unplaced) return;
    this.positions = positions;
    this.tree = d3.quadtree(d3.range(positions.length / 2), (node) => positions[2 * node], (node) => positions[2 * node + 1]);
    if (this.isFitted) this.fit();
    this.after();
  }

  #moved({ transform, sourceEvent }) {
    this.view = transform;
    if (sourceEvent) this.isFitted = false;
    if (this.hasSent) return;
    this.hasSent = true;
    requestAnimationFrame(() => {
      this.hasSent = false;
      const { x, y, k } = this.view;
      this.worker.postMessage({ what: "view", view: { x, y, k } });
    });
  }

  #resized() {
    const { width, height } = this.canvas.getBoundingClientRect();
    this.worker.postMessage({ what: "size", size: { width, height, ratio: devicePixelRatio } });
    if (this.isFitted) this.fit();
  }

  #at({ offsetX, offsetY }) {
    const [x, y] = this.view.invert([offsetX, offsetY]);
    const k = this.view.k;
    let [best, distance] = [null, Infinity];
    const reach = (30 + NEAR) / k;
    this.tree?.visit((quad, x1, y1, x2, y2) => {
      for (let leaf = quad.length ? null : quad; leaf; leaf = leaf.next) {
        const node = leaf.data;
        const far = Math.hypot(this.positions[2 * node] - x, this.positions[2 * node + 1] - y) * k - radius(this.sizes[node], k);
        if (this.shown.nodes[node] && far < NEAR && far < distance) [best, distance] = [node, far];
      }
      return x1 > x + reach || x2 < x - reach || y1 > y + reach || y2 < y - reach;
    });
    return best === null ? { node: null, edge: this.#edgeAt(x, y, NEAR / k) } : { node: best, edge: null };
  }

  #edgeAt(x, y, reach) {
    let [best, distance] = [null, reach];
    this.graph?.edges.forEach(({ source, target }, edge) => {
      if (!this.shown.edges[edge]) return;
      const [x1, y1] = [this.positions[2 * source], this.positions[2 * source + 1]];
      const [dx, dy] = [this.positions[2 * target] - x1, this.positions[2 * target + 1] - y1];
      const along = Math.min(1, Math.max(0, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1)));
      const far = Math.hypot(x1 + along * dx - x, y1 + along * dy - y);
      if (far < distance) [best, distance] = [edge, far];
    });
    return best;
  }

  #near(node, edge) {
    const { edges, nodes } = this.graph;
    if (node === null) return [edges[edge].source, edges[edge].target];
    return [node, ...nodes[node].edges.filter((one) => this.shown.edges[one]).map((one) => this.graph.other(edges[one], node))];
  }

  #key(event) {
    const pan = { ArrowLeft: [KEY_STEP, 0], ArrowRight: [-KEY_STEP, 0], ArrowUp: [0, KEY_STEP], ArrowDown: [0, -KEY_STEP] }[event.key];
    const act = {
      "+": () => this.#scale(1.3), "=": () => this.#scale(1.3), "-": () => this.#scale(1 / 1.3), 0: () => this.fit(),
    }[event.key];
    if ((!pan && !act) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.isFitted = false;
    if (act) act();
    else this.#go(d3.zoomIdentity.translate(this.view.x + pan[0], this.view.y + pan[1]).scale(this.view.k));
  }

  #scale(factor) {
    this.isFitted = false;
    this.zoom.scaleBy(d3.select(this.canvas), factor);
  }

  #go(transform) {
    d3.select(this.canvas).call(this.zoom.transform, transform);
  }
}

function sizeOf({ kind, edges, size }) {
  return kind === "memory" ? 3.2 : Math.min(15, 4.5 + Math.sqrt(size ?? edges.length));
}

function started() {
  const url = new URL("worker.js", import.meta.url).href;
  const policy = globalThis.trustedTypes?.createPolicy("recallflow-worker", { createScriptURL: () => url });
  return new Worker(policy ? policy.createScriptURL(url) : url, { type: "module" });
}
