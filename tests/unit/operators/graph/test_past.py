"""Queries as of a moment: links and edges of then, equal to a replay up to it."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallflow.operators.recall.moment import Moment, graph_at, index_at
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.keys import OWNERS
from tests.groups import share
from tests.unit.operators.graph.engine import Engine, event, memory, rolled_out
from tests.unit.operators.graph.test_write_model import CHANGED, EDGE, IDS, NODES, RELATIONS, SAID, as_event, engines
from tests.unit.operators.harness import HOUR_MS, ids, make_event, run_flow

KEYS = ("subgraph", "graph_trace")


@pytest.fixture
def log() -> list[dict[str, Any]]:
    """One event an hour: two memories share a topic until one of them is filed elsewhere; a cause is given, judged
    anew, taken back and put back."""

    def cause(hour: int, **fields: Any) -> dict[str, Any]:
        return make_event(
            "graph.edges", hour * HOUR_MS, edges=[{"source": "alarm", "target": "cause", "type": "caused_by", **fields}]
        )

    return [
        make_event("memory", HOUR_MS, id="alarm", content="Rollout alarms go to the phone", topics=["dashboard"]),
        make_event("memory", 2 * HOUR_MS, id="red", content="Grafana turns red above five", topics=["dashboard"]),
        make_event("memory", 3 * HOUR_MS, id="cause", content="Nobody looked at the mail"), cause(4, weight=0.5),
        cause(5, weight=0.75), make_event("memory.update", 6 * HOUR_MS, memory_id="red", topics=["colours"]),
        make_event("graph.archive", 7 * HOUR_MS, edges=[{"source": "alarm", "target": "cause", "type": "caused_by"}]),
        cause(8, weight=1.0), make_event("graph.archive", 9 * HOUR_MS, entities=["topic:dashboard"]),
    ]  # fmt: skip


@pytest.mark.parametrize("hour", range(1, 10))
@pytest.mark.parametrize("kind", ["recall", "graph.trace", "graph.explore"])
def test_graph_at_a_moment_equals_a_replay_up_to_it(hour: int, kind: str, log: list[dict[str, Any]]) -> None:
    fields: dict[str, Any] = {"nodes": ["alarm"], "hops": 2} if kind == "graph.explore" else {"query": "rollout alarms"}
    if kind == "recall":
        fields |= {"k": 1, "strategy": "hybrid_graph"}
    elif kind == "graph.trace":
        fields |= {"k": 1}
    as_of = {"as_of": {"ingestion_time": hour * HOUR_MS}}
    then = run_flow([*log, make_event(kind, 99 * HOUR_MS, **fields, **as_of)], decisions=rolled_out()).responses[-1]
    now = run_flow([*log[:hour], make_event(kind, hour * HOUR_MS, **fields)], decisions=rolled_out()).responses[-1]
    if kind == "recall":
        assert told(then) == told(now)
    else:
        assert {key: then.get(key) for key in KEYS} == {key: now.get(key) for key in KEYS}


def told(answer: dict[str, Any]) -> list[Any]:
    """The memories of an answer, without the usage part of scores, which only the present has."""
    return [(memory["id"], [reason.get("edge") for reason in memory["why"]]) for memory in answer["memories"]]


@pytest.mark.parametrize(
    ("hour", "types"),
    [
        (1, []), (10, ["always", "since"]), (15, ["always", "between", "since"]),
        (20, ["always", "since", "up_to_expiry"]), (30, ["always", "since"]),
    ],
)  # fmt: skip
def test_an_edge_holds_between_its_times(hour: int, types: list[str]) -> None:
    edges: list[dict[str, Any]] = [
        {"type": "always"}, {"type": "since", "valid_from": 5 * HOUR_MS},
        {"type": "between", "valid_from": 12 * HOUR_MS, "valid_to": 18 * HOUR_MS},
        {"type": "up_to_expiry", "valid_from": 19 * HOUR_MS, "expires_at": 30 * HOUR_MS},
    ]  # fmt: skip
    events = [
        make_event("memory", HOUR_MS, id="a", content="the gate is open"),
        make_event("memory", HOUR_MS, id="b", content="the wind blows"),
        make_event("graph.edges", 10 * HOUR_MS, edges=[{"source": "a", "target": "b"} | edge for edge in edges]),
    ]
    moment = {"as_of": {"event_time": hour * HOUR_MS}}
    asked = make_event("graph.explore", 99 * HOUR_MS, nodes=["a"], **moment)
    trace = make_event("graph.trace", 99 * HOUR_MS, query="gate", k=1, **moment)
    subgraph, steps = run_flow([*events, asked, trace]).responses
    marked = {edge["type"]: edge["marks"] for edge in subgraph["subgraph"]["edges"]}
    assert sorted(kind for kind, marks in marked.items() if not marks and kind != "similar_to") == types
    outcomes = {step["type"]: step["outcome"] for step in steps["graph_trace"]["steps"] if step["target"] == "b"}
    followed = {kind for kind, outcome in outcomes.items() if outcome != "edge of another time"}
    assert sorted(followed - {"similar_to", "shared_node"}) == types


@pytest.mark.parametrize("holder", ["edges", "relations"])
def test_a_time_that_ends_before_it_begins_is_refused(holder: str) -> None:
    span = {"source": "entity:a", "target": "entity:b", "type": "x", "valid_from": 2 * HOUR_MS, "valid_to": HOUR_MS}
    kind = "graph.edges" if holder == "edges" else "memory"
    (refused,) = run_flow([make_event(kind, content="x", **{holder: [span]})]).rejected
    assert "valid_to" in str(refused)


@pytest.mark.parametrize(
    ("hour", "told", "fields"), [(3, ["a", "b"], {}), (4, ["b"], {}), (2, ["b"], {"valid_from": 2 * HOUR_MS})]
)
def test_memory_is_superseded_from_the_edge_or_stated_time(hour: int, told: list[str], fields: dict[str, Any]) -> None:
    edge = {"source": "b", "target": "a", "type": "supersedes"} | fields
    then = {"as_of": {"event_time": hour * HOUR_MS}}
    recall, explore, facts = run_flow(
        [
            make_event("memory", HOUR_MS, id="a", content="the gate opens at six", entities=[{"name": "Gate"}]),
            make_event("memory", HOUR_MS, id="b", content="the gate opens at seven", entities=[{"name": "Gate"}]),
            make_event("graph.edges", 4 * HOUR_MS, edges=[edge]),
            make_event("graph.edges", 6 * HOUR_MS, edges=[edge | {"weight": 0.5}]),
            make_event("recall", 9 * HOUR_MS, query="when does the gate open", **then),
            make_event("graph.explore", 9 * HOUR_MS, nodes=["a", "b"], **then),
            make_event("graph.facts", 9 * HOUR_MS, entities=["b"], types=["supersedes"], **then),
        ]
    ).responses
    assert sorted(ids(recall)) == told
    marks = {memory["id"]: memory["marks"] for memory in explore["subgraph"]["memories"]}
    assert marks == {"a": [] if "a" in told else ["superseded"], "b": []}
    assert (
        ["supersedes"] * (told == ["b"])
        == [one["type"] for one in explore["subgraph"]["edges"] if one["type"] == "supersedes"]
        == [one["type"] for one in facts["graph_facts"]["facts"]]
    )


CLUB = {"entities": [{"name": "club x"}]}
ASKED = {"entities": ["club x"]}


def clubs() -> list[dict[str, Any]]:
    """`a` is of the club since its edit, `b` up to its own, and `c` as it was and as it is."""
    return [
        make_event("memory", HOUR_MS, id="a", content="the club meets"),
        make_event("memory", HOUR_MS, id="b", content="the club sings", **CLUB),
        make_event("memory", HOUR_MS, id="c", content="the club rests", **CLUB),
        make_event("memory.update", 4 * HOUR_MS, memory_id="a", **CLUB),
        make_event("memory.update", 4 * HOUR_MS, memory_id="b", entities=[]),
        make_event("memory.update", 4 * HOUR_MS, memory_id="c", content="the club rests now"),
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"include_history": True}, [("a", 1), ("b", 0), ("c", 0), ("c", 1)]),
        ({"include_history": True, "as_of": {"event_time": 5 * HOUR_MS}}, [("a", 1), ("b", 0), ("c", 0), ("c", 1)]),
        ({"include_history": True, "as_of": {"ingestion_time": 5 * HOUR_MS}}, [("a", 1), ("b", 0), ("c", 0), ("c", 1)]),
        ({"include_history": True, "as_of": {"event_time": 3 * HOUR_MS}}, [("b", 0), ("c", 0)]),
        ({"as_of": {"event_time": 3 * HOUR_MS}}, [("b", 0), ("c", 0)]),
        ({"as_of": {"ingestion_time": 3 * HOUR_MS}}, [("b", 0), ("c", 0)]),
        ({}, [("a", 1), ("c", 1)]),
    ],
)
def test_a_filter_goes_by_the_links_of_each_version(fields: dict[str, Any], expected: list[tuple[str, int]]) -> None:
    ask = make_event("recall", 9 * HOUR_MS, query="what does the club do", filters=ASKED, **fields)
    recall = run_flow([*clubs(), ask]).responses[-1]
    assert sorted((memory["id"], memory["version"]) for memory in recall["memories"]) == expected


@pytest.mark.parametrize(
    "fields", [{"include_history": True}, {"as_of": {"event_time": 3 * HOUR_MS}}, {"include_history": True, "not": 1}]
)
def test_entity_of_older_versions_only_is_found_in_the_past(fields: dict[str, Any]) -> None:
    filters = {"not": ASKED} if fields.pop("not", None) else ASKED
    events = [one for one in clubs() if "b" in (one.get("id"), one.get("memory_id"))]
    ask = make_event("recall", 9 * HOUR_MS, query="what does the club do", filters=filters, **fields)
    recall = run_flow([*events, ask]).responses[-1]
    assert [(memory["id"], memory["version"]) for memory in recall["memories"]] == [("b", 1 if filters != ASKED else 0)]
    assert "unknown_entity" not in {warning["code"] for warning in recall["warnings"]}


MOST = 100


def as_of(engine: Engine, known_by_ms: int) -> OwnerGraph:
    hot, moment = engine.hot, Moment(known_by_ms, None, known_by_ms, history=False)
    index = index_at(hot, moment, "flat", 4, 30 * 60_000)
    return graph_at(hot, index, moment)


def picture(graph: OwnerGraph, seqs: range) -> dict[str, Any]:
    keys = [*map(memory, IDS), *map(NodeKey, NODES)]
    nodes = [key for key in keys if graph.node(key) is not None]
    return {
        "nodes": {key: (graph.is_archived(key), graph.node(key).kind) for key in nodes},  # type: ignore[union-attr]
        "members": {key: graph.members(key, MOST) for key in keys},
        "links": {seq: sorted(graph.links(seq)) for seq in seqs},
        "edges": {key: [*map(edge_fields, graph.edges(key, MOST))] for key in nodes},
        "superseded": {
            seq: sorted((one.by, one.expires_ms or 0, one.valid_from_ms or 0, one.stated_ms) for one in by)
            for seq, by in graph.superseded().items()
        },
    }


def edge_fields(edge: Edge) -> tuple[Any, ...]:
    return (*edge[:9], sorted(edge.properties.items()), *edge[10:])


ID = st.sampled_from(IDS[:3])
SOME = st.lists(
    st.one_of(
        st.tuples(st.just("update"), ID, CHANGED), st.tuples(st.just("update"), ID, CHANGED),
        st.tuples(st.just("relate"), EDGE),
        st.tuples(st.just("archive"), st.sampled_from([*IDS[:3], *NODES]), st.booleans()),
        st.tuples(st.just("archive_edge"), EDGE), st.tuples(st.just("remember"), st.sampled_from(IDS), SAID),
    ),
    min_size=8,
    max_size=16,
)  # fmt: skip
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
    st.tuples(st.just("fact"), ID, SAID), st.tuples(st.just("found"), EDGE, st.sampled_from(IDS[:4])),
    *[st.tuples(st.just("relate"), EDGE), st.tuples(st.just("update"), ID, CHANGED)],
)  # fmt: skip
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
        edge_fields = {"source": mark, "type": mark, "target": "Ann"}
        made["relations"] = [edge_fields, *({**one, "properties": {"told": mark}} for one in made["relations"])]
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
        ("relate", SAME | {"evidence": "m2"}), ("relate", SAME | {"evidence": "m3", "confidence": 0.5}),
        ("update", "m2", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m3"],
)  # fmt: skip
@example(  # what was given on the word of two
    changes=[
        ("relate", KNOWS | {"evidence": "m1", "weight": 0.5}), ("relate", KNOWS | {"evidence": "m2", "weight": 0.5}),
        ("update", "m2", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m1"],
)  # fmt: skip
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
        ("remember", "m4", {"content": "so it may be"}), ("relate", NEWER | {"evidence": "m4"}),
        ("update", "m4", {"content": "something else"}),
    ],
    cut=6,
    forgotten=["m3"],
)  # fmt: skip
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
