// The page: what each part tells the others.
import { clear, fail, say, wait } from "./announce.js";
import { add } from "./change.js";
import { connection } from "./connection.js";
import { Details } from "./details.js";
import { byId, el, show } from "./dom.js";
import { Episodes } from "./episodes.js";
import { around, episodesOf, pages } from "./explore.js";
import { FilterForm } from "./filter_form.js";
import { choose } from "./filters.js";
import { Graph } from "./graph.js";
import { Moment } from "./moment.js";
import { Histogram } from "./histogram.js";
import { Outline } from "./outline.js";
import { OVERVIEW_FROM, overview } from "./overview.js";
import { typeName } from "./palette.js";
import { Question } from "./question.js";
import { isComplete, owner } from "./session.js";
import { Stage } from "./stage.js";
import { focusView, openTab, tabs } from "./tabs.js";
import { follow } from "./theme.js";

const FOUND = 60; // nodes of a search that an overview shows
const GROWTH = 4; // times the nodes of the picture before: each is laid out anew, so not every page makes one

let graph = new Graph();
let picture = graph; // what the stage shows: the graph, or an overview of it
let opened = new Set(); // keys of nodes that an overview shows besides, with the memories around them
let loading = null;
let selected = { node: null, edge: null };
let wanted = null; // numbers of nodes that another view asks to see

const moment = new Moment(() => (question.again(), load()));
const stage = new Stage(selectDrawn);
const details = new Details(select, () => moment.query(), () => load());
const outline = new Outline((node) => select({ node, edge: null }));
const filters = new FilterForm(() => ((wanted = null), refresh()));
const histogram = new Histogram((from, to) => filters.span(from, to));
const question = new Question({ asOf: () => moment.query(), name: nameOf, open: openNodes });
const episodes = new Episodes({ at: () => moment.at, open: openNodes });

follow(() => stage.recolour());
tabs((name) => name === "episodes" && isComplete() && episodes.open());
connection(() => {
  moment.reset();
  question.reset();
  episodes.reset();
  take(new Graph(), null); // also where the memories of who is named now cannot be read
  load();
  focusView();
});
byId("overview").addEventListener("click", ({ target }) => {
  target.setAttribute("aria-pressed", String(target.getAttribute("aria-pressed") !== "true"));
  refresh();
});
byId("add").addEventListener("click", () => add(load));
if (isComplete()) load();

/** Reads the graph of the time that is shown, page by page, and shows each as soon as it is there. */
async function load() {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  byId("add").hidden = false;
  const before = selected.node === null ? null : graph.nodes[selected.node].key;
  const next = new Graph();
  const stop = wait("Loading the graph…");
  clear();
  try {
    let shown = 0;
    for await (const page of pages(moment.query(), signal)) {
      stop();
      next.add(page);
      if (next.nodes.length < GROWTH * shown) continue;
      shown = next.nodes.length;
      take(next, before);
      say(`${shown.toLocaleString("en")} nodes are loaded…`);
    }
    if (next.nodes.some(({ kind }) => kind === "episode")) next.tell(await episodesOf(signal));
    take(next, before);
    done();
  } catch (error) {
    if (error.name === "AbortError") return;
    say("The graph was not loaded.");
    fail(error, load);
  } finally {
    stop();
  }
}

function take(next, selectedKey) {
  graph = next;
  moment.reach(graph.nodes.flatMap(({ at }) => (at === null ? [] : [at])));
  filters.show(graph);
  byId("overview").hidden = graph.nodes.length < OVERVIEW_FROM;
  const had = selected.node !== null || selected.edge !== null;
  selected = { node: null, edge: null };
  opened = new Set();
  wanted = null;
  picture = null;
  refresh();
  const node = graph.byKey.get(selectedKey);
  if (had) select({ node: node ?? null, edge: null });
}

/** A command that stores a first message of whose memories are shown, without credentials. */
function curl() {
  const event = JSON.stringify({ type: "message", ...owner(), role: "user", content: "Hello" }).replaceAll("'", "'\\''");
  return `curl ${new URL("../memory/events", import.meta.url)} -H 'content-type: application/json' -d '${event}'`;
}

function done() {
  say(`${graph.nodes.length.toLocaleString("en")} nodes and ${graph.edges.length.toLocaleString("en")} relations are loaded.`);
  const empty = byId("graph-empty");
  empty.hidden = graph.nodes.length > 0;
  if (moment.at === null) {
    show(empty, el("h2", {}, "Nothing is remembered yet"), el("p", {}, "Is the tenant or the user mistyped? A name that nobody has looks the same. Else send this user's messages with POST /memory/events, then load the page again:"), el("pre", { tabindex: "0", "aria-label": "A command that sends a message" }, curl()));
  } else {
    show(empty, el("h2", {}, "Nothing was there at this time"), el("p", {}, "Move the slider to a later time, or back to now."));
  }
  if (!byId("view-episodes").hidden) episodes.open();
  document.documentElement.dataset.loaded = String(graph.nodes.length);
}

