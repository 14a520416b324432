// One question: the form, the answer with its reasons, and what the graph looked at for it.
import { clear, fail, say, wait } from "./announce.js";
import { answered } from "./answer.js";
import { ask } from "./api.js";
import { byId, el, show } from "./dom.js";
import { marked, short } from "./text.js";
import { when } from "./times.js";
import { traced } from "./trace.js";

const MODES = {
  hybrid: "meaning, words, who said it and when, together; the best for most questions",
  balanced: "relevance, age and nearness to the entities of the question",
  relevance: "meaning alone, however old",
  recency: "the newest first, whatever they say; does not judge whether an answer is there",
  entity_focused: "what is linked to the people and things that the question names",
  episode: "conversations first, then their memories",
  decayed: "sure and recent memories; older ones count less and less",
  auto: "one of the others, chosen by the wording of the question",
};

export class Question {
  /** `host`: { asOf(), name(key), open(keys) }: the time that is shown, what a node is called, and nodes in the graph. */
  constructor(host) {
    this.host = host;
    this.result = el("div", { class: "result" });
    this.form = el(
      "form", { class: "ask", on: { submit: (event) => (event.preventDefault(), this.ask()) } },
      el("label", { class: "grow" }, el("span", { class: "hidden" }, "Question"), el("input", { name: "query", type: "search", required: true, placeholder: "Ask these memories something", autocomplete: "off" })),
      el("label", {}, "Mode ", el("select", { name: "mode", "aria-describedby": "mode-help", on: { change: () => this.explain() } }, Object.keys(MODES).map((mode) => el("option", { value: mode }, mode.replaceAll("_", " "))))),
      el("label", {}, "Answers ", el("input", { name: "k", type: "number", min: 1, max: 50, value: 10 })),
      el("label", {}, "Hops ", el("select", { name: "hops", "aria-describedby": "hops-help" }, [1, 2, 3].map((hops) => el("option", { value: hops }, String(hops))))),
      el("button", { class: "main" }, "Ask"),
      el("p", { class: "hint grow" }, (this.help = el("span", { id: "mode-help" })), " ", el("span", { id: "hops-help" }, "Hops: how many relations the graph is followed from a memory that fits, to add memories that do not share its words.")),
    );
    this.explain();
    this.reset();
    show(byId("view-question"), this.form, this.result);
  }

  /** Says what the chosen mode looks at. */
  explain() {
    this.help.textContent = `Mode: ${MODES[this.form.elements.mode.value]}.`;
  }

  /** Forgets the last answer. */
  reset() {
    this.abort?.abort();
    this.result.removeAttribute("aria-busy");
    show(this.result, el("div", { class: "empty" }, el("h2", {}, "Ask something"), el("p", {}, "You see each memory of the answer, why it is there, how its score came about, and which edges of the graph were followed.")));
  }

  /** Asks again, where there was a question, as another time is shown. */
  again() {
    if (this.form.elements.query.value.trim()) this.ask();
  }

  /** Asks what the form says. */
  async ask() {
    const { query, mode, k, hops } = Object.fromEntries(new FormData(this.form));
    this.abort?.abort();
    const { signal } = (this.abort = new AbortController());
    const same = { query, k: Number(k), mode, traversal_depth: Number(hops), ...this.host.asOf() };
    this.result.setAttribute("aria-busy", "true");
    const stop = wait("Asking…");
    try {
      const [response, trace] = await Promise.all([
        ask({ type: "recall", strategy: "hybrid_graph", explain: true, ...same }, signal),
        ask({ type: "graph.trace", ...same }, signal),
      ]);
      clear();
      this.#show(response, trace.graph_trace);
    } catch (error) {
      if (error.name === "AbortError") return;
      say("The question was not answered.");
      fail(error, () => this.ask());
    } finally {
      stop();
    }
    this.result.removeAttribute("aria-busy");
  }

  #show({ status, memories, warnings, answerable, processing_time_ms: took, fallback }, trace) {
    const warned = warnings.filter(({ code }) => code !== "unknown_field");
    show(
      this.result,
      el("h2", { class: "hidden" }, "Answer"),
      el("p", { class: "summary" }, summary(memories.length, answerable, took)),
      warned.length ? el("ul", { class: status === "degraded" ? "note" : "hint" }, warned.map(({ code, detail }) => el("li", {}, el("b", {}, code.replaceAll("_", " ")), ` ${detail}`))) : null,
      changes(memories),
      memories.length ? el("ol", { class: "cards", "aria-label": "Memories of the answer" }, memories.map((memory) => answered(memory, (id) => this.host.open([id])))) : el("p", { class: "hint" }, "No memory fits. Ask in other words, or look at another time."),
      traced({ ...trace, fallback: trace.fallback ?? fallback ?? null }, this.host.name, this.host.open),
    );
    say(summary(memories.length, answerable, null));
  }
}

/** Statements of an answer that later ones replaced, and those, as a line of time; null where nothing changed. */
function changes(memories) {
  const later = new Map(memories.map(({ id, content }) => [id, content]));
  const replaced = memories.filter(({ updated_by: by }) => by);
  if (!replaced.length) return null;
  const ends = new Map(replaced.map(({ updated_by: by }) => [by.id, { at: by.at, content: later.get(by.id) ?? by.id, mark: "current" }]));
  for (const { id, created_at: at, content, updated_by: by } of replaced) {
    ends.set(id, { at, content, mark: `replaced ${when(by.at)}, probability ${by.probability.toFixed(2)}` });
  }
  const line = [...ends.values()].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return el(
    "section", { class: "changes" }, el("h3", {}, "What changed"),
    el("ol", { "aria-label": "Statements in the order of time" }, line.map(({ at, content, mark }) => el(
      "li", { class: mark === "current" ? "current" : null }, el("span", {}, when(at)), marked(short(content, 120)), el("span", { class: "mark" }, mark),
    ))),
  );
}

/** What the answer is worth, in one sentence. Below an even chance it does not speak of an answer. */
function summary(count, answerable, took) {
  const share = `answerable ${Math.round(100 * answerable)} of 100`;
  const told = answerable === null || answerable === undefined
    ? `${count} memories`
    : count === 0
      ? "no memories"
      : answerable >= 0.5
        ? `${answerable >= 0.8 ? "an answer is very likely" : "an answer is likely"} among these ${count} memories (${share})`
        : `probably no memory answers this; the ${count} nearest are shown (${share})`;
  const sentence = `${told[0].toUpperCase()}${told.slice(1)}`;
  return took === null || took === undefined ? sentence : `${sentence} · ${took.toFixed(1)} ms in the engine`;
}
