"""Reading of an owner's stored graph for one query: limits, rules of validity, superseded memories, named entities."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.graphs import InvalidReason
from recallflow.language.tables import ENGLISH
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import ENTITY_KIND, MEMORY_KIND, NodeKey, has_kind_prefix, node_key
from recallflow.state.rows import MemoryRow

ATTACHED_ROLES = frozenset({"category", "topic", "tag", "repo", "entity"})


def with_read_cache(graph: OwnerGraph) -> OwnerGraph:
    """Return the graph with a cache for one query. Callers must not change returned values."""
    reader = copy(graph)
    for name in ("node", "is_archived", "members", "links", "edges", "find", "by_urn"):
        setattr(reader, name, cache(getattr(graph, name)))
    return reader


@dataclass(frozen=True, slots=True)
class LoadBounds:
    fan_out: int = 24  # links per vertex, and as many edges
    linked: int = 100  # the newest memories of a shared node that paths may reach, in addition to the best matches
    visited: int = 512  # vertices
    opened: int = 48  # vertices whose links and edges are read, nearest first, then by the order of their seeds


@dataclass(slots=True)
class Caps:
    """The limits that were reached. `fan_out`: vertices with more links or edges than loaded. `visited_at_hop`: the hop
    (from 1) at which `visited` or `opened` was reached."""

    fan_out: list[str] = field(default_factory=list)
    visited_at_hop: int | None = None

    def counts(self) -> dict[str, int]:
        reached = {"fan_out": len(self.fan_out), "visited_at_hop": self.visited_at_hop}
        return {name: value for name, value in reached.items() if value}


@dataclass(frozen=True, slots=True)
class TraversalScope:
    """The part of a graph that one query may traverse: `allowed` memories (by `seq`), and edges that are valid at
    `now_ms` (epoch ms; None: at any time)."""

    graph: OwnerGraph
    now_ms: int | None = None
    allowed: Callable[[int], bool] = lambda _: True
    prefer: Callable[[int], float] = lambda _: 0.0  # orders memories of equal score or over a limit, highest first
    # A shared node's memories among the best matches of the question.
    best: Callable[[NodeKey], Sequence[int]] = lambda _: ()
    # The score factor, 0 to 1, of a path to a memory (`seq`) without a stated edge. The flag is true for a link that
    # is attached to its memory, and false for a derived connection.
    fit: Callable[[int, bool], float] = lambda _, __: 1.0
    bounds: LoadBounds = LoadBounds()

    def linked(self, key: NodeKey) -> list[int]:
        """Return the memories of a shared node that paths may reach, preferred first."""
        found = self.graph.members(key, self.bounds.linked)
        if len(found) == self.bounds.linked:
            found = [*dict.fromkeys([*found, *self.best(key)])]
        return sorted(found, key=lambda seq: (-self.prefer(seq), -seq))

    def is_attached(self, seq: int, key: NodeKey) -> bool:
        """Return whether the event of a memory gave its link to a node."""
        return any(node == key and role in ATTACHED_ROLES for node, role in self.graph.links(seq))

    def is_valid(self, edge: Edge) -> bool:
        """Return whether a path may use an edge: it has a weight, and is valid at the query's time."""
        return has_weight(edge) if self.now_ms is None else is_live(edge, self.now_ms)

    def own_key(self, seq: int) -> NodeKey | None:
        """Return a memory's key; None if it is archived or not in the graph."""
        links = self.graph.links(seq)
        return links[0][0] if links and not self.graph.is_archived(links[0][0]) else None


def is_type_node(key: NodeKey) -> bool:
    """Return whether a node is `type:…`, which describes the form of a memory and not its subject."""
    return not key.memory and key.text.startswith("type:")


def has_weight(edge: Edge) -> bool:
    return edge.weight > 0 and edge.confidence > 0


def is_live(edge: Edge, now_ms: int) -> bool:
    """Return whether an edge has a weight and is valid at a time (epoch ms)."""
    return has_weight(edge) and not marks(edge, now_ms)


def marks(edge: Edge, now_ms: int) -> list[InvalidReason]:
    """Return the reasons why an edge is not valid at a time (epoch ms)."""
    return _marks(edge, edge.archived, now_ms)


