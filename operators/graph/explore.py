"""A bounded subgraph, for a page that shows it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import networkx as nx

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import format_time
from recallflow.graphs import ExploredEdge, ExploredLink, ExploredMemory, ExploredNode, Subgraph
from recallflow.operators.graph.neighbourhood import Neighbourhood, Vertex
from recallflow.operators.graph.reader import Bounds, Scope
from recallflow.operators.redaction import RowsReader
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

BOUNDS = Bounds(visited=200, opened=64)  # more than that no page can show
NEWEST = 10  # memories that are begun with where no node is asked for


def explore(graph: OwnerGraph, index: OwnerIndex, rows: RowsReader, wanted: Sequence[str], hops: int) -> Subgraph:
    """What lies within `hops` (1 to 3) of the nodes asked for: by key, memory id, URN, or an entity's name. Archived
    and expired edges are shown too. Raises InvalidRecord where a node is not there."""
    begin = _begin(graph, index, wanted)
    around = Neighbourhood(Scope(graph, len(index), bounds=BOUNDS), begin, hops)
    slots = {seq: slot for seq in around.out if isinstance(seq, int) and (slot := index.slot(seq)) is not None}
    names = {seq: index.ids[slot] for seq, slot in slots.items()}
    edges: list[ExploredEdge] = []
    links: list[ExploredLink] = []
    for vertex, neighbours in around.out.items():
        for other, joined in neighbours.items():
            edges += [explored_edge(edge) for edge in joined.values() if edge is not None]
            if "" in joined and isinstance(vertex, int) and vertex in names:
                links.append(ExploredLink(memory=names[vertex], node=str(other)))
    return Subgraph(
        nodes=[*_nodes(graph, around, begin, names)],
        edges=edges,
        links=links,
        memories=[_memory(row) for row in rows([*slots.values()]) if row is not None],
        caps=asdict(around.caps),
    )


def _begin(graph: OwnerGraph, index: OwnerIndex, wanted: Sequence[str]) -> list[Vertex]:
    if not wanted:
        newest = sorted((int(seq) for seq in index.conversation.facts["seq"]), reverse=True)
        return [*newest[:NEWEST]]
    begin: list[Vertex] = []
    missing: list[FieldProblem] = []
    for at, text in enumerate(wanted):
        own = graph.find(text)
        keys = list(dict.fromkeys([*([] if own is None else [own]), *graph.by_urn(text)]))
        if not keys:
            missing.append(FieldProblem(f"nodes.{at}", f"no node, memory, URN or entity is called {text!r}"))
        for key in keys:
            begin += graph.members(key, 1) if key.memory else [key]
    if missing:
        raise InvalidRecord("not_found", missing)
    return begin


def _nodes(
    graph: OwnerGraph, around: Neighbourhood, begin: Sequence[Vertex], names: dict[int, str]
) -> Iterator[ExploredNode]:
    if not around.out:
        return
    whole = nx.Graph(around.out)
    hops = nx.multi_source_dijkstra_path_length(whole, {*begin} & around.out.keys(), weight=_hops)
    centrality = nx.closeness_centrality(whole)
    for vertex in around.out:
        if isinstance(vertex, int) and vertex not in names:
            continue
        key = NodeKey(names[vertex], memory=True) if isinstance(vertex, int) else vertex
        if (node := graph.node(key)) is not None:
            yield ExploredNode(
                key=str(key),
                kind=node.kind,
                name=node.name,
                urn=node.urn,
                archived=node.archived,
                properties=node.properties,
                expanded=vertex in around.opened,
                hops=hops[vertex],
                centrality=round(centrality[vertex], 6),
            )


def _hops(source: Vertex, target: Vertex, _: object) -> int:
    """From a memory to a node it shares it is no hop; see `neighbourhood`."""
    return 0 if isinstance(source, int) and isinstance(target, NodeKey) else 1


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
