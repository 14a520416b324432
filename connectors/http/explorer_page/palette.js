// How kinds of nodes and types of relations look: a colour of the style sheet each, and for nodes a form too, so that
// nobody has to tell them by colour alone.
import { svg } from "./dom.js";
import { path } from "./shapes.js";

export const KINDS = ["memory", "entity", "episode", "topic", "tag", "category", "repo", "condition", "type"];
export const LINK = "belongs to";
const TYPES = [
  LINK, "caused_by", "contradicts", "supersedes", "similar_to", "depends_on", "prefers_over", "specializes",
  "conditional_on", "same_as", "other",
];
const NAMES = { repo: "project", type: "form" };
const AREA = 90; // square pixels of a symbol in the legend

/** The place of a kind in KINDS; a kind that is not there looks like a condition. */
export const kindIndex = (kind) => (KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.indexOf("condition"));

/** The place of a type among those that have a colour. In a trace a link is called `shared_node`. */
export const typeIndex = (type) => (type === "shared_node" ? TYPES.indexOf(LINK) : TYPES.includes(type) ? TYPES.indexOf(type) : TYPES.indexOf("other"));

/** A kind in words for people. */
export const kindName = (kind) => NAMES[kind] ?? kind;

/** A relation's type in words for people. */
export const typeName = (type) => type.replaceAll("_", " ").toLowerCase();

/** The names of the colours, in the style sheet. */
export const KIND_COLOURS = KINDS.map((kind) => `kind-${kind}`);
export const TYPE_COLOURS = TYPES.map((type) => `type-${type.replaceAll(/[_ ]/gu, "-")}`);

/** A small picture of a kind. */
export function kindSwatch(kind) {
  const form = svg("path", { d: path(kindIndex(kind), AREA), class: `fill-kind-${KINDS[kindIndex(kind)]}` });
  return svg("svg", { viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" }, form);
}

/** A small picture of a type. */
export function typeSwatch(type) {
  const line = svg("line", { x1: 1, y1: 5, x2: 19, y2: 5, class: `stroke-${TYPE_COLOURS[typeIndex(type)]}` });
  return svg("svg", { viewBox: "0 0 20 10", width: 20, height: 10, "aria-hidden": "true" }, line);
}