def memory_marks(graph: OwnerGraph, row: MemoryRow, now_ms: int, hidden: set[int]) -> list[InvalidReason]:
    """Return the reasons why a memory is not valid at a time (epoch ms). `hidden`: the superseded memories (`seq`)."""
    found = _marks(row, graph.is_archived(NodeKey(row.id, memory=True)), now_ms)
    return [*found, "superseded"] if row.seq in hidden else found


def _marks(item: Edge | MemoryRow, is_archived: bool, now_ms: int) -> list[InvalidReason]:
    found: list[InvalidReason] = ["archived"] if is_archived else []
    if item.valid_from_ms is not None and now_ms < item.valid_from_ms:
        found.append("not_yet_valid")
    if any(end is not None and now_ms >= end for end in (item.valid_to_ms, item.expires_ms)):
        found.append("expired")
    return found


def other_end(edge: Edge, key: NodeKey) -> NodeKey:
    """Return the end of an edge that is not `key`; `key` itself for a loop."""
    return edge.target if edge.source == key else edge.source


def superseded(graph: OwnerGraph, now_ms: int) -> set[int]:
    """Return the memories (`seq`) that others supersede at `now_ms`. In a cycle of memories that supersede each other,
    the newest by order of arrival stays visible."""
    newer_of: dict[int, list[int]] = {}
    for seq, supersessions in graph.superseded().items():
        for one in supersessions:
            if one.expires_ms is not None and now_ms >= one.expires_ms:
                continue
            if one.valid_from_ms is not None and now_ms < one.valid_from_ms:
                continue
            if newer := graph.members(NodeKey(one.by, memory=True), 1):
                newer_of.setdefault(seq, []).append(newer[0])
    return newer_of.keys() - _newest_of_cycles(newer_of)


def _newest_of_cycles(newer_of: Mapping[int, list[int]]) -> set[int]:
    """Return the newest memory of each cycle, unless a memory outside of the cycle supersedes it."""
    if all(seq < newer for seq, found in newer_of.items() for newer in found):
        return set()  # strictly increasing edges have no cycle
    cycles = (cycle for cycle in _components(newer_of) if len(cycle) > 1)
    return {newest for cycle in cycles if cycle.issuperset(newer_of[newest := max(cycle)])}


