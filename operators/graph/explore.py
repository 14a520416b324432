"""A bounded subgraph, for a page that shows it."""

from collections.abc import Iterator, Sequence

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import format_time
from recallflow.graphs import ExploredEdge, ExploredLink, ExploredMemory, ExploredNode, Subgraph
from recallflow.operators.graph.expand import HOPS_MAX, HOPS_MIN
from recallflow.operators.graph.neighbourhood import Neighbourhood, Place, load
from recallflow.operators.graph.reader import Bounds, GraphReader
from recallflow.operators.redaction import RowsReader
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

BOUNDS = Bounds(visited=200, opened=64)  # more than that no page can show
NEWEST = 10  # memories that are begun with where no node is asked for


def explore(graph: GraphReader, index: OwnerIndex, rows: RowsReader, wanted: Sequence[str], hops: int) -> Subgraph:
    """What lies within `hops` (1 to 3) of the nodes asked for: by key, memory id, URN, or an entity's name. Archived
    and expired edges are shown too. Raises InvalidRecord where a node is not there."""
    around = load(
        graph,
        _begin(graph, index, wanted),
        min(max(hops, HOPS_MIN), HOPS_MAX),
        memories=len(index),
        follow=lambda _: True,
        bounds=BOUNDS,
    )
    slots = {seq: slot for seq in around.memories() if (slot := index.slot(seq)) is not None}
    found = dict(zip(slots, rows(list(slots.values())), strict=True))
    names = {seq: index.ids[slot] for seq, slot in slots.items()}
    return Subgraph(
        nodes=[*_nodes(graph, around, names)],
        edges=[explored_edge(edge) for edge in around.edges()],
        links=[ExploredLink(memory=names[seq], node=str(key)) for seq, key in around.links() if seq in names],
        memories=[_memory(row) for row in found.values() if row is not None],
        caps=around.caps.named(),
    )


def _begin(graph: GraphReader, index: OwnerIndex, wanted: Sequence[str]) -> list[Place]:
    if not wanted:
        newest = sorted((int(seq) for seq in index.conversation.facts["seq"]), reverse=True)
        return [*newest[:NEWEST]]
    places: list[Place] = []
    missing: list[FieldProblem] = []
    for at, text in enumerate(wanted):
        own = graph.find(text)
        keys = list(dict.fromkeys([*([] if own is None else [own]), *graph.by_urn(text)]))
        if not keys:
            missing.append(FieldProblem(f"nodes.{at}", f"no node, memory, URN or entity is called {text!r}"))
        for key in keys:
            places += graph.members(key, 1) if key.memory else [key]
    if missing:
        raise InvalidRecord("not_found", missing)
    return places


def _nodes(graph: GraphReader, around: Neighbourhood, names: dict[int, str]) -> Iterator[ExploredNode]:
    for place in around.graph:
        key = NodeKey(names[place], memory=True) if place in names else place
        node = graph.node(key) if isinstance(key, NodeKey) else None
        if node is not None:
            yield ExploredNode(
                key=str(key),
                kind=node.kind,
                name=node.name,
                urn=node.urn,
                archived=node.archived,
                properties=node.properties,
                expanded=around.is_open(place),
            )


def explored_edge(edge: Edge) -> ExploredEdge:
    """An edge as a response shows it."""
    return ExploredEdge(
        source=str(edge.source),
        target=str(edge.target),
        type=edge.type,
        weight=edge.weight,
        confidence=edge.confidence,
        evidence=edge.evidence,
        expires_at=None if edge.expires_ms is None else format_time(edge.expires_ms),
        archived=edge.archived,
        ingested_at=format_time(edge.ingested_ms),
        properties=edge.properties,
    )


def _memory(row: MemoryRow) -> ExploredMemory:
    return ExploredMemory(
        id=row.id,
        content=row.content,
        kind=row.kind,
        role=row.role,
        name=row.name,
        created_at=format_time(row.created_ms),
    )
