// Memory texts, with what counts in them marked. Whatever a text holds, it stays a text: markup, links, and marks that
// turn the direction of writing, which end with it.
import { el } from "./dom.js";

/** A text with these spans of it marked: [start, end) in UTF-16 units, in any order. */
export function marked(content, spans = []) {
  const parts = [];
  let at = 0;
  for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (start < at || end <= start) continue;
    parts.push(content.slice(at, start), el("mark", {}, content.slice(start, end)));
    at = end;
  }
  parts.push(content.slice(at));
  return el("bdi", { class: "text", dir: "auto" }, parts);
}

/** Spans that count characters, as the engine does → spans in UTF-16 units, as JavaScript does. */
export function inUnits(content, spans) {
  const starts = [];
  let unit = 0;
  for (const character of content) {
    starts.push(unit);
    unit += character.length;
  }
  starts.push(unit);
  const at = (index) => starts[Math.min(index, starts.length - 1)];
  return spans.map(({ start, end }) => [at(start), at(end)]);
}

/** Where quotes stand in a text, as spans. A quote may be cut at its ends, which "…" shows. */
export function found(content, quotes) {
  const low = content.toLowerCase();
  const whole = low.length === content.length; // some letters have a longer lower case: then only an exact one is found
  const spans = [];
  for (const quote of quotes) {
    const bare = quote.replace(/^…\s*|\s*…$/gu, "").trim();
    const at = bare ? (whole ? low.indexOf(bare.toLowerCase()) : content.indexOf(bare)) : -1;
    if (at >= 0) spans.push([at, at + bare.length]);
  }
  return spans;
}

/** The first words of a text, for a list. */
export function short(content, most = 80) {
  const line = content.replace(/\s+/gu, " ").trim();
  const characters = [...line.slice(0, 2 * most)];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : line;
}
