"""The whole graph, a page at a time: first memories, newest first, with what they are linked to; then edges.

A page is as large as what it may read: memories with their links and those they are alike to, or edges with their ends.
A node that memories have in common comes with each page that has one of them, so that a page stands for itself.
"""

from dataclasses import asdict
from itertools import islice

from pydantic_core import to_json

from recallflow.cursors import EdgeCursor, MemoryCursor
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.graphs import ExploredEdge, ExploredLink, ExploredMemory, ExploredNode, Subgraph
from recallflow.operators.graph.explore import explored_edge, explored_memory, explored_node, memory_marks
from recallflow.operators.graph.reader import Caps
from recallflow.operators.graph.superseded import superseded
from recallflow.operators.pages import Room, cursor, newest_first, read, there
from recallflow.operators.recall.moment import Moment
from recallflow.operators.redaction import RowsReader
from recallflow.queries import GraphExplore
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex

NODES_MAX = 500  # of a page of memories, that these have in common, unless the first has more
LOOKED_AT = 4  # edges that are looked at for each of a page: of a past, or of some projects, most may not be there
PAIRS_MAX = 20_000  # of names that are looked at for a page: each thing may have many, and an edge by any two of them
FIRST_EDGE = EdgeCursor(b"", b"")


def page(
    hot: HotOwner, index: OwnerIndex, graph: OwnerGraph, rows: RowsReader, query: GraphExplore, moment: Moment
) -> Subgraph:
    """The page that comes behind `query.after`, as of the moment; `rows`: by slot."""
    made = _Page(graph, moment.now_ms)
    behind = None if query.after is None else EdgeCursor.parse(query.after)
    ended: MemoryCursor | EdgeCursor | None
    if behind is not None:
        ended = _edges(made, behind, query.limit)
    else:
        after = None if query.after is None else MemoryCursor.parse(query.after)
        ended = _memories(made, hot, index, rows, after, query.limit, moment)
    return Subgraph(
        nodes=[*made.nodes.values()],
        edges=made.edges,
        links=made.links,
        memories=made.memories,
        caps=asdict(Caps()),
        after=None if ended is None else str(ended),
    )


class _Page:
    """What is on a page."""

    def __init__(self, graph: OwnerGraph, now_ms: int) -> None:
        self.nodes: dict[NodeKey, ExploredNode] = {}
        self.edges: list[ExploredEdge] = []
        self.links: list[ExploredLink] = []
        self.memories: list[ExploredMemory] = []
        self.graph, self.now_ms = graph, now_ms

    def add_node(self, key: NodeKey) -> None:
        if key in self.nodes or (node := self.graph.described(key)) is None:
            return
        self.nodes[key] = explored_node(key, node)

    def add_memory(self, seq: int, memory: ExploredMemory) -> None:
        own = NodeKey(memory.id, memory=True)
        self.memories.append(memory)
        self.add_node(own)
        for key, role in self.graph.links(seq)[1:]:
            self.add_node(key)
            self.links.append(ExploredLink(memory=str(own), node=str(key), role=role))
        # Both have it; the newer memory's page tells it.
        self.edges += [
            explored_edge(edge, self.now_ms)
            for edge in self.graph.similar(seq)
            if any(other < seq for other in self.graph.members(edge.target, 1))
        ]

    def add_edge(self, edge: Edge) -> None:
        for end in (edge.source, edge.target):
            self.add_node(end)
        self.edges.append(explored_edge(edge, self.now_ms))


def _memories(
    made: _Page,
    hot: HotOwner,
    index: OwnerIndex,
    rows: RowsReader,
    after: MemoryCursor | None,
    limit: int,
    moment: Moment,
) -> MemoryCursor | EdgeCursor:
    """Puts memories on a page. Returns where it ends."""
    graph, facts = made.graph, index.conversation.facts
    hidden = superseded(graph, moment.now_ms)
    places = newest_first(hot, index, there(index, moment), after, limit + 1).tolist()
    room, last = Room(), None
    for place, row in read(index, places[:limit], rows):
        if row is not None:
            memory = explored_memory(row, memory_marks(graph, row, moment.now_ms, hidden))
            if not room.take(len(to_json(memory))) or len(made.nodes) > NODES_MAX:
                break
            made.add_memory(int(facts["seq"][place]), memory)
        last = place
    return FIRST_EDGE if last is None or last == places[-1] else cursor(index, last)


def _edges(made: _Page, behind: EdgeCursor, limit: int) -> EdgeCursor | None:
    """Puts edges on a page. Returns where it ends; None at the last edge. Raises InvalidRecord."""
    mark = made.graph.mark
    if behind.mark not in (b"", mark):
        problem = "the state was built anew since that page: leave it out, and begin with the first page"
        raise InvalidRecord("invalid_event", [FieldProblem("after", problem)])
    found = made.graph.edges_behind(behind.name)
    edges: list[Edge] = []
    alone: set[NodeKey] = set()
    last, pairs = b"", 0
    for name, one, looked_at in islice(found, LOOKED_AT * limit):
        last, pairs = name, pairs + looked_at
        if isinstance(one, Edge):
            edges.append(one)
        elif one is not None:
            alone.add(one)
        if len(edges) == limit or pairs >= PAIRS_MAX:
            break
    # In the store's order they would come differently from each directory.
    for key in sorted(alone, key=str):
        made.add_node(key)
    for edge in sorted(edges, key=lambda one: (str(one.source), str(one.target), one.type)):
        made.add_edge(edge)
    return EdgeCursor(mark, last) if next(found, None) is not None else None
