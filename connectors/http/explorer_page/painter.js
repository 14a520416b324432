// The picture of a graph on a canvas, as seen through a transform { x, y, k }: what is farther away shows less.
import { trace } from "./shapes.js";

const MOVING_EDGES = 3_000; // drawn while the picture moves
const CALM_EDGES = 1_200; // more are drawn fainter
const ARROWS_FROM = 1.1, MEMORY_LABELS_FROM = 2.2; // zoom
const LABELS = 60;
const FAINT = 0.12;
const LEVELS = 4; // widths of an overview's edges

/** Half the width of a node on the screen. */
export function radius(size, k) {
  return Math.max(1.4, size * Math.min(k, 1.2) ** 0.65);
}

/** Draws it. `scene`: positions, sizes, kinds, pairs, types, weights, marked, labels, shown, found, focus, near (see worker.js). */
export function paint(context, scene, { x, y, k }, { width, height, ratio, moving }) {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const { positions, colours } = scene;
  const px = (node) => positions[2 * node] * k + x;
  const py = (node) => positions[2 * node + 1] * k + y;
  const view = { k, width, height, moving, px, py, isIn: (node) => inside(px(node), py(node), width, height) };
  if (!positions.length) return;
  edges(context, scene, view);
  nodes(context, scene, view);
  if (!moving) labels(context, scene, view, colours);
}

const inside = (x, y, width, height) => x > -40 && y > -40 && x < width + 40 && y < height + 40;
const isDim = (scene, node) => (scene.near ? !scene.near.has(node) : scene.found ? !scene.found[node] : false);

function edges(context, scene, view) {
  const { pairs, types, weights, shown, colours, near, focus } = scene;
  const groups = new Map();
  const heaviest = weights.reduce((one, other) => Math.max(one, other), 1);
  const step = view.moving ? Math.max(1, Math.ceil(types.length / MOVING_EDGES)) : 1;
  for (let edge = 0; edge < types.length; edge += step) {
    if (!shown.edges[edge]) continue;
    const [a, b] = [pairs[2 * edge], pairs[2 * edge + 1]];
    if (!view.isIn(a) && !view.isIn(b) && !crosses(view, a, b)) continue;
    const lit = focus.edge === edge || (near ? focus.node === a || focus.node === b : !isDim(scene, a) && !isDim(scene, b));
    const level = Math.ceil((LEVELS * weights[edge]) / heaviest); // of an overview; 0 elsewhere
    const group = 128 * level + (lit ? 64 : 0) + (scene.marked.edges[edge] ? 32 : 0) + types[edge];
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(edge);
  }
  const drawn = [...groups.values()].reduce((sum, members) => sum + members.length, 0);
  const calm = Math.max(0.2, Math.min(1, Math.sqrt(CALM_EDGES / (drawn * step + 1)))); // many lines are a haze: each says less
  for (const [group, members] of [...groups].sort(([a], [b]) => a - b)) {
    const type = group & 31;
    const lit = (group & 64) > 0;
    const level = group >> 7;
    context.strokeStyle = context.fillStyle = colours.types[type];
    context.globalAlpha = !lit ? FAINT * calm : near ? 0.95 : level ? 0.25 + (0.6 * level) / LEVELS : calm * (type === 0 ? 0.4 : 0.8);
    context.lineWidth = (near && lit ? 1.8 : type === 0 ? 0.7 : 1.1) + level;
    context.setLineDash(group & 32 ? [4, 4] : []);
    context.beginPath();
    for (const edge of members) {
      context.moveTo(view.px(pairs[2 * edge]), view.py(pairs[2 * edge]));
      context.lineTo(view.px(pairs[2 * edge + 1]), view.py(pairs[2 * edge + 1]));
    }
    context.stroke();
    if (type !== 0 && !view.moving && (view.k > ARROWS_FROM || (near && lit))) arrows(context, scene, view, members);
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function crosses({ px, py, width, height }, a, b) {
  const [x1, x2, y1, y2] = [px(a), px(b), py(a), py(b)];
  return Math.max(x1, x2) > 0 && Math.min(x1, x2) < width && Math.max(y1, y2) > 0 && Math.min(y1, y2) < height;
}

function arrows(context, scene, view, members) {
  context.beginPath();
  for (const edge of members) {
    const [a, b] = [scene.pairs[2 * edge], scene.pairs[2 * edge + 1]];
    const angle = Math.atan2(view.py(b) - view.py(a), view.px(b) - view.px(a));
    const far = radius(scene.sizes[b], view.k) + 2;
    const [tipX, tipY] = [view.px(b) - far * Math.cos(angle), view.py(b) - far * Math.sin(angle)];
    context.moveTo(tipX, tipY);
    for (const side of [0.42, -0.42]) context.lineTo(tipX - 8 * Math.cos(angle + side), tipY - 8 * Math.sin(angle + side));
    context.closePath();
  }
  context.fill();
}

function nodes(context, scene, view) {
  const { kinds, sizes, shown, marked, colours, focus } = scene;
  const groups = new Map();
  for (let node = 0; node < kinds.length; node++) {
    if (!shown.nodes[node] || !view.isIn(node)) continue;
    const group = (isDim(scene, node) ? 0 : 64) + (marked.nodes[node] ? 32 : 0) + kinds[node];
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(node);
  }
  for (const [group, members] of [...groups].sort(([a], [b]) => a - b)) {
    const kind = group & 31;
    context.globalAlpha = group < 64 ? FAINT : group & 32 ? 0.55 : 1;
    context.fillStyle = context.strokeStyle = colours.kinds[kind];
    context.lineWidth = 1.2;
    context.beginPath();
    for (const node of members) trace(context, kind, view.px(node), view.py(node), radius(sizes[node], view.k));
    if (group & 32) context.stroke();
    else context.fill();
  }
  context.globalAlpha = 1;
  if (focus.node !== null && shown.nodes[focus.node]) {
    context.strokeStyle = colours.text;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(view.px(focus.node), view.py(focus.node), radius(sizes[focus.node], view.k) + 4, 0, 7);
    context.stroke();
  }
}

function labels(context, scene, view, colours) {
  const { order, kinds, sizes, shown, near, focus } = scene;
  const taken = [];
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 3.5;
  context.strokeStyle = colours.ground;
  const first = near ? [...(focus.node === null ? [] : [focus.node]), ...near] : [];
  const most = view.width < 500 ? 14 : LABELS;
  for (const node of [...first, ...order]) {
    if (taken.length >= most) break;
    if (!shown.nodes[node] || !view.isIn(node) || (isDim(scene, node) && node !== focus.node)) continue;
    if (!near?.has(node) && view.k < (kinds[node] === 0 ? MEMORY_LABELS_FROM : 0.5) && !(kinds[node] !== 0 && taken.length < 14)) continue;
    label(context, scene.label(node), view.px(node) + radius(sizes[node], view.k) + 4, view.py(node), taken, colours, view);
  }
}

function label(context, text, x, y, taken, colours, { width, height }) {
  const box = { left: x, right: x + context.measureText(text).width + 8, top: y - 9, bottom: y + 9 };
  if (box.right > width || box.top < 0 || box.bottom > height || x < 0) return;
  if (taken.some((one) => box.left < one.right && box.right > one.left && box.top < one.bottom && box.bottom > one.top)) return;
  taken.push(box);
  context.strokeText(text, x, y);
  context.fillStyle = colours.text;
  context.fillText(text, x, y);
}
