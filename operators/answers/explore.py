"""Parts of the graph for the memory explorer: a bounded subgraph, and the whole graph in pages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from recallflow.distribution import remedy_for
from recallflow.errors import InvalidRecord
from recallflow.fields import format_time
from recallflow.graphs import ExploredEdge, ExploredLink, ExploredMemory, ExploredNode, InvalidReason, Subgraph
from recallflow.operators.answers.lookups import PageReader, not_after
from recallflow.operators.graph.paths import Neighbourhood, Vertex
from recallflow.operators.graph.reader import (
    Caps,
    LoadBounds,
    TraversalScope,
    candidate_nodes,
    marks,
    memory_marks,
    superseded,
)
from recallflow.operators.recall.moment import Moment, newest_seqs
from recallflow.operators.redaction import RowsReader
from recallflow.queries import EdgeCursor, GraphExplore, MemoryCursor
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow
from recallflow.stepped import spend

BOUNDS = LoadBounds(visited=200, opened=64)  # the limits of a subgraph around nodes
VERTICES_PER_READ = 20  # vertices whose hops can be counted at the cost of reading one record
INITIAL_MEMORIES = 10  # the newest ones, if the query names no node
NODES_MAX = 500  # nodes of a page, its memories included; the last memory of a page may exceed it
EXAMINED_PER_EDGE = 4  # stored edges examined per edge of a page: filters of time or project may exclude most
PAIRS_MAX = 20_000  # pairs of names examined per page; synonyms multiply the possible edges
FIRST_EDGE = EdgeCursor(b"", b"")


def explore(
    graph: OwnerGraph, index: OwnerIndex, rows: RowsReader, names: Sequence[str], hops: int, moment: Moment
) -> Subgraph:
    """Return the subgraph within `hops` (1 to 3) of the given nodes: keys, memory ids, URNs, or entity names. Edges
    and memories that are not valid at the moment are included with marks. Raise InvalidRecord for a missing node."""
    now_ms = moment.now_ms
    initial: list[Vertex] = []
    for key in candidate_nodes(graph, names, "nodes"):
        initial += graph.members(key, 1) if key.memory else [key]
    if not names:
        initial += newest_seqs(index, moment)[:INITIAL_MEMORIES]
    scope = TraversalScope(graph, allowed=lambda seq: index.slot(seq) is not None, bounds=BOUNDS)
    neighbourhood = Neighbourhood(scope, initial, hops)
    slots = {seq: slot for seq in neighbourhood.out if isinstance(seq, int) and (slot := index.slot(seq)) is not None}
    key_of = {seq: NodeKey(index.ids[slot], memory=True) for seq, slot in slots.items()}
    superseded_seqs = superseded(graph, now_ms)
    edges: list[ExploredEdge] = []
    links: list[ExploredLink] = []
    for vertex, neighbours in neighbourhood.out.items():
        for other, edge_by_type in neighbours.items():
            if any(isinstance(end, int) and end not in key_of for end in (vertex, other)):
                continue  # a forgotten memory whose graph write failed
            edges += [explored_edge(edge, now_ms) for edge in edge_by_type.values() if edge is not None]
            if "" in edge_by_type and isinstance(vertex, int) and isinstance(other, NodeKey):
                role = dict(graph.links(vertex))[other]
                links.append(ExploredLink(memory=str(key_of[vertex]), node=str(other), role=role))
    return Subgraph(
        nodes=[*_nodes(graph, neighbourhood, initial, key_of)],
        edges=edges,
        links=links,
        memories=[
            explored_memory(row, memory_marks(graph, row, now_ms, superseded_seqs))
            for row in rows([*slots.values()])
            if row is not None
        ],
        caps=asdict(neighbourhood.caps),
    )


def _nodes(
    graph: OwnerGraph, neighbourhood: Neighbourhood, initial: Sequence[Vertex], key_of: Mapping[int, NodeKey]
) -> Iterator[ExploredNode]:
    if not neighbourhood.out:
        return
    try:
        import networkx as nx  # a slow import that only this function needs
    except ModuleNotFoundError as error:
        raise InvalidRecord.of("invalid_event", remedy_for(error) or str(error), "type") from None
    nx_graph = nx.Graph(neighbourhood.out)
    hops = nx.multi_source_dijkstra_path_length(nx_graph, {*initial} & neighbourhood.out.keys(), weight=_hops)
    for vertex in neighbourhood.out:
        if isinstance(vertex, int) and vertex not in key_of:
            continue
        spend(len(nx_graph) // VERTICES_PER_READ)
        key = key_of[vertex] if isinstance(vertex, int) else vertex
        if (node := graph.node(key)) is not None:
            centrality = round(nx.closeness_centrality(nx_graph, vertex), 6)
            yield explored_node(key, node, vertex in neighbourhood.opened, hops[vertex], centrality)


def _hops(source: Vertex, target: Vertex, _: object) -> int:
    """Return the hops of a step: none from a memory to a shared node; see `Neighbourhood`."""
    return 0 if isinstance(source, int) and isinstance(target, NodeKey) else 1


def explored_node(
    key: NodeKey, node: Node, expanded: bool = True, hops: int = 0, centrality: float = 0
) -> ExploredNode:
    fields = node._asdict() | {"key": str(key), "aliases": [*node.aliases]}
    return ExploredNode(**fields, expanded=expanded, hops=hops, centrality=centrality)


def explored_edge(edge: Edge, now_ms: int) -> ExploredEdge:
    """Return an edge in the form of a response, with its marks at a time (epoch ms)."""
    return ExploredEdge(**edge_fields(edge), evidence=edge.evidence, archived=edge.archived, marks=marks(edge, now_ms))


def edge_fields(edge: Edge) -> dict[str, Any]:
    """Return the fields of an edge in the form of a response, except its evidence and marks."""
    times_ms = {"valid_from": edge.valid_from_ms, "valid_to": edge.valid_to_ms, "expires_at": edge.expires_ms}
    times = {name: None if at_ms is None else format_time(at_ms) for name, at_ms in times_ms.items()}
    fields = {name: getattr(edge, name) for name in ("type", "weight", "confidence", "properties")}
    fields |= {"source": str(edge.source), "target": str(edge.target), "ingested_at": format_time(edge.ingested_ms)}
    return fields | times


def explored_memory(row: MemoryRow, found: list[InvalidReason]) -> ExploredMemory:
    own = {name: getattr(row, name) for name in ("id", "content", "kind", "role", "name")}
    return ExploredMemory(
        **own, key=str(NodeKey(row.id, memory=True)), created_at=format_time(row.created_ms), marks=found
    )


def page(
    hot: HotOwner, index: OwnerIndex, graph: OwnerGraph, rows: RowsReader, query: GraphExplore, moment: Moment
) -> Subgraph:
    """Return the page after `query.after`, as of the moment: first memories, newest first, with their links and
    similar memories; then edges, with their ends. `query.limit` is the number of memories or edges. `rows` reads by
    slot. Shared nodes are repeated on each page with one of their memories, so each page is self-contained."""
    shown = _Page(graph, moment.now_ms)
    ended: MemoryCursor | EdgeCursor | None
    if query.after is not None and (cursor := EdgeCursor.parse(query.after)) is not None:
        ended = _add_edges(shown, cursor, query.limit)
    else:
        reader = PageReader(hot, index, not_after(index, moment), query, rows)
        superseded_seqs = superseded(graph, moment.now_ms)

        def show(_: int, row: MemoryRow) -> ExploredMemory:
            return explored_memory(row, memory_marks(graph, row, moment.now_ms, superseded_seqs))

        for position, memory, _ in reader.read(show, is_full=lambda: len(shown.nodes) > NODES_MAX):
            shown.add_memory(int(index.conversation.facts["seq"][position]), memory)
        ended = reader.after or FIRST_EDGE
    return Subgraph(
        nodes=[*shown.nodes.values()],
        edges=shown.edges,
        links=shown.links,
        memories=shown.memories,
        caps=asdict(Caps()),
        after=None if ended is None else str(ended),
    )


class _Page:
    def __init__(self, graph: OwnerGraph, now_ms: int) -> None:
        self.nodes: dict[NodeKey, ExploredNode] = {}
        self.edges: list[ExploredEdge] = []
        self.links: list[ExploredLink] = []
        self.memories: list[ExploredMemory] = []
        self.graph, self.now_ms = graph, now_ms

    def add_node(self, key: NodeKey) -> None:
        # The node is known to exist: skip the checks of `PastGraph.node`.
        if key not in self.nodes and (node := OwnerGraph.node(self.graph, key)) is not None:
            self.nodes[key] = explored_node(key, node)

    def add_memory(self, seq: int, memory: ExploredMemory) -> None:
        own = NodeKey(memory.id, memory=True)
        self.memories.append(memory)
        self.add_node(own)
        for key, role in self.graph.links(seq)[1:]:
            self.add_node(key)
            self.links.append(ExploredLink(memory=str(own), node=str(key), role=role))
        # Both memories store the edge; the page of the newer one shows it.
        self.edges += [
            explored_edge(edge, self.now_ms)
            for edge in self.graph.similar(seq)
            if any(other < seq for other in self.graph.members(edge.target, 1))
        ]


def _add_edges(shown: _Page, after: EdgeCursor, limit: int) -> EdgeCursor | None:
    """Add edges to a page. Return the cursor of its end; None after the last edge. Raise InvalidRecord."""
    store_id = shown.graph.store_id
    if after.store_id not in (b"", store_id):
        problem = "the state was rebuilt since that page: omit `after` to start with the first page"
        raise InvalidRecord.of("invalid_event", problem, "after")
    found = shown.graph.edges_after(after.name)
    edges: list[Edge] = []
    isolated: set[NodeKey] = set()
    last, pairs = b"", 0
    for name, one, examined in islice(found, EXAMINED_PER_EDGE * limit):
        last, pairs = name, pairs + examined
        if isinstance(one, Edge):
            edges.append(one)
        elif one is not None:
            isolated.add(one)
        if len(edges) == limit or pairs >= PAIRS_MAX:
            break
    # The order of stored edges differs between directories.
    for key in sorted(isolated, key=str):
        shown.add_node(key)
    for edge in sorted(edges, key=lambda one: (str(one.source), str(one.target), one.type)):
        shown.add_node(edge.source)
        shown.add_node(edge.target)
        shown.edges.append(explored_edge(edge, shown.now_ms))
    return EdgeCursor(store_id, last) if next(found, None) is not None else None