/** Shows what filters and the search let through. */
function refresh() {
  const shown = choose(graph, filters.chosen);
  if (wanted) shown.found = shown.nodes.map((isShown, node) => Number(isShown && wanted.has(node)));
  draw(shown);
  const listed = outline.show(graph, shown);
  outline.mark(selected.node);
  const count = shown.nodes.reduce((sum, one) => sum + one, 0);
  const total = graph.nodes.length;
  const drawn = picture === graph ? count : picture.nodes.length;
  byId("count").textContent = `${drawn === total ? "" : `${drawn.toLocaleString("en")} of `}${total.toLocaleString("en")} nodes`;
  byId("canvas").setAttribute("aria-label", `Graph of ${drawn.toLocaleString("en")} nodes`);
  if (shown.found) say(`${listed.length.toLocaleString("en")} found.`);
}

/** Draws what is shown: all of it, or an overview of a large graph with what is opened or found. */
function draw(shown) {
  histogram.show(graph, filters.chosen.from);
  const before = picture;
  if (byId("overview").hidden || byId("overview").getAttribute("aria-pressed") !== "true") {
    picture = graph;
    if (before !== graph) stage.load(graph);
    stage.filter(shown);
    return focus();
  }
  const found = graph.nodes.flatMap(({ key }, index) => (shown.found?.[index] ? [key] : [])).slice(0, FOUND);
  picture = overview(graph, shown, new Set([...opened, ...found]));
  stage.load(picture);
  const isFound = shown.found && Uint8Array.from(picture.nodes, ({ full }) => shown.found[full]);
  stage.filter({ nodes: picture.nodes.map(() => 1), edges: picture.edges.map(() => 1), found: isFound });
  return focus();
}

/** Puts what is selected before all others in the picture. Returns the number of its node there, or null. */
function focus() {
  const drawn = drawnNumber(picture.nodes, selected.node);
  stage.focus(drawn, drawnNumber(picture.edges, selected.edge));
  return drawn;
}

/** The number of a node or an edge in the picture; null where it is not drawn. */
function drawnNumber(all, number) {
  if (picture === graph || number === null) return number;
  const at = all.findIndex(({ full }) => full === number);
  return at < 0 ? null : at;
}

/** Selects what a pointer chose in the picture, and opens a node of an overview. */
function selectDrawn({ node, edge }) {
  if (picture === graph) return select({ node, edge });
  if (node !== null) return select({ node: picture.nodes[node].full, edge: null });
  const drawn = edge === null ? null : picture.edges[edge];
  if (drawn === null || drawn.full !== null) return select({ node: null, edge: drawn && drawn.full });
  select({ node: null, edge: null });
  const [source, target] = [drawn.source, drawn.target].map((end) => picture.nodes[end].full);
  details.together(graph, source, target);
  return say(`Selected: named together by ${drawn.together} memories.`);
}

function select({ node, edge }) {
  selected = { node, edge };
  if (picture !== graph && node !== null && !opened.has(graph.nodes[node].key)) {
    opened = new Set([graph.nodes[node].key]);
    refresh();
  }
  const drawn = focus();
  outline.mark(node);
  if (node !== null) {
    details.node(graph, node);
    if (drawn !== null) stage.reveal(drawn);
    say(`Selected: ${graph.label(node).slice(0, 100)}`);
  } else if (edge !== null) {
    details.edge(graph, edge);
    say(`Selected the relation: ${typeName(graph.edges[edge].type)}.`);
  } else {
    details.nothing();
  }
}

function nameOf(key) {
  const node = graph.byKey.get(key) ?? graph.byKey.get(`memory:${key}`);
  return node === undefined ? key : graph.label(node);
}

/** Shows nodes in the graph, by their keys or memories' ids; reads those that are not loaded. */
async function openNodes(keys) {
  const numbers = () => keys.flatMap((key) => graph.byKey.get(key) ?? graph.byKey.get(`memory:${key}`) ?? []);
  if (numbers().length < keys.length) {
    try {
      graph.add(await around(keys.slice(0, 20), moment.query()));
      filters.show(graph);
      picture = null;
    } catch (error) {
      fail(error, () => openNodes(keys));
    }
  }
  openTab("graph");
  const found = numbers();
  wanted = found.length > 1 ? new Set(found) : null;
  refresh();
  select({ node: found.length === 1 ? found[0] : null, edge: null });
  (found.length === 1 ? byId("details") : byId("canvas")).focus();
}