def _components(edges: Mapping[int, list[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected components of a graph, by Kosaraju's algorithm in linear time. The optional
    dependency networkx (19 MB) may be missing here."""
    reverse_edges: dict[int, list[int]] = {}
    for node, others in edges.items():
        for other in others:
            reverse_edges.setdefault(other, []).append(node)
    reached: set[int] = set()
    postorder = [node for root in edges for node in _postorder(root, edges, reached)]
    reached = set()
    for root in reversed(postorder):
        if component := {*_postorder(root, reverse_edges, reached)}:
            yield component


def _postorder(root: int, edges: Mapping[int, list[int]], reached: set[int]) -> Iterator[int]:
    """Yield the nodes first reached from a root in postorder, and add them to `reached`."""
    if root in reached:
        return
    reached.add(root)
    path = [(root, iter(edges.get(root, ())))]
    while path:
        node, others = path[-1]
        following = next((other for other in others if other not in reached), None)
        if following is None:
            path.pop()
            yield node
        else:
            reached.add(following)
            path.append((following, iter(edges.get(following, ()))))


QUESTION_WORDS = 100  # words of a question that are searched for names
NAME_WORDS = 5  # of the longest name
CONTEXT_HOPS = 2
CONTEXT_ENTRIES = 20
RELATIONSHIPS = 24  # the newest relationships of an entity
LINKED_MAX = 1_000  # memories of an entity that are checked against the filters
_WORD = re.compile(r"\w+")
_SYMBOLS = re.compile(r"[^\w\s]*")
_CLOSING = ".,;:!?…)]}\"'’”»"
_OPENING = "([{\"'‘“«¿¡@#"


def candidate_nodes(graph: OwnerGraph, texts: Sequence[str], field: str) -> list[NodeKey]:
    """Return the nodes of keys, memory ids, URNs or names in a field. Raise InvalidRecord for missing ones."""
    found: list[NodeKey] = []
    problems: list[FieldProblem] = []
    for number, text in enumerate(texts):
        own = graph.find(text)
        keys = list(dict.fromkeys([*([] if own is None else [own]), *graph.by_urn(text)]))
        found += keys
        if not keys:
            problem = f"no node, memory, URN or entity is called {text!r}"
            if has_kind_prefix(text) and graph.node(NodeKey(text, memory=True)) is not None:
                problem = f"no node has this key; the memory of this id is called {MEMORY_KIND}:{text} here"
            problems.append(FieldProblem(f"{field}.{number}", problem))
    if problems:
        raise InvalidRecord("not_found", problems)
    return found


def given_entities(graph: OwnerGraph, texts: Sequence[str]) -> list[NodeKey]:
    """Return the nodes of URNs, names or node keys, unless archived."""
    found: list[NodeKey] = []
    for text in texts:
        own = graph.find(text)
        found += graph.by_urn(text) or ([] if own is None else [own])
    return [key for key in dict.fromkeys(found) if (node := graph.node(key)) is not None and not node.archived]


def named_entities(graph: OwnerGraph, question: str) -> list[NodeKey]:
    """Return the entities whose names occur in the question as whole words, in order, unless archived. Longer names
    take precedence over names within them."""
    words = [match.span() for match in _WORD.finditer(question)][:QUESTION_WORDS]
    used = [False] * len(words)
    found: dict[int, NodeKey] = {}
    for length in range(min(NAME_WORDS, len(words)), 0, -1):
        for first in range(len(words) - length + 1):
            if any(used[first : first + length]):
                continue
            key = _entity_named(graph, question, words[first][0], words[first + length - 1][1])
            if key is not None:
                used[first : first + length] = [True] * length
                found[first] = key
    return list(dict.fromkeys(found[first] for first in sorted(found)))


def _entity_named(graph: OwnerGraph, question: str, start: int, end: int) -> NodeKey | None:
    """Return the entity that a part of the question names, with adjacent symbols (C++) or without."""
    for spelling in _spellings(question, start, end):
        # A function word counts as a name only if it is capitalised within the sentence.
        if spelling.lower() in ENGLISH.function_words and (start == 0 or spelling.islower()):
            continue
        node = graph.node(NodeKey(node_key(ENTITY_KIND, spelling)))
        if node is not None and not node.archived:
            return node.key
    return None


def _spellings(question: str, start: int, end: int) -> Iterator[str]:
    before = re.search(r"[^\w\s]*\Z", question[:start])
    after = _SYMBOLS.match(question, end)
    left = before[0].lstrip(_OPENING) if before else ""
    right = after[0].rstrip(_CLOSING) if after else ""
    yield f"{left}{question[start:end]}{right}"
    if left or right:
        yield question[start:end]


class EntityContext(NamedTuple):
    """Entities with their properties and relationships."""

    entries: list[dict[str, Any]]
    excluded: int  # the number of entities that the query's filters exclude


NO_ENTITIES = EntityContext([], 0)


def entity_context(
    graph: OwnerGraph, entities: Sequence[NodeKey], now_ms: int, permitted: Callable[[int], bool] | None = None
) -> EntityContext:
    """Return the entities and those within two relations, at most 20: name, type, properties, and outgoing
    relationships ({type, target}).

    `permitted` returns whether a memory (`seq`) passes the query's filters. Entities that are linked to no such memory
    are excluded, and so are relations that no such memory states."""
    entries: list[dict[str, Any]] = []
    reached, at, excluded = list(dict.fromkeys(entities)), 0, 0
    hops = dict.fromkeys(reached, 0)
    while at < len(reached) and len(entries) < CONTEXT_ENTRIES:
        key, at = reached[at], at + 1
        node = graph.node(key)
        if node is None or node.archived:
            continue
        if not _is_linked(graph, key, permitted):
            excluded += 1
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
    return EntityContext(entries, excluded)


def _is_linked(graph: OwnerGraph, key: NodeKey, permitted: Callable[[int], bool] | None) -> bool:
    """Return whether a permitted memory is linked to a node."""
    return permitted is None or any(map(permitted, graph.members(key, LINKED_MAX)))


def _is_stated(graph: OwnerGraph, edge: Edge, permitted: Callable[[int], bool] | None) -> bool:
    """Return whether a permitted memory states an edge. For an edge without evidence, return whether each of its ends
    is linked to a permitted memory."""
    if permitted is None:
        return True
    if not edge.evidence:
        return all(_is_linked(graph, end, permitted) for end in (edge.source, edge.target))
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
