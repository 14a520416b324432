// The graph as far as it is loaded: nodes and edges by number, so that a worker can be told of them in plain arrays.
import { LINK } from "./palette.js";
import { when } from "./times.js";

export class Graph {
  constructor() {
    this.nodes = []; // { key, kind, name, memory, at, marks, edges: numbers }, and what the engine says of the node
    this.edges = []; // { source, target: numbers, type, role, data: the engine's, null of a link, marks }
    this.byKey = new Map();
    this.seen = new Set();
    this.waiting = []; // edges with an end that is not loaded yet
  }

  /** Takes one page of a graph in. */
  add({ nodes, edges, links, memories }) {
    const told = new Map(memories.map((memory) => [memory.key, memory]));
    for (const node of nodes) this.#node(node, told.get(node.key) ?? null);
    const found = [
      ...this.waiting,
      ...links.map((link) => ({ source: link.memory, target: link.node, type: LINK, role: link.role, data: null, marks: [] })),
      ...edges.map((edge) => ({ source: edge.source, target: edge.target, type: edge.type, data: edge, marks: edge.marks })),
    ];
    this.waiting = found.filter((edge) => !this.addEdge(edge));
  }

  /** The node at the other end of an edge. */
  other(edge, node) {
    return edge.source === node ? edge.target : edge.source;
  }

  /** Takes in of which session and when episodes are, as far as they are known. */
  tell(episodes) {
    for (const { id, session_id: session, started_at: start } of episodes) {
      const node = this.nodes[this.byKey.get(`episode:${id}`)];
      if (node) node.title = `${session ? `session ${session}` : "episode"}, ${when(start)}`;
    }
  }

  /** What a node is called: a memory by its text, an episode by its session and date. */
  label(index) {
    const node = this.nodes[index];
    if (node.title) return node.title;
    return node.memory?.content ?? (node.name || node.key);
  }

  #node(node, memory) {
    const old = this.nodes[this.byKey.get(node.key)];
    if (old) {
      if (memory) this.#tell(old, memory);
      return;
    }
    const added = { ...node, memory: null, at: null, marks: node.archived ? ["archived"] : [], edges: [] };
    if (memory) this.#tell(added, memory);
    this.byKey.set(node.key, this.nodes.length);
    this.nodes.push(added);
  }

  #tell(node, memory) {
    Object.assign(node, { memory, at: Date.parse(memory.created_at), marks: memory.marks });
  }

  /** Takes an edge in, unless it is known. `source`, `target`: keys. Returns false if one of them is not loaded. */
  addEdge(edge) {
    const source = this.byKey.get(edge.source);
    const target = this.byKey.get(edge.target);
    if (source === undefined || target === undefined) return false;
    const id = JSON.stringify([source, target, edge.type]);
    if (this.seen.has(id)) return true;
    this.seen.add(id);
    const index = this.edges.push({ ...edge, source, target }) - 1;
    this.nodes[source].edges.push(index);
    if (target !== source) this.nodes[target].edges.push(index);
    return true;
  }
}
