// Memories over time, below the picture: a click on a bar shows those of its time alone, a second click all again.
import { d3 } from "./d3.js";
import { byId, svg } from "./dom.js";
import { when } from "./times.js";

const BARS = 48, HEIGHT = 40; // pixels

export class Histogram {
  /** `choose(from, to)`: calls back with the time (ms) that is chosen; null of both for all. */
  constructor(choose) {
    this.choose = choose;
    this.element = byId("histogram");
  }

  /** Shows when the memories of a graph were. `from`: the start of the time that is chosen, or null. */
  show(graph, from) {
    const times = graph.nodes.flatMap(({ at }) => (at === null ? [] : [at]));
    const bins = times.length > 1 ? d3.bin().thresholds(d3.utcTicks(...d3.extent(times), BARS))(times) : [];
    this.element.classList.toggle("none", bins.length < 2);
    const most = d3.max(bins, ({ length }) => length);
    const width = 100 / bins.length;
    this.element.replaceChildren(...bins.map(({ x0, x1, length }, at) => {
      const isChosen = from === Number(x0);
      const height = length ? Math.max(2, (HEIGHT * length) / most) : 0;
      const bar = svg(
        "g", { class: isChosen ? "chosen" : null }, svg("title", {}, `${when(Number(x0))}: ${length.toLocaleString("en")} memories`),
        svg("rect", { x: `${at * width}%`, y: 0, width: `${width}%`, height: HEIGHT, class: "ground" }),
        svg("rect", { x: `${at * width + width * 0.1}%`, y: HEIGHT - height, width: `${width * 0.8}%`, height }),
      );
      bar.addEventListener("click", () => (isChosen ? this.choose(null, null) : this.choose(Number(x0), Number(x1) + 1)));
      return bar;
    }));
  }
}
