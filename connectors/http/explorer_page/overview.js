// An overview of a large graph: its most connected people, places and topics, their strongest relations, and what was
// opened of it. A picture of all nodes would be a ball of lines.
import { Graph } from "./graph.js";
import { LINK } from "./palette.js";

export const OVERVIEW_FROM = 150; // nodes; a smaller graph is shown whole
const HUBS = 60, PAIRS = 3, OPENED = 40; // hubs; strongest relations of each; opened nodes, the newest
const HUBS_OF_A_MEMORY = 8;
const STATED = 2; // a stated relation counts as so many memories that name both
const FOLDED = new Set(["memory", "type", "episode"]);

/** Returns a smaller graph. `shown`: by number, whether filters let a node through; `opened`: keys. Its nodes and edges
 * have `full`: their number in the whole graph, null for an edge that stands for `together` memories. */
export function overview(graph, shown, opened) {
  const isShown = (index) => shown.nodes[index];
  const strength = ({ edges }) => edges.length;
  const hubs = graph.nodes.flatMap((node, index) => (isShown(index) && !FOLDED.has(node.kind) && node.edges.length > 1 ? [index] : []));
  hubs.sort((a, b) => strength(graph.nodes[b]) - strength(graph.nodes[a]) || a - b);
  const chosen = new Set(hubs.slice(0, HUBS));
  const picture = new Graph();
  for (const index of chosen) put(picture, graph, index);
  for (const { source, target, type, times, full } of strongest(pairs(graph, shown, chosen))) {
    join(picture, graph, { source, target, type, full, weight: times, together: full === null ? times : 0, marks: [] });
  }
  for (const index of openedOf(graph, opened, isShown)) {
    put(picture, graph, index);
    for (const edge of graph.nodes[index].edges) {
      const { source, target, type, marks } = graph.edges[edge];
      if (shown.edges[edge]) join(picture, graph, { source, target, type, full: edge, weight: 0, together: 0, marks });
    }
  }
  return picture;
}

/** The numbers of the opened nodes and of the newest memories around them. */
function openedOf(graph, opened, isShown) {
  const own = [...opened].map((key) => graph.byKey.get(key)).filter((index) => index !== undefined && isShown(index));
  const around = own.flatMap((index) => graph.nodes[index].edges.map((edge) => graph.other(graph.edges[edge], index))).filter((index) => isShown(index) && graph.nodes[index].kind === "memory");
  around.sort((a, b) => graph.nodes[b].at - graph.nodes[a].at);
  return new Set([...own, ...around.slice(0, OPENED)]);
}

/** How often two hubs are joined: by memories that name both, and by stated relations. */
function pairs(graph, shown, chosen) {
  const found = new Map();
  const count = (a, b, times, type, full) => {
    const [source, target] = full === null && a > b ? [b, a] : [a, b];
    const key = `${Math.min(a, b)} ${Math.max(a, b)}`;
    const one = found.get(key) ?? { source, target, type: LINK, times: 0, full: null };
    found.set(key, { ...one, times: one.times + times, ...(one.full === null && full !== null && { source, target, type, full }) });
  };
  graph.nodes.forEach(({ kind, edges }, index) => {
    if (kind !== "memory" || !shown.nodes[index]) return;
    const named = [...new Set(edges.map((edge) => graph.other(graph.edges[edge], index)))].filter((other) => chosen.has(other)).slice(0, HUBS_OF_A_MEMORY);
    named.forEach((one, at) => named.slice(at + 1).forEach((other) => count(one, other, 1, LINK, null)));
  });
  graph.edges.forEach(({ source, target, type }, edge) => {
    if (shown.edges[edge] && source !== target && chosen.has(source) && chosen.has(target)) count(source, target, STATED, type, edge);
  });
  return [...found.values()];
}

/** The strongest pairs of each hub. */
function strongest(all) {
  const left = new Map();
  return all.sort((a, b) => b.times - a.times || a.source - b.source || a.target - b.target).filter(({ source, target }) => {
    const isKept = [source, target].some((hub) => (left.get(hub) ?? PAIRS) > 0);
    for (const hub of [source, target]) left.set(hub, (left.get(hub) ?? PAIRS) - 1);
    return isKept;
  });
}

function put(picture, graph, index) {
  const { key, edges } = graph.nodes[index];
  if (picture.byKey.has(key)) return;
  picture.byKey.set(key, picture.nodes.length);
  picture.nodes.push({ ...graph.nodes[index], edges: [], size: edges.length, full: index });
}

function join(picture, graph, edge) {
  picture.addEdge({ ...edge, source: graph.nodes[edge.source].key, target: graph.nodes[edge.target].key });
}
