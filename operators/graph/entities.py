"""Which of an owner's entities a query is about, and what the graph knows of them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from recallflow.language import FUNCTION_WORDS
from recallflow.operators.graph.reader import is_live
from recallflow.state.graph import Node, OwnerGraph
from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

QUESTION_WORDS = 100  # looked through for names; a text that goes on is no question any more
NAME_WORDS = 5
CONTEXT_HOPS = 2
CONTEXT_ENTRIES = 20
RELATIONSHIPS = 24  # of one entity, the newest first

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


def context(graph: OwnerGraph, entities: Sequence[NodeKey], now_ms: int) -> list[dict[str, Any]]:
    """The entities and those within two relations of them, at most 20: name, type, properties, and their relationships
    ({type, target}) in the direction in which they hold."""
    entries: list[dict[str, Any]] = []
    reached, at = list(dict.fromkeys(entities)), 0
    hops = dict.fromkeys(reached, 0)
    while at < len(reached) and len(entries) < CONTEXT_ENTRIES:
        key, at = reached[at], at + 1
        node = graph.node(key)
        if node is None or node.archived:
            continue
        relationships = []
        for edge in graph.edges(key, RELATIONSHIPS):
            other = edge.target if edge.source == key else edge.source
            if other.memory or not is_live(edge, now_ms):
                continue
            if hops[key] < CONTEXT_HOPS and other not in hops:
                hops[other] = hops[key] + 1
                reached.append(other)
            if edge.source == key and (target := graph.node(other)) is not None and not target.archived:
                relationships.append({"type": edge.type, "target": target.name})
        entries.append(_entry(node, relationships))
    return entries


def _entry(node: Node, relationships: list[dict[str, str]]) -> dict[str, Any]:
    properties = dict(node.properties)
    entry = {
        "name": properties.pop("name", node.name),  # a URN's node has the name that was given with it
        "type": properties.pop("type", node.kind),
        "properties": properties,
        "relationships": relationships,
    }
    return entry | {"aliases": [*node.aliases]} if node.aliases else entry
