"""Which of an owner's entities a query is about, and what the graph knows of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from recallflow.language import FUNCTION_WORDS
from recallflow.operators.graph.reader import is_live, other_end
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

QUESTION_WORDS = 100  # looked through for names; a text that goes on is no question any more
NAME_WORDS = 5
CONTEXT_HOPS = 2
CONTEXT_ENTRIES = 20
RELATIONSHIPS = 24  # of one entity, the newest first
TELLING_MOST = 1_000  # memories of an entity that are looked through for one that the filters let through

_WORD = re.compile(r"\w+")
_SYMBOLS = re.compile(r"[^\w\s]*")
_CLOSING = ".,;:!?…)]}\"'’”»"
_OPENING = "([{\"'‘“«¿¡@#"


def given(graph: OwnerGraph, wanted: Sequence[str]) -> list[NodeKey]:
    """What URNs stand for, unless it is archived; a name or a node's key counts as one."""
    found: list[NodeKey] = []
    for text in wanted:
        own = graph.find(text)
        found += graph.by_urn(text) or ([] if own is None else [own])
    return [key for key in dict.fromkeys(found) if _stands(graph, key)]


def named(graph: OwnerGraph, question: str) -> list[NodeKey]:
    """Entities that are not archived and whose names stand in the question as whole words, in the order of the
    question. A longer name goes before the shorter ones in it."""
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
    """The entity that a part of the question names, with the symbols around it (C++) or without."""
    for spelling in _spellings(question, start, end):
        # An ordinary word is a name only with a capital that no beginning explains.
        if spelling.lower() in FUNCTION_WORDS and (start == 0 or spelling.islower()):
            continue
        node = graph.node(NodeKey(node_key(ENTITY_KIND, spelling)))
        if node is not None and not node.archived:
            return node.key
    return None


def _stands(graph: OwnerGraph, key: NodeKey) -> bool:
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


class Known(NamedTuple):
    """What the graph knows of entities, and how many of them the query's filters keep out."""

    entries: list[dict[str, Any]]
    kept_out: int


NOTHING_KNOWN = Known([], 0)


def context(
    graph: OwnerGraph, entities: Sequence[NodeKey], now_ms: int, permitted: Callable[[int], bool] | None = None
) -> Known:
    """The entities and those within two relations of them, at most 20: name, type, properties, and their relationships
    ({type, target}) in the direction in which they hold. `permitted`: where the query filters, which memories (`seq`)
    may tell of them; one that no such memory is linked to is kept out, and so is a relation that none states."""
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
    return Known(entries, kept_out)


def _is_told(graph: OwnerGraph, key: NodeKey, permitted: Callable[[int], bool] | None) -> bool:
    """Whether a permitted memory is linked to a node."""
    return permitted is None or any(map(permitted, graph.members(key, TELLING_MOST)))


def _is_stated(graph: OwnerGraph, edge: Edge, permitted: Callable[[int], bool] | None) -> bool:
    """Whether a permitted memory states an edge; of one that no memory states, whether its ends are told of."""
    if permitted is None:
        return True
    if not edge.evidence:
        return all(_is_told(graph, end, permitted) for end in (edge.source, edge.target))
    seqs = (graph.members(NodeKey(one, memory=True), 1) for one in edge.evidence)
    return any(permitted(seq) for found in seqs for seq in found)


def _entry(node: Node, relationships: list[dict[str, str]]) -> dict[str, Any]:
    properties = dict(node.properties)
    entry = {
        "name": properties.pop("name", node.name),  # a URN's node has the name that was given with it
        "type": properties.pop("type", node.kind),
        "properties": properties,
        "relationships": relationships,
    }
    return entry | {"aliases": [*node.aliases]} if node.aliases else entry
