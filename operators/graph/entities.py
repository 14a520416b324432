"""Entities of a query, and the graph's knowledge about them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from recallflow.language import FUNCTION_WORDS
from recallflow.operators.graph.reader import is_live, other_end
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

QUESTION_WORDS = 100  # words of a question that are searched for names
NAME_WORDS = 5
CONTEXT_HOPS = 2
CONTEXT_ENTRIES = 20
RELATIONSHIPS = 24  # the newest relationships of an entity
TELLING_MOST = 1_000  # memories of an entity that are checked against the filters

_WORD = re.compile(r"\w+")
_SYMBOLS = re.compile(r"[^\w\s]*")
_CLOSING = ".,;:!?…)]}\"'’”»"
_OPENING = "([{\"'‘“«¿¡@#"


def given(graph: OwnerGraph, wanted: Sequence[str]) -> list[NodeKey]:
    """Return the nodes of URNs, unless archived. Names and node keys are accepted too."""
    found: list[NodeKey] = []
    for text in wanted:
        own = graph.find(text)
        found += graph.by_urn(text) or ([] if own is None else [own])
    return [key for key in dict.fromkeys(found) if _is_current(graph, key)]


def named(graph: OwnerGraph, question: str) -> list[NodeKey]:
    """Return the entities whose names occur in the question as whole words, in order, unless archived. Longer names
    take precedence over names within them."""
    words = [match.span() for match in _WORD.finditer(question)][:QUESTION_WORDS]
    used = [False] * len(words)
    found: dict[int, NodeKey] = {}
    for length in range(min(NAME_WORDS, len(words)), 0, -1):
        for first in range(len(words) - length + 1):
            if any(used[first : first + length]):
                continue
            key = _called(graph, question, words[first][0], words[first + length - 1][1])
            if key is not None:
                used[first : first + length] = [True] * length
                found[first] = key
    return list(dict.fromkeys(found[first] for first in sorted(found)))


def _called(graph: OwnerGraph, question: str, start: int, end: int) -> NodeKey | None:
    """Return the entity that a part of the question names, with adjacent symbols (C++) or without."""
    for spelling in _spellings(question, start, end):
        # A function word counts as a name only if it is capitalised within the sentence.
        if spelling.lower() in FUNCTION_WORDS and (start == 0 or spelling.islower()):
            continue
        node = graph.node(NodeKey(node_key(ENTITY_KIND, spelling)))
        if node is not None and not node.archived:
            return node.key
    return None


def _is_current(graph: OwnerGraph, key: NodeKey) -> bool:
    node = graph.node(key)
    return node is not None and not node.archived


def _spellings(question: str, start: int, end: int) -> Iterator[str]:
    before = re.search(r"[^\w\s]*\Z", question[:start])
    after = _SYMBOLS.match(question, end)
    left = before[0].lstrip(_OPENING) if before else ""
    right = after[0].rstrip(_CLOSING) if after else ""
    yield f"{left}{question[start:end]}{right}"
    if left or right:
        yield question[start:end]


class EntityContext(NamedTuple):
    """The graph's knowledge about entities, and the number of entities that the query's filters exclude."""

    entries: list[dict[str, Any]]
    kept_out: int


NOTHING_KNOWN = EntityContext([], 0)


def context(
    graph: OwnerGraph, entities: Sequence[NodeKey], now_ms: int, permitted: Callable[[int], bool] | None = None
) -> EntityContext:
    """Return the entities and those within two relations, at most 20: name, type, properties, and outgoing
    relationships ({type, target}).

    `permitted` decides which memories (`seq`) pass the query's filters. Entities without a link to such a memory are
    excluded, and relations that no such memory states."""
    entries: list[dict[str, Any]] = []
    reached, at, kept_out = list(dict.fromkeys(entities)), 0, 0
    hops = dict.fromkeys(reached, 0)
    while at < len(reached) and len(entries) < CONTEXT_ENTRIES:
        key, at = reached[at], at + 1
        node = graph.node(key)
        if node is None or node.archived:
            continue
        if not _is_told(graph, key, permitted):
            kept_out += 1
            continue
        relationships = []
        for edge in graph.edges(key, RELATIONSHIPS):
            other = other_end(edge, key)
            if other.memory or not is_live(edge, now_ms) or not _is_stated(graph, edge, permitted):
                continue
            if hops[key] < CONTEXT_HOPS and other not in hops:
                hops[other] = hops[key] + 1
                reached.append(other)
            if edge.source == key and (target := graph.node(other)) is not None and not target.archived:
                relationships.append({"type": edge.type, "target": target.name})
        entries.append(_entry(node, relationships))
    return EntityContext(entries, kept_out)


def _is_told(graph: OwnerGraph, key: NodeKey, permitted: Callable[[int], bool] | None) -> bool:
    """Return whether a permitted memory is linked to a node."""
    return permitted is None or any(map(permitted, graph.members(key, TELLING_MOST)))


def _is_stated(graph: OwnerGraph, edge: Edge, permitted: Callable[[int], bool] | None) -> bool:
    """Return whether a permitted memory states an edge; without evidence, whether both its ends have permitted
    memories."""
    if permitted is None:
        return True
    if not edge.evidence:
        return all(_is_told(graph, end, permitted) for end in (edge.source, edge.target))
    seqs = (graph.members(NodeKey(one, memory=True), 1) for one in edge.evidence)
    return any(permitted(seq) for found in seqs for seq in found)


def _entry(node: Node, relationships: list[dict[str, str]]) -> dict[str, Any]:
    properties = dict(node.properties)
    entry = {
        "name": properties.pop("name", node.name),  # the node of a URN stores its name as a property
        "type": properties.pop("type", node.kind),
        "properties": properties,
        "relationships": relationships,
    }
    return entry | {"aliases": [*node.aliases]} if node.aliases else entry
