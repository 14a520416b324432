// The form of each kind of node, on a canvas and in the legend: the same path, drawn by d3.
import { d3 } from "./d3.js";

const SHAPES = [
  d3.symbolCircle, d3.symbolDiamond, d3.symbolSquare, d3.symbolTriangle, d3.symbolStar, d3.symbolWye, d3.symbolSquare,
  d3.symbolCross, d3.symbolCircle,
]; // in the order of KINDS

/** Adds the form of a kind around a point, of a radius, to the path of a canvas. */
export function trace(context, kind, x, y, radius) {
  if (SHAPES[kind] === d3.symbolCircle) {
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 2 * Math.PI);
    return;
  }
  SHAPES[kind].draw(moved(context, x, y), Math.PI * radius * radius);
}

/** The same as the text of an SVG path, around 0, of a size in square pixels. */
export const path = (kind, area) => d3.symbol(SHAPES[kind], area)();

function moved(context, x, y) {
  return {
    moveTo: (a, b) => context.moveTo(a + x, b + y),
    lineTo: (a, b) => context.lineTo(a + x, b + y),
    rect: (a, b, width, height) => context.rect(a + x, b + y, width, height),
    arc: (a, b, ...rest) => context.arc(a + x, b + y, ...rest),
    closePath: () => context.closePath(),
  };
}
