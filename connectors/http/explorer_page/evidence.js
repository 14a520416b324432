// The memories that state an edge, and where in their texts.
import { ask } from "./api.js";
import { LINK } from "./palette.js";
import { found } from "./text.js";

const MOST = 20;

/** Calls `shown` with [{ id, content, spans, node }], at once with what is loaded, and again with what was asked for. */
export async function evidenceOf(graph, edge, asOf, shown) {
  const given = edge.data?.properties.evidence;
  const quotes = typeof given === "string" ? [given] : [];
  const ids = stating(graph, edge, quotes).slice(0, MOST);
  const texts = new Map(ids.map((id) => [id, loaded(graph, id)]));
  const tell = () => shown(ids.map((id) => ({ id, ...read(texts.get(id), quotes, names(graph, edge)) })));
  tell();
  if (edge.type === LINK || !ids.length) return;
  await Promise.all([quote(graph, edge, asOf, quotes), ...ids.filter((id) => !texts.get(id)).map((id) => fetchText(id, asOf, texts))]);
  tell();
}

/** The ids of the memories that state an edge: of a link the one that is linked; where only words are given as evidence,
 * those of its ends that have them. */
function stating(graph, edge, quotes) {
  const ends = [edge.source, edge.target].map((end) => graph.nodes[end].memory).filter(Boolean);
  if (edge.type === LINK) return ends.slice(0, 1).map(({ id }) => id);
  if (edge.data.evidence.length) return edge.data.evidence;
  return ends.filter(({ content }) => found(content, quotes).length).map(({ id }) => id);
}

function loaded(graph, id) {
  const node = graph.byKey.get(id) ?? graph.byKey.get(`memory:${id}`);
  const content = graph.nodes[node]?.memory?.content;
  return content === undefined ? null : { content, node };
}

async function fetchText(id, asOf, texts) {
  try {
    const { versions } = await ask({ type: "memory.history", memory_id: id });
    const version = versions.filter((one) => wasThere(one, asOf.as_of ?? {})).at(-1);
    if (version) texts.set(id, { content: version.content });
  } catch {
    // It is forgotten, or none of the reader's: it stays without a text, which says so.
  }
}

/** Whether a version of a memory had happened, and was known, by the time that is shown. */
function wasThere({ updated_at: happened, ingested_at: known }, { event_time: event, ingestion_time: ingestion }) {
  return !(Date.parse(happened) > Date.parse(event)) && !(Date.parse(known) > Date.parse(ingestion));
}

/** What the engine quotes for the edge. */
async function quote(graph, edge, asOf, quotes) {
  const [source, target] = [graph.nodes[edge.source].key, graph.nodes[edge.target].key];
  try {
    const { graph_facts: told } = await ask({
      type: "graph.facts", entities: [source, target], types: [edge.type], include_history: true, limit: 50, ...asOf,
    });
    for (const fact of told.facts) {
      if (fact.source === source && fact.target === target) quotes.push(...fact.evidence.map((one) => one.quote));
    }
  } catch {
    // The names of both ends are marked then.
  }
}

const names = (graph, edge) => [edge.source, edge.target].flatMap((end) => {
  const { kind, name, aliases } = graph.nodes[end];
  return kind === "memory" ? [] : [name, ...(aliases ?? [])];
});

function read(text, quotes, ends) {
  if (!text) return { content: null, spans: [] };
  const spans = found(text.content, quotes);
  return { ...text, spans: spans.length ? spans : found(text.content, ends) };
}
