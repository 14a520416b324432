// The graph of a person, page by page.
import { ask } from "./api.js";

const PAGE = 500; // the most that a page may have

/** Each page of the whole graph at a time ({ as_of } or {}), in turn. A signal ends it. */
export async function* pages(asOf, signal) {
  let after = null;
  do {
    const query = { type: "graph.explore", whole: true, limit: PAGE, ...asOf, ...(after && { after }) };
    const { subgraph } = await ask(query, signal);
    yield subgraph;
    after = subgraph.after ?? null;
  } while (after);
}

/** The newest episodes; none where they cannot be read, as the graph is whole without them. */
export async function episodesOf(signal) {
  try {
    return (await ask({ type: "episodes.list", limit: 1_000 }, signal)).episodes;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return [];
  }
}

/** What lies around some nodes, by their keys or memories' ids. */
export async function around(nodes, asOf) {
  return (await ask({ type: "graph.explore", nodes, ...asOf })).subgraph;
}
