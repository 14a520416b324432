// What the graph would add to one answer: every edge that was looked at, and what came of it.
import { el, show } from "./dom.js";
import { typeName, typeSwatch } from "./palette.js";
import { marked, short } from "./text.js";

const STEP = 50; // rows at a time
const FALLBACKS = {
  feature_flag_disabled: "the deployment has the graph off",
  rollout_off: "the tenant's rollout is off: answers are without the graph",
  shadow_mode: "the tenant's rollout is in shadow: the graph is measured, and not shown in answers",
  quality_gate_blocked: "the quality gate holds the graph back, as it made answers worse",
  graph_expansion_error: "following the edges failed",
  rollout_guardrail: "a guardrail of the rollout holds the graph back",
};

/** The trace, as an element. `name(key)`: what a node is called; `open(keys)`: shows nodes in the graph. */
export function traced(trace, name, open) {
  const { seeds, steps, expanded, left_out: left, caps, fallback } = trace;
  const keys = [...new Set([...seeds.map((one) => one.id), ...steps.filter((one) => isTaken(one.outcome)).flatMap((one) => [one.source, one.target])])];
  return el(
    "section", { class: "trace", "aria-labelledby": "trace-title" },
    el("h2", { id: "trace-title" }, "What the graph looked at"),
    el("p", {}, `From ${seeds.length} memories that rank best, ${(steps.length + left).toLocaleString("en")} edges were looked at; ${expanded.length} memories would be added.`),
    fallback ? el("p", { class: "note" }, `Not in the answer: ${FALLBACKS[fallback] ?? fallback}.`) : null,
    caps.fan_out?.length || caps.visited_at_hop ? el("p", { class: "note" }, `Bounds were reached: ${bounds(caps)}.`) : null,
    expanded.length ? el("ol", { class: "rows" }, expanded.map((one) => el("li", {}, marked(short(name(one.id), 120)), " ", el("span", { class: "number" }, one.score.toFixed(3))))) : null,
    steps.length ? table(steps, name) : el("p", { class: "hint" }, "No edge leads on from these memories."),
    left ? el("p", { class: "hint" }, `${left.toLocaleString("en")} further steps are not listed.`) : null,
    keys.length ? el("button", { type: "button", on: { click: () => open(keys) } }, "Show the paths in the graph") : null,
  );
}

const isTaken = (outcome) => outcome === "followed" || outcome.startsWith("reached");

const bounds = ({ fan_out: fan, visited_at_hop: hop }) => [
  ...(fan?.length ? [`${fan.length} nodes have more edges than are followed`] : []), ...(hop ? [`enough was visited at hop ${hop}`] : []),
].join("; ");

function table(steps, name) {
  const body = el("tbody", {});
  const more = el("button", { type: "button" });
  const grow = () => {
    body.append(...steps.slice(body.rows.length, body.rows.length + STEP).map((step) => row(step, name)));
    more.hidden = body.rows.length === steps.length;
    show(more, `Show more steps (${(steps.length - body.rows.length).toLocaleString("en")} left)`);
  };
  more.addEventListener("click", grow);
  grow();
  const head = ["Hop", "From", "Relation", "To", "Weight", "Confidence", "Score", "What came of it"].map((title) => el("th", { scope: "col" }, title));
  const counts = new Map();
  for (const { outcome } of steps) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  return el(
    "div", {},
    el("p", { class: "tally" }, Array.from(counts, ([outcome, count]) => el("span", { class: "chip" }, `${outcome} `, el("b", {}, String(count))))),
    el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Steps" }, el("table", {}, el("thead", {}, el("tr", {}, head)), body)),
    more,
  );
}

function row({ hop, source, target, type, weight, confidence, score, outcome }, name) {
  return el(
    "tr", { class: isTaken(outcome) ? "taken" : "" },
    el("td", {}, String(hop)),
    el("td", {}, marked(short(name(source), 48))),
    el("td", { class: "type" }, typeSwatch(type), ` ${typeName(type)}`),
    el("td", {}, marked(short(name(target), 48))),
    el("td", {}, weight.toFixed(2)),
    el("td", {}, confidence.toFixed(2)),
    el("td", {}, score === null ? "–" : score.toFixed(3)),
    el("td", {}, outcome),
  );
}
