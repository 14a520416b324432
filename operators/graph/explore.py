"""A bounded subgraph, for a page that shows it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.extras import way_out
from recallflow.fields import format_time
from recallflow.graphs import ExploredEdge, ExploredLink, ExploredMemory, ExploredNode, Mark, Subgraph
from recallflow.operators.graph.neighbourhood import Neighbourhood, Vertex
from recallflow.operators.graph.reader import Bounds, Scope, marks
from recallflow.operators.graph.superseded import superseded
from recallflow.operators.recall.moment import Moment, newest
from recallflow.operators.redaction import RowsReader
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import MEMORY_KIND, NodeKey, begins_like_a_key
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow
from recallflow.stepped import spend

BOUNDS = Bounds(visited=200, opened=64)  # more than that no page can show
VERTICES_A_READ = 20  # that cost as much to count hops to as to read a record
NEWEST = 10  # memories that are begun with where no node is asked for


def explore(
    graph: OwnerGraph, index: OwnerIndex, rows: RowsReader, wanted: Sequence[str], hops: int, moment: Moment
) -> Subgraph:
    """What lies within `hops` (1 to 3) of the nodes asked for: by key, memory id, URN, or an entity's name; of the
    moment. What does not count then is shown too, and marked. Raises InvalidRecord where a node is not there."""

    now_ms = moment.now_ms
    begin = _begin(graph, wanted) if wanted else newest(index, moment)[:NEWEST]
    scope = Scope(graph, allowed=lambda seq: index.slot(seq) is not None, bounds=BOUNDS)
    around = Neighbourhood(scope, begin, hops)
    slots = {seq: slot for seq in around.out if isinstance(seq, int) and (slot := index.slot(seq)) is not None}
    own = {seq: NodeKey(index.ids[slot], memory=True) for seq, slot in slots.items()}
    hidden = superseded(graph, now_ms)
    edges: list[ExploredEdge] = []
    links: list[ExploredLink] = []
    for vertex, neighbours in around.out.items():
        for other, joined in neighbours.items():
            if any(isinstance(end, int) and end not in own for end in (vertex, other)):
                continue  # a memory that is forgotten, which the graph could not be told yet
            edges += [explored_edge(edge, now_ms) for edge in joined.values() if edge is not None]
            if "" in joined and isinstance(vertex, int) and isinstance(other, NodeKey):
                role = dict(graph.links(vertex))[other]
                links.append(ExploredLink(memory=str(own[vertex]), node=str(other), role=role))
    return Subgraph(
        nodes=[*_nodes(graph, around, begin, own)],
        edges=edges,
        links=links,
        memories=[
            explored_memory(row, memory_marks(graph, row, now_ms, hidden))
            for row in rows([*slots.values()])
            if row is not None
        ],
        caps=asdict(around.caps),
    )


def _begin(graph: OwnerGraph, wanted: Sequence[str]) -> list[Vertex]:
    begin: list[Vertex] = []
    missing: list[FieldProblem] = []
    for at, text in enumerate(wanted):
        own = graph.find(text)
        keys = list(dict.fromkeys([*([] if own is None else [own]), *graph.by_urn(text)]))
        if not keys:
            problem = f"no node, memory, URN or entity is called {text!r}"
            if begins_like_a_key(text) and graph.node(NodeKey(text, memory=True)) is not None:
                problem = f"no node has this key; the memory of this id is called {MEMORY_KIND}:{text} here"
            missing.append(FieldProblem(f"nodes.{at}", problem))
        for key in keys:
            begin += graph.members(key, 1) if key.memory else [key]
    if missing:
        raise InvalidRecord("not_found", missing)
    return begin


def _nodes(
    graph: OwnerGraph, around: Neighbourhood, begin: Sequence[Vertex], own: Mapping[int, NodeKey]
) -> Iterator[ExploredNode]:
    if not around.out:
        return
    try:
        import networkx as nx  # takes long to import, and nothing else needs it
    except ModuleNotFoundError as error:
        raise InvalidRecord("invalid_event", [FieldProblem("type", way_out(error) or str(error))]) from None
    whole = nx.Graph(around.out)
    hops = nx.multi_source_dijkstra_path_length(whole, {*begin} & around.out.keys(), weight=_hops)
    for vertex in around.out:
        if isinstance(vertex, int) and vertex not in own:
            continue
        spend(len(whole) // VERTICES_A_READ)
        key = own[vertex] if isinstance(vertex, int) else vertex
        if (node := graph.node(key)) is not None:
            shown = explored_node(key, node)
            yield shown.model_copy(
                update={
                    "expanded": vertex in around.opened,
                    "hops": hops[vertex],
                    "centrality": round(nx.closeness_centrality(whole, vertex), 6),
                }
            )


def _hops(source: Vertex, target: Vertex, _: object) -> int:
    """From a memory to a node it shares it is no hop; see `neighbourhood`."""
    return 0 if isinstance(source, int) and isinstance(target, NodeKey) else 1


def explored_node(key: NodeKey, node: Node) -> ExploredNode:
    """A node as a response shows it, by itself."""
    return ExploredNode(
        key=str(key),
        kind=node.kind,
        name=node.name,
        urn=node.urn,
        archived=node.archived,
        properties=node.properties,
        aliases=[*node.aliases],
        expanded=True,
        hops=0,
        centrality=0.0,
    )


def explored_edge(edge: Edge, now_ms: int) -> ExploredEdge:
    """An edge as a response shows it, with the marks it has at a time (epoch ms)."""
    return ExploredEdge(
        source=str(edge.source),
        target=str(edge.target),
        type=edge.type,
        weight=edge.weight,
        confidence=edge.confidence,
        evidence=edge.evidence,
        valid_from=None if edge.valid_from_ms is None else format_time(edge.valid_from_ms),
        valid_to=None if edge.valid_to_ms is None else format_time(edge.valid_to_ms),
        expires_at=None if edge.expires_ms is None else format_time(edge.expires_ms),
        archived=edge.archived,
        marks=marks(edge, now_ms),
        ingested_at=format_time(edge.ingested_ms),
        properties=edge.properties,
    )


def memory_marks(graph: OwnerGraph, row: MemoryRow, now_ms: int, hidden: set[int]) -> list[Mark]:
    """Why a memory does not count at a time (epoch ms), where it does not."""
    found: list[Mark] = ["archived"] if graph.is_archived(NodeKey(row.id, memory=True)) else []
    if row.valid_from_ms is not None and now_ms < row.valid_from_ms:
        found.append("not_yet_valid")
    if any(end is not None and now_ms >= end for end in (row.valid_to_ms, row.expires_ms)):
        found.append("expired")
    if row.seq in hidden:
        found.append("superseded")
    return found


def explored_memory(row: MemoryRow, found: list[Mark]) -> ExploredMemory:
    """A memory as a page shows it."""
    return ExploredMemory(
        id=row.id,
        key=str(NodeKey(row.id, memory=True)),
        content=row.content,
        kind=row.kind,
        role=row.role,
        name=row.name,
        created_at=format_time(row.created_ms),
        marks=found,
    )
