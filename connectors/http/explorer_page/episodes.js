// Episodes: on a line of time, and as a list that tells the same.
import { fail, say } from "./announce.js";
import { ask } from "./api.js";
import { byId, el, show } from "./dom.js";
import { grow, rove } from "./roving.js";
import { marked } from "./text.js";
import { Timeline } from "./timeline.js";
import { span, when } from "./times.js";

const MOST = 1_000;

export class Episodes {
  /** `host`: { at(), open(keys) }: the time that is shown (ms, null: now), and nodes in the graph. */
  constructor(host) {
    this.host = host;
    this.known = null;
    this.asking = new AbortController();
    this.timeline = new Timeline((episode) => this.#choose(episode, true));
    this.list = el("ul", { class: "cards", "aria-label": "Episodes, newest first" });
    this.title = el("h2", {}, "Episodes");
    rove(this.list);
    show(byId("view-episodes"), this.title, this.timeline.element, this.list);
  }

  /** Forgets what was read. */
  reset() {
    this.asking.abort();
    this.asking = new AbortController();
    this.known = null;
    this.title.textContent = "Episodes";
    this.timeline.show([], null);
    show(this.list);
  }

  /** Shows what there is at the time that is shown. */
  async open() {
    try {
      this.known ??= (await ask({ type: "episodes.list", limit: MOST }, this.asking.signal)).episodes;
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      return fail(error, () => this.open());
    }
    const at = this.host.at();
    const then = this.known.filter(({ started_at: start }) => at === null || Date.parse(start) <= at);
    this.title.textContent = `Episodes (${then.length.toLocaleString("en")}${this.known.length === MOST ? ", the newest" : ""})`;
    this.timeline.show(then, at);
    if (then.length) grow(this.list, then, (episode) => this.#row(episode), 40);
    else show(this.list, el("li", { class: "empty" }, el("h3", {}, "No episodes"), el("p", {}, at === null ? "Messages of a session make one: send some with a session_id." : "None had begun at this time; choose a later one.")));
    say(`${then.length} episodes.`);
    return undefined;
  }

  #row(episode) {
    const { started_at: start, ended_at: end, session_id: session, messages, open, summary } = episode;
    const choose = { click: () => this.#choose(episode, false) };
    return el(
      "li", { class: "card", "data-episode": episode.id },
      el("button", { type: "button", class: "plain", "aria-pressed": "false", on: choose }, el("b", {}, span(start, end))),
      el("p", { class: "over" }, session ? el("bdi", {}, `session ${session}`) : null, el("span", {}, `${messages.toLocaleString("en")} ${messages === 1 ? "message" : "messages"}`), open ? el("span", { class: "mark" }, "still open") : null),
      el("blockquote", {}, marked(summary || "No summary yet.")),
      el("button", { type: "button", class: "small", on: { click: () => this.host.open([`episode:${episode.id}`]) } }, "Show in graph"),
    );
  }

  #choose(episode, moves) {
    this.timeline.mark(episode);
    for (const row of this.list.querySelectorAll("[data-episode]")) {
      const isIt = row.dataset.episode === episode.id;
      row.classList.toggle("chosen", isIt);
      row.querySelector("button").setAttribute("aria-pressed", String(isIt));
      if (isIt && moves) row.scrollIntoView({ block: "nearest" });
    }
    say(`Episode of ${when(episode.started_at)}, ${episode.messages} messages.`);
  }
}
