"""The graph as of an earlier knowledge is the one that a replay of the log up to then has."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallflow.operators.recall.moment import Moment, index_at
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from tests.unit.operators.graph.engine import Engine, event, memory
from tests.unit.operators.graph.test_write_model import CHANGED, EDGE, IDS, NODES, RELATIONS, SAID, as_event, engines

MOST = 100


def as_of(engine: Engine, known_by_ms: int) -> OwnerGraph:
    """The graph of an engine as it was known then."""
    hot, moment = engine.hot, Moment(known_by_ms, None, known_by_ms, history=False)
    index = index_at(hot, moment, "flat", 4, 30 * 60_000)
    return hot.past_graph(index, known_by_ms, None)


def picture(graph: OwnerGraph, seqs: range) -> dict[str, Any]:
    """All that a reader finds in a graph, as far as it is a matter of the moment."""
    keys = [*map(memory, IDS), *map(NodeKey, NODES)]
    nodes = [key for key in keys if graph.node(key) is not None]
    return {
        "nodes": {key: (graph.is_archived(key), graph.node(key).kind) for key in nodes},  # type: ignore[union-attr]
        "members": {key: graph.members(key, MOST) for key in keys},
        "links": {seq: sorted(graph.links(seq)) for seq in seqs},
        "edges": {key: [*map(told, graph.edges(key, MOST))] for key in nodes},
        "superseded": {
            seq: sorted((one.by, one.ingested_ms) for one in by) for seq, by in graph.superseded().items() if by
        },
    }


def told(edge: Edge) -> tuple[Any, ...]:
    return (*edge[:9], sorted(edge.properties.items()), *edge[10:])


ID = st.sampled_from(IDS[:3])
SOME = st.lists(
    st.one_of(
        st.tuples(st.just("update"), ID, CHANGED),
        st.tuples(st.just("update"), ID, CHANGED),
        st.tuples(st.just("relate"), EDGE),
        st.tuples(st.just("archive"), st.sampled_from([*IDS[:3], *NODES]), st.booleans()),
        st.tuples(st.just("archive_edge"), EDGE),
        st.tuples(st.just("remember"), st.sampled_from(IDS), SAID),
    ),
    min_size=8,
    max_size=16,
)
BEGIN = [
    event("memory", id="m1", content="Then Ann met Bob", tags=["tea"], embedding=[1, 0, 0, 0], relations=RELATIONS[:1]),
    event("memory", id="m2", content="so it was", topics=["x"], embedding=[0.94, 0, 0.342, 0]),
    event("memory", id="m3", content="so it is", category="food", embedding=[0.985, 0.174, 0, 0]),
    event("graph.edges", edges=[{"source": "m2", "target": "m1", "type": "supersedes", "evidence": "m3"}]),
]


@settings(max_examples=40)
@given(changes=SOME)
@example(changes=[("archive", "m1", True), ("archive", "m1", False)])
def test_the_graph_as_of_a_moment_is_what_it_was_then(changes: list[tuple[Any, ...]]) -> None:
    """Each event's graph is looked at when it is the last one, and again when all others have followed."""
    with engines(1) as (engine,):
        pictures = []
        for one in [*BEGIN, *map(as_event, changes)]:
            engine.run(one)
            pictures.append(picture(engine.graph, range(len(IDS))))
        assert "internal_error" not in {code for code, _ in engine.refused}
        for at_ms, before in enumerate(pictures):
            assert picture(as_of(engine, at_ms), range(len(IDS))) == before, at_ms
        assert engine.problems() == []


@settings(max_examples=30)
@given(changes=SOME, cut=st.integers(4, 12), forgotten=st.lists(st.sampled_from(IDS), min_size=1, max_size=2))
def test_of_what_is_forgotten_nothing_is_left(changes: list[tuple[Any, ...]], cut: int, forgotten: list[str]) -> None:
    """What is forgotten after a moment is as good as forgotten at it, and no record holds a word of it."""
    events = [*BEGIN, *map(as_event, changes)]
    forget = [event("memory.forget", memory_id=one) for one in forgotten]
    with engines(2) as (whole, until_then):
        whole.run(*events, *forget)
        until_then.run(*events[:cut], *forget)
        seqs = range(until_then.hot.next_seq)
        assert picture(as_of(whole, cut - 1), seqs) == picture(until_then.graph, seqs)
        assert whole.problems() == until_then.problems() == []
