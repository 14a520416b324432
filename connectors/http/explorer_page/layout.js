// Where nodes stand: those that memories share first, by a simulation of forces, as they are few; then each memory around
// the one that says most of it. The same graph always looks the same.
import { d3 } from "./d3.js";

const GOLDEN = Math.PI * (3 - Math.sqrt(5));
const CLOSE = 9, WIDE = 24, FEW = 300; // between memories, in units of the picture: so many nodes have room for names
const TICKS = 90;

/** [x, y, x, y, …] of `count` nodes. `isMemory`, `isForm`: by number; `pairs`: [source, target, source, …]. */
export function place({ count, isMemory, isForm, pairs }) {
  const space = count < FEW ? WIDE : CLOSE;
  const degrees = new Uint32Array(count);
  for (let at = 0; at < pairs.length; at++) degrees[pairs[at]]++;
  const homes = homesOf(count, isMemory, isForm, pairs, degrees);
  const around = d3.group(d3.range(count).filter((node) => homes[node] !== node), (node) => homes[node]);
  const hubs = d3.range(count).filter((node) => homes[node] === node);
  const centres = simulate(hubs, around, links(pairs, homes), space);
  const positions = new Float32Array(2 * count);
  for (const { node, x, y } of centres) {
    positions.set([x, y], 2 * node);
    (around.get(node) ?? []).forEach((memory, at) => {
      const far = space * Math.sqrt(at + 2.5);
      positions.set([x + far * Math.cos(at * GOLDEN), y + far * Math.sin(at * GOLDEN)], 2 * memory);
    });
  }
  return positions;
}

/** Of each memory the shared node around which it stands: the one with the fewest others that is no one-off; itself
 * where it has none. */
function homesOf(count, isMemory, isForm, pairs, degrees) {
  const homes = Uint32Array.from({ length: count }, (_, node) => node);
  const cost = (node) => (degrees[node] < 3 ? 1e9 - degrees[node] : degrees[node]);
  for (let at = 0; at < pairs.length; at += 2) {
    for (const [memory, node] of [[pairs[at], pairs[at + 1]], [pairs[at + 1], pairs[at]]]) {
      if (!isMemory[memory] || isMemory[node] || isForm[node]) continue;
      if (homes[memory] === memory || cost(node) < cost(homes[memory])) homes[memory] = node;
    }
  }
  return homes;
}

/** How often what stands around two hubs is joined. */
function links(pairs, homes) {
  const counts = new Map();
  for (let at = 0; at < pairs.length; at += 2) {
    const [a, b] = [homes[pairs[at]], homes[pairs[at + 1]]].sort((one, two) => one - two);
    if (a !== b) counts.set(a * 2 ** 24 + b, (counts.get(a * 2 ** 24 + b) ?? 0) + 1);
  }
  return Array.from(counts, ([both, times]) => ({ source: Math.floor(both / 2 ** 24), target: both % 2 ** 24, times }));
}

function simulate(hubs, around, joined, space) {
  const radius = (node) => space * (Math.sqrt((around.get(node)?.length ?? 0) + 3) + 1);
  const bodies = hubs.map((node) => ({ node, r: radius(node) })).sort((a, b) => b.r - a.r || a.node - b.node);
  const byNode = new Map(bodies.map((body) => [body.node, body]));
  const springs = joined.map(({ source, target, times }) => ({ source: byNode.get(source), target: byNode.get(target), times }));
  const ticks = Math.max(20, Math.min(TICKS, Math.round(120_000 / (bodies.length + springs.length + 1))));
  d3.forceSimulation(bodies)
    .alphaDecay(1 - 0.001 ** (1 / ticks))
    .force("near", d3.forceLink(springs).distance(({ source, target }) => 1.05 * (source.r + target.r)).strength(({ times }) => Math.min(0.6, 0.05 * Math.sqrt(times))))
    .force("apart", d3.forceManyBody().strength(({ r }) => -4 * r).theta(1.2).distanceMax(900))
    .force("free", d3.forceCollide(({ r }) => r).strength(0.8))
    .force("x", d3.forceX().strength(0.05))
    .force("y", d3.forceY().strength(0.07))
    .stop()
    .tick(ticks);
  return bodies;
}
