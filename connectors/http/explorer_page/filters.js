// What of a graph is shown.
import { LINK } from "./palette.js";

export const UNMARKED = "unmarked";
export const MARKS = [UNMARKED, "superseded", "expired", "not_yet_valid", "archived"];

/** Nothing is left out, but the form of each memory (`type:message`): nearly every one has the same. */
export const everything = () => ({
  kinds: new Set(["type"]), // that are left out, as the types and marks
  types: new Set(),
  marks: new Set(),
  project: "",
  from: null,
  to: null,
  search: "",
});

/** By number, for nodes and edges: whether each is shown (1) or not (0); and of nodes, whether the search finds it. */
export function choose(graph, chosen) {
  const nodes = Uint8Array.from(graph.nodes, (node) => Number(passes(node, chosen)));
  if (chosen.project) onlyProject(graph, graph.byKey.get(chosen.project), nodes);
  const edges = new Uint8Array(graph.edges.length);
  const joined = new Uint8Array(graph.nodes.length);
  graph.edges.forEach((edge, index) => {
    if (!nodes[edge.source] || !nodes[edge.target]) return;
    joined[edge.source] = joined[edge.target] = 1;
    edges[index] = Number(!chosen.types.has(edge.type) && !isMarked(edge.marks, chosen.marks));
  });
  // What only memories make is shown as long as one of them is.
  if (isNarrowed(chosen)) graph.nodes.forEach((node, index) => node.kind !== "memory" && !joined[index] && (nodes[index] = 0));
  return { nodes, edges, found: search(graph, nodes, chosen.search) };
}

function passes(node, { kinds, marks, from, to }) {
  if (kinds.has(node.kind) || isMarked(node.marks, marks)) return false;
  return node.at === null || ((from === null || node.at >= from) && (to === null || node.at < to));
}

const isMarked = (own, left) => (own.length ? own.some((mark) => left.has(mark)) : left.has(UNMARKED));
const isNarrowed = ({ project, from, to, marks }) => project !== "" || from !== null || to !== null || marks.size > 0;

function onlyProject(graph, project, nodes) {
  const inside = new Set([project]);
  const linked = (index) => graph.nodes[index].edges.map((edge) => graph.edges[edge]).filter((edge) => edge.type === LINK);
  for (const edge of project === undefined ? [] : linked(project)) inside.add(edge.source);
  nodes.forEach((_, index) => graph.nodes[index].kind === "memory" && !inside.has(index) && (nodes[index] = 0));
}

function search(graph, nodes, text) {
  const words = text.toLowerCase().split(/\s+/u).filter(Boolean);
  if (!words.length) return null;
  return nodes.map((shown, index) => {
    if (!shown) return 0;
    const { key, name, title, aliases, memory } = graph.nodes[index];
    const said = [key, name, title ?? "", ...(aliases ?? []), memory?.content ?? ""].join(" ").toLowerCase();
    return Number(words.every((word) => said.includes(word)));
  });
}
