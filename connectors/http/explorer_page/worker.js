// Lays a graph out and draws it, away from the thread of the page, which so stays free whatever the size of the graph.
//
// Messages: `canvas` (once), then any of `graph`, `shown`, `focus`, `colours`, `size`, `view`; each is drawn in the next
// frame. Every `graph` is answered with the positions of its nodes.
import { place } from "./layout.js";
import { paint } from "./painter.js";

const GLIDE_MS = 350; // from one layout to the next
const REST_MS = 120; // without movement, until all is drawn again

let context = null;
let screen = { width: 1, height: 1, ratio: 1 };
let view = { x: 0, y: 0, k: 1 };
let movedAt = -REST_MS;
let due = false;
let glide = null; // { from, to, start }
let names = [];
const scene = {
  positions: new Float32Array(), sizes: [], kinds: [], pairs: [], types: [], weights: [], order: [], near: null, found: null,
  shown: { nodes: [], edges: [] }, marked: { nodes: [], edges: [] }, focus: { node: null, edge: null },
  colours: null, label: (node) => names[node],
};

const takes = {
  canvas: ({ canvas }) => (context = canvas.getContext("2d")),
  graph: takeGraph,
  shown: ({ shown, found }) => Object.assign(scene, { shown, found }),
  focus: ({ focus, near }) => Object.assign(scene, { focus, near: near && new Set(near) }),
  colours: ({ colours }) => (scene.colours = colours),
  size: ({ size }) => (screen = size),
  view: (message) => ((view = message.view), (movedAt = performance.now())),
};

onmessage = ({ data }) => {
  takes[data.what](data);
  soon();
};

function takeGraph({ graph, isStill }) {
  const old = scene.positions;
  const to = place(graph);
  Object.assign(scene, graph);
  names = graph.names;
  if (old.length && !isStill) {
    const from = to.slice();
    from.set(old.subarray(0, Math.min(old.length, to.length)));
    glide = { from, to, start: performance.now() };
    scene.positions = from.slice();
  } else {
    scene.positions = to;
  }
  postMessage({ positions: to });
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
}

function draw(now) {
  due = false;
  if (!context || !scene.colours) return;
  const canvas = context.canvas;
  const [width, height] = [Math.round(screen.width * screen.ratio), Math.round(screen.height * screen.ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  if (glide) step(now);
  const isMoving = performance.now() - movedAt < REST_MS || glide !== null;
  paint(context, scene, view, { ...screen, moving: isMoving });
  if (glide) soon();
  else if (isMoving) setTimeout(soon, REST_MS);
}

function step(now) {
  const part = Math.min(1, Math.max(0, now - glide.start) / GLIDE_MS);
  const eased = 1 - (1 - part) ** 3;
  scene.positions = glide.from.map((value, at) => value + (glide.to[at] - value) * eased);
  if (part === 1) glide = null;
}
