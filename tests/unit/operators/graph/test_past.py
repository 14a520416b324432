"""The graph as of an earlier knowledge is the one that a replay of the log up to then has."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallflow.operators.recall.moment import Moment, index_at
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.keys import OWNERS
from tests.groups import share
from tests.unit.operators.graph.engine import Engine, event, memory
from tests.unit.operators.graph.test_write_model import CHANGED, EDGE, IDS, NODES, RELATIONS, SAID, as_event, engines

MOST = 100


def as_of(engine: Engine, known_by_ms: int) -> OwnerGraph:
    hot, moment = engine.hot, Moment(known_by_ms, None, known_by_ms, history=False)
    index = index_at(hot, moment, "flat", 4, 30 * 60_000)
    return hot.past_graph(index, known_by_ms, None)


def picture(graph: OwnerGraph, seqs: range) -> dict[str, Any]:
    keys = [*map(memory, IDS), *map(NodeKey, NODES)]
    nodes = [key for key in keys if graph.node(key) is not None]
    return {
        "nodes": {key: (graph.is_archived(key), graph.node(key).kind) for key in nodes},  # type: ignore[union-attr]
        "members": {key: graph.members(key, MOST) for key in keys},
        "links": {seq: sorted(graph.links(seq)) for seq in seqs},
        "edges": {key: [*map(told, graph.edges(key, MOST))] for key in nodes},
        "superseded": {
            seq: sorted((one.by, one.expires_ms or 0, one.valid_from_ms or 0, one.said_ms) for one in by)
            for seq, by in graph.superseded().items()
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


@settings(max_examples=share(0.25))
@given(changes=SOME)
@example(changes=[("archive", "m1", True), ("archive", "m1", False)])
@example(changes=[("relate", {"source": "entity:annie", "target": "entity:cleo", "type": "same_as"})])
def test_graph_as_of_a_moment_equals_the_former_graph(changes: list[tuple[Any, ...]]) -> None:
    with engines(1) as (engine,):
        pictures = []
        for one in [*BEGIN, *map(as_event, changes)]:
            engine.run(one)
            pictures.append(picture(engine.graph, range(len(IDS))))
        assert "internal_error" not in {code for code, _ in engine.refused}
        for at_ms, before in enumerate(pictures):
            assert picture(as_of(engine, at_ms), range(len(IDS))) == before, at_ms
        assert engine.problems() == []


FOUND = st.one_of(
    st.tuples(st.just("fact"), ID, SAID),
    st.tuples(st.just("found"), EDGE, st.sampled_from(IDS[:4])),
    *[st.tuples(st.just("relate"), EDGE), st.tuples(st.just("update"), ID, CHANGED)],
)
LONGER = st.tuples(SOME, st.lists(FOUND, max_size=8)).flatmap(lambda parts: st.permutations([*parts[0], *parts[1]]))
ANN = {"entities": [{"name": "Ann", "urn": "urn:ann"}]}
SAME = {"source": "entity:ann", "target": "entity:bob", "type": "same_as", "confidence": 0.9}
NEWER = {"source": "m2", "target": "m1", "type": "supersedes"}
KNOWS = {"source": "entity:ann", "target": "entity:bob", "type": "knows"}


def marked(number: int, change: tuple[Any, ...]) -> dict[str, Any]:
    """An event whose texts contain the name of its memory, where no other memory may say the same."""
    if change[0] == "fact":
        made = event("memory", id=f"f{number}", **change[2], derived_from={"memory_id": change[1]})
    elif change[0] == "found":
        made = event("graph.edges", edges=[change[1]], derived_from={"memory_id": change[2]})
    else:
        made = as_event(change)
    memory_id = change[1] if change[0] == "fact" else made.get("id", made.get("memory_id"))
    mark = f"word-of-{memory_id}"
    if "content" in made:
        made["content"] += f" {mark}"
    for field in ("tags", "topics"):
        if field in made:
            made[field] = [*made[field], mark]
    if "entities" in made and change[0] in ("remember", "update", "fact"):
        made["entities"] = [
            {**one, "aliases": [*one.get("aliases", []), mark], "told": mark} for one in made["entities"]
        ]
    if "relations" in made:
        told = {"source": mark, "type": mark, "target": "Ann"}
        made["relations"] = [told, *({**one, "properties": {"told": mark}} for one in made["relations"])]
    if change[0] == "found":
        made["edges"] = [{**change[1], "evidence": f"word-of-{change[2]}"}]
    return made


def stored(engine: Engine) -> bytes:
    partition = engine.directory.partition(0)
    return b"".join(value for _, value in partition.scan(OWNERS))


@settings(max_examples=share(0.25))
@given(changes=LONGER, cut=st.integers(4, 14), forgotten=st.lists(st.sampled_from(IDS), min_size=1, max_size=2))
@example(  # who said last that two names are one thing
    changes=[("update", "m1", ANN), ("update", "m2", ANN), ("update", "m2", {"entities": []})], cut=6, forgotten=["m1"]
)
@example(  # who said that it is not so sure
    changes=[
        ("relate", SAME | {"evidence": "m2"}),
        ("relate", SAME | {"evidence": "m3", "confidence": 0.5}),
        ("update", "m2", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m3"],
)
@example(  # what was given on the word of two
    changes=[
        ("relate", KNOWS | {"evidence": "m1", "weight": 0.5}),
        ("relate", KNOWS | {"evidence": "m2", "weight": 0.5}),
        ("update", "m2", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m1"],
)
@example(  # what was archived
    changes=[
        ("update", "m2", {"relations": RELATIONS[:1]}),
        ("archive_edge", {"source": "entity:ann", "target": "entity:bob", "type": "knows", "archived": True}),
        ("update", "m2", {"relations": []}),
    ],
    cut=6,
    forgotten=["m1"],
)
@example(  # by what a memory was superseded
    changes=[
        ("remember", "m4", {"content": "so it may be"}),
        ("relate", NEWER | {"evidence": "m4"}),
        ("update", "m4", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m3"],
)
@example(  # what was made of it
    changes=[
        ("fact", "m1", ANN | {"content": "Ann met Bob"}), ("found", KNOWS, "m1"), ("update", "m1", {"content": "no"}),
    ],
    cut=6,
    forgotten=["m1"],
)  # fmt: skip
@example(  # what is like it, and ends as its message changes
    changes=[
        ("fact", "m1", {"content": "Ann", "embedding": [1, 0, 0, 0]}),
        ("update", "m1", {"content": "Bob", "embedding": [1, 0, 0, 0]}),
    ],
    cut=5,
    forgotten=["m5"],
)
def test_forgotten_memory_leaves_nothing_in_the_graph(
    changes: list[tuple[Any, ...]], cut: int, forgotten: list[str]
) -> None:
    events = [*BEGIN, *(marked(number, change) for number, change in enumerate(changes))]
    forget = [event("memory.forget", memory_id=one) for one in forgotten]
    with engines(2) as (whole, until_then):
        whole.run(*events, *forget)
        until_then.run(*events[:cut], *forget)
        seqs = range(until_then.hot.next_seq)
        assert picture(as_of(whole, cut - 1), seqs) == picture(until_then.graph, seqs)
        assert whole.problems() == until_then.problems() == []
        assert "internal_error" not in {code for code, _ in [*whole.refused, *until_then.refused]}
        assert not [one for one in forgotten if f"word-of-{one}".encode() in stored(whole)]
