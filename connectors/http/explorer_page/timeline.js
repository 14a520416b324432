// Episodes on a line of time: it can be dragged and zoomed; the list below tells the same.
import { d3 } from "./d3.js";
import { svg } from "./dom.js";

const LANE = 16, LANES = 10, AXIS = 24, LEAST = 6, SIDE = 36; // pixels

export class Timeline {
  /** `choose(episode)`: calls back with the episode that a pointer chooses. */
  constructor(choose) {
    this.choose = choose;
    this.element = svg("svg", { class: "timeline", "aria-hidden": "true" });
    this.episodes = [];
    this.view = d3.zoomIdentity;
    this.zoom = d3.zoom().scaleExtent([1, 400]).on("zoom", ({ transform }) => ((this.view = transform), this.#draw()));
    d3.select(this.element).call(this.zoom);
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** Shows episodes, and a line at the time that is shown (ms; null: now). */
  show(episodes, at) {
    this.at = at;
    this.episodes = episodes.map((episode) => ({ episode, start: Date.parse(episode.started_at), end: Date.parse(episode.ended_at) }));
    this.chosen = null;
    this.element.classList.toggle("none", episodes.length === 0);
    this.#draw();
  }

  /** Shows which episode is chosen. */
  mark(episode) {
    this.chosen = episode.id;
    this.#draw();
  }

  #draw() {
    const width = this.element.clientWidth;
    if (!width || !this.episodes.length) return this.element.replaceChildren();
    const span = [d3.min(this.episodes, ({ start }) => start), d3.max(this.episodes, ({ end }) => end) + 1];
    const x = this.view.rescaleX(d3.scaleUtc().domain(span).range([SIDE, width - SIDE]));
    const ends = [];
    const bars = d3.sort(this.episodes, ({ start }) => start).flatMap((one) => {
      const [left, right] = [x(one.start), Math.max(x(one.end), x(one.start) + LEAST)];
      let lane = ends.findIndex((end) => end < left - 1);
      if (lane < 0) lane = ends.length < LANES ? ends.length : d3.minIndex(ends);
      ends[lane] = right;
      return right < 0 || left > width ? [] : [this.#bar(one, left, right - left, lane)];
    });
    const height = AXIS + LANE * Math.max(3, ends.length) + 8;
    this.element.style.height = `${height}px`;
    const ticks = x.ticks(Math.max(2, width / 110)).map((time) => svg(
      "g", { transform: `translate(${x(time)},0)` },
      svg("line", { y1: 0, y2: height - AXIS, class: "grid" }), svg("text", { y: height - 8, "text-anchor": "middle" }, x.tickFormat()(time)),
    ));
    const line = this.at === null ? [] : [svg("line", { x1: x(this.at), x2: x(this.at), y1: 0, y2: height - AXIS, class: "then" })];
    return this.element.replaceChildren(...ticks, ...bars, ...line);
  }

  #bar({ episode }, left, width, lane) {
    const name = `episode${episode.open ? " open" : ""}${episode.id === this.chosen ? " chosen" : ""}`;
    const bar = svg("rect", { x: left, y: 6 + lane * LANE, width, height: LANE - 4, rx: 3, class: name });
    bar.addEventListener("click", () => this.choose(episode));
    return bar;
  }
}
