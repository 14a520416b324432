"""A memory's part of the graph, and edges and archiving by events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.flows.settings import Settings
from recallflow.operators.graph import changes as graph_changes
from recallflow.state import entity_names, keys
from recallflow.state.graph_codec import NodeKey, Superseded
from recallflow.state.rows import Entry
from tests.unit.operators.graph.engine import ALONE, ANN, Engine, event, fact, memory, opened

MINUTE_MS = 60_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "s") as made:
        yield made


def keys_of(engine: Engine) -> set[str]:
    """Keys of the nodes that are no memories."""
    return {key.text for key in engine.nodes() if not key.memory}


def test_a_memory_called_like_a_node_is_another_node(engine: Engine) -> None:
    engine.run(fact("tag:hot"), fact("b", tags=["hot"]))
    assert engine.graph.members(memory("tag:hot"), 5) == [0]
    assert engine.graph.members(NodeKey("tag:hot"), 5) == [1]
    assert engine.graph.find("tag:hot") == NodeKey("tag:hot")
    assert engine.graph.find("memory:tag:hot") == memory("tag:hot")
    engine.run(event("memory.forget", memory_id="tag:hot"))
    assert engine.graph.find("tag:hot") == NodeKey("tag:hot")


def test_sentence_starting_with_a_known_name_is_linked(engine: Engine) -> None:
    engine.run(fact("before", "Maria moved to Lisbon last spring."))
    engine.run(event("message", id="said", content="hi", name="Maria"), fact("same batch", "Maria moved again."))
    engine.again()
    engine.run(fact("later", "Maria likes it there."), fact("small", "so maria stays"))
    assert engine.graph.members(NodeKey("entity:maria"), 9) == [4, 3, 2, 1]
    engine.run(*[event("memory.forget", memory_id=one) for one in ("said", "same batch", "later", "small")])
    engine.run(fact("nobody", "Maria who?"))
    assert "entity:maria" not in keys_of(engine)


def test_caseless_scripts_are_searched_for_the_first_names(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entity_names, "CASELESS_NAMES_MAX", 2)
    engine.run(event("message", id="said", content="好", name="王小明"), fact("b", entities=[{"name": "ليلى"}]))
    engine.run(fact("too many", entities=[{"name": "田中"}]))
    engine.again()
    engine.run(fact("found", "昨天王小明见了田中"), fact("and she", "ذهبت ليلى"))
    assert engine.graph.members(NodeKey("entity:王小明"), 9) == [3, 0]
    assert engine.graph.members(NodeKey("entity:ليلى"), 9) == [4, 1]
    assert engine.graph.members(NodeKey("entity:田中"), 9) == [2]
    engine.run(*[event("memory.forget", memory_id=one) for one in ("said", "found")])
    engine.run(fact("there is room", entities=[{"name": "李娜"}]), fact("now", "王小明和李娜"))
    assert engine.graph.members(NodeKey("entity:李娜"), 9) == [6, 5]
    assert "entity:王小明" not in keys_of(engine)


def test_writing_the_same_again_changes_nothing(engine: Engine) -> None:
    said = fact("a", "then Ann came", tags=["hot"], relations=[{"source": "Ann", "type": "likes", "target": "tea"}])
    engine.run(said)
    before = engine.hash()
    engine.run(said)
    engine.run(event("memory.update", memory_id="a", tags=["hot"]))
    assert engine.hash() == before
    assert [receipt["outcome"] for receipt in engine.receipts] == ["created", "duplicate", "unchanged"]


def test_forgetting_the_last_memory_leaves_no_node(engine: Engine) -> None:
    engine.run(
        fact("a", "then Ann came", tags=["hot"], relations=[{"source": "Ann", "type": "likes", "target": "tea"}]),
        event("message", id="b", content="then @bob left", name="Ann", session_id="s"),
        event("graph.edges", edges=[{"source": "a", "target": "time:noon", "type": "conditional_on"}]),
        event("memory.forget", filter={"older_than": "2999-01-01"}),
    )
    assert (list(engine.graph.nodes()), list(engine.graph.all_edges())) == ([], [])
    partition = engine.directory.partition(0)
    graph_tables = [keys.NODE, keys.MEMBER, keys.LINKS, keys.EDGE, keys.ADJACENCY, keys.SIMILAR, keys.SUPERSEDED]
    left = {keys.split(key)[1] for key, _ in partition.scan(keys.OWNERS + partition.keyring.owner(ANN))}
    assert left.isdisjoint(graph_tables)


def test_members_are_newest_first_up_to_the_limit(engine: Engine) -> None:
    engine.run(*(fact(f"m{n}", tags=["hot"]) for n in range(300)))
    hub = NodeKey("tag:hot")
    assert engine.graph.members(hub, 3) == [299, 298, 297]
    assert (len(engine.graph.members(hub, 1_000)), len(engine.graph.members(hub, 10))) == (300, 10)


def test_hub_is_not_rewritten_per_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.run(fact("first", "then Ann came", tags=["hot"]))
    partition, written = engine.directory.partition(0), list[bytes]()
    stage = partition.stage

    def noted(values: dict[bytes, bytes | None], *beside: Any) -> None:
        written.extend(values)
        stage(values, *beside)

    monkeypatch.setattr(partition, "stage", noted)
    engine.run(*(fact(f"m{n}", "then Ann came", tags=["hot"]) for n in range(50)))
    tables = [keys.split(key)[1] for key in written]
    assert tables.count(keys.NODE) == 0
    assert tables.count(keys.MEMBER) == 50 * 3


def test_the_first_spelling_is_the_name(engine: Engine) -> None:
    engine.run(fact("a", "then ANN came"), fact("b", "then Ann came"), event("memory.forget", memory_id="a"))
    assert engine.nodes()[NodeKey("entity:ann")].name == "ANN"


def test_the_first_memory_that_tells_anything_of_an_entity_counts(engine: Engine) -> None:
    person, pet = ({"name": "Ann", "type": kind, "urn": f"urn:x:{kind}"} for kind in ("person", "pet"))
    engine.run(fact("a", "then Ann came"), fact("b", entities=[person]), fact("c", entities=[pet]))
    node = engine.nodes()[NodeKey("entity:ann")]
    assert (node.urn, node.properties) == ("urn:x:person", {"type": "person"})
    engine.run(event("memory.forget", memory_id="b"))  # and what it told is forgotten with it
    node = engine.nodes()[NodeKey("entity:ann")]
    assert (node.urn, node.properties) == ("urn:x:pet", {"type": "pet"})
    engine.run(event("memory.update", memory_id="c", entities=None))
    assert "entity:ann" in keys_of(engine)
    node = engine.nodes()[NodeKey("entity:ann")]
    assert (node.urn, node.properties) == (None, {})


@pytest.mark.parametrize("between", [2, 3])
def test_next_source_of_an_entity_is_among_its_first_memories(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    monkeypatch.setattr(graph_changes, "DESCRIBERS_MAX", 3)
    person = {"name": "Ann", "type": "person"}
    engine.run(fact("first", entities=[person]), *(fact(f"n{n}", "then Ann came") for n in range(between)))
    engine.run(fact("next", entities=[person | {"type": "pet"}]), event("memory.forget", memory_id="first"))
    assert engine.nodes()[NodeKey("entity:ann")].properties == ({"type": "pet"} if between == 2 else {})


def test_a_urn_leads_to_the_node_of_its_name(engine: Engine) -> None:
    engine.run(fact("a", "of urn:tea:assam"), fact("b", entities=[{"name": "Assam", "urn": "urn:tea:Assam"}]))
    assert engine.graph.by_urn("URN:tea:assam") == [NodeKey("entity:assam")]
    assert engine.graph.members(NodeKey("entity:urn:tea:assam"), 5) == [1, 0]
    assert engine.nodes()[NodeKey("entity:assam")].urn == "urn:tea:Assam"
    assert engine.graph.by_urn("urn:tea:other") == []


LIKES = {"source": "Ann", "type": "likes", "target": "Tea"}
ENDS = (NodeKey("entity:ann"), NodeKey("entity:tea"), "likes")


def test_relation_is_a_typed_edge_with_evidence(engine: Engine) -> None:
    engine.run(fact("a", relations=[LIKES | {"properties": {"since": 2020}}]))
    edge = engine.edges()[ENDS]
    assert (edge.weight, edge.confidence, edge.evidence, edge.archived) == (1.0, 1.0, ["a"], False)
    assert (edge.properties, edge.ingested_ms) == ({"since": 2020}, 0)
    assert engine.graph.edges(ENDS[0], 5) == engine.graph.edges(ENDS[1], 5) == [edge]
    assert engine.graph.members(NodeKey("entity:tea"), 5) == [0]


def test_hub_edges_are_newest_first_up_to_the_limit(engine: Engine) -> None:
    engine.run(*(fact(f"m{n}", relations=[{"source": "Ann", "type": "t", "target": f"x{n}"}]) for n in range(30)))
    hub = NodeKey("entity:ann")
    assert [edge.target.text for edge in engine.graph.edges(hub, 2)] == ["entity:x29", "entity:x28"]
    assert (len(engine.graph.edges(hub, 1_000)), len(engine.graph.edges(hub, 10))) == (30, 10)


@given(minutes=st.lists(st.integers(0, 200), min_size=1, max_size=12), forgotten=st.integers(0, 12))
def test_a_message_belongs_to_the_episode_that_stands(
    tmp_path_factory: pytest.TempPathFactory, minutes: list[int], forgotten: int
) -> None:
    engine = Engine(tmp_path_factory.mktemp("episodes") / "s", ALONE)
    for number, minute in enumerate(minutes):
        time = {"session_id": "s", "timestamp": minute * MINUTE_MS}
        engine.run(event("message", id=f"m{number}", content="x", **time))
    engine.run(event("memory.forget", memory_id=f"m{forgotten}"))
    partition = engine.directory.partition(0)
    table = keys.table(partition.keyring.owner(ANN), keys.ENTRY)
    entries = [Entry.decode(value) for _, value in partition.scan(table)]
    runs: dict[int, set[int]] = {}
    for entry in entries:
        # Those not more than the gap of 30 minutes apart are together, and forgotten ones still hold them together.
        before = sorted(minute for minute in minutes if minute * MINUTE_MS <= entry.created_ms)
        start = before[-1]
        for minute in reversed(before):
            start = minute if start - minute <= 30 else start
        runs.setdefault(start, set()).add(entry.seq)
    nodes = [key for key, node in engine.nodes().items() if node.kind == "episode"]
    assert sorted(map(sorted, runs.values())) == sorted(sorted(engine.graph.members(key, 100)) for key in nodes)
    assert engine.problems() == []
    engine.close()


A, B = memory("a"), memory("b")


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Engine]:
    """Three memories: a (place 0), b (1) and c (2)."""
    with opened(tmp_path / "s") as made:
        made.run(*(event("memory", id=name, content=name, tags=["hot"]) for name in "abc"))
        yield made


def edge(source: str, target: str, kind: str = "caused_by", **fields: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "type": kind} | fields


def give(*edges: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return event("graph.edges", edges=list(edges), **fields)


def archive(*entities: str, **fields: Any) -> dict[str, Any]:
    return event("graph.archive", entities=list(entities), **fields)


def outcomes(trio: Engine) -> list[str]:
    return [receipt["outcome"] for receipt in trio.receipts[3:]]


def test_an_edge_carries_all_that_is_given_of_it(trio: Engine) -> None:
    said = edge("a", "b", weight=0.25, confidence=0.5, evidence="c", expires_at="2025-01-01T00:00:00Z", archived=True)
    trio.run(give(said))
    (found,) = trio.edges().values()
    assert (found.source, found.target, found.type, found.weight, found.confidence) == (A, B, "caused_by", 0.25, 0.5)
    assert (found.evidence, found.expires_ms, found.archived) == (["c"], 1_735_689_600_000, True)
    assert found.ingested_ms == 3
    assert trio.graph.edges(A, 5) == trio.graph.edges(B, 5) == [found]


def test_repeated_edge_is_one_edge_with_the_latest_values(trio: Engine) -> None:
    trio.run(give(edge("a", "b", weight=0.5)), give(edge("a", "b", weight=0.5)), give(edge("a", "b", weight=0.7)))
    (found,) = trio.edges().values()
    assert (found.weight, found.ingested_ms) == (0.7, 3)
    assert outcomes(trio) == ["updated", "unchanged", "updated"]


def test_an_edge_may_lead_to_a_node(trio: Engine) -> None:
    trio.run(give(edge("a", "tag:HOT"), edge("a", "entity:New  York"), edge("entity:Bob", "condition:rain")))
    assert trio.edges().keys() == {
        (A, NodeKey("tag:hot"), "caused_by"),
        (A, NodeKey("entity:new york"), "caused_by"),
        (NodeKey("entity:bob"), NodeKey("condition:rain"), "caused_by"),
    }
    nodes = trio.nodes()
    assert [(nodes[NodeKey(key)].kind, nodes[NodeKey(key)].name) for key in ("entity:new york", "condition:rain")] == [
        ("entity", "New  York"),
        ("condition", "rain"),
    ]


def test_conditions_are_shared_and_go_with_their_last_edge(trio: Engine) -> None:
    trio.run(
        give(edge("a", "time:Morning", "conditional_on")),
        give(edge("b", "condition:time:morning", "conditional_on"), edge("time:morning", "c", "knows")),
    )
    morning = NodeKey("time:morning")
    assert trio.nodes()[morning].kind == "condition"
    assert len(trio.graph.edges(morning, 10)) == 3
    for name in "abc":
        assert morning in trio.nodes()
        trio.run(event("memory.forget", memory_id=name))
    assert list(trio.graph.nodes()) == []


def test_memory_id_equal_to_a_node_means_the_memory(trio: Engine) -> None:
    trio.run(
        event("memory", id="tag:hot", content="x"),
        event("memory", id="memory:a", content="y"),
        give(edge("a", "tag:hot"), edge("a", "memory:tag:hot"), edge("b", "memory:a"), edge("b", "memory:memory:a")),
    )
    assert trio.edges().keys() == {
        (A, NodeKey("tag:hot"), "caused_by"), (A, memory("tag:hot"), "caused_by"), (B, A, "caused_by"),
        (B, memory("memory:a"), "caused_by"),
    }  # fmt: skip
    for found in trio.edges().values():
        assert trio.graph.find(str(found.target)) == found.target


def test_reference_syntax_does_not_depend_on_the_state(trio: Engine) -> None:
    trio.run(event("memory", id="tag:cold", content="x"), give(edge("a", "tag:cold")), archive("tag:cold"))
    assert trio.refused == [("not_found", ["edges.0.target"]), ("not_found", ["entities.0"])]
    trio.run(archive("memory:tag:cold"))
    assert trio.nodes()[memory("tag:cold")].archived


def test_a_memory_may_be_called_like_a_condition(trio: Engine) -> None:
    trio.run(
        give(edge("a", "time:noon", "conditional_on")),
        event("memory", id="time:noon", content="x"),
        give(edge("b", "time:noon"), edge("b", "condition:time:noon")),
    )
    noon = NodeKey("time:noon")
    assert (str(noon), str(memory("time:noon"))) == ("condition:time:noon", "time:noon")
    assert {ends[1] for ends in trio.edges() if ends[0] == B} == {noon, memory("time:noon")}


@pytest.mark.parametrize(
    ("relation", "entities"),
    [
        ({"source": "Ann", "target": "  ANN"}, []),
        ({"source": "Ann", "target": "urn:ann"}, [{"name": "Ann", "urn": "urn:ann"}]),
    ],
)
def test_a_relation_of_an_entity_to_itself_is_refused(
    trio: Engine, relation: dict[str, Any], entities: list[dict[str, Any]]
) -> None:
    before = trio.hash()
    relations = [{"source": "Ann", "type": "knows", "target": "Bob"}, {"type": "knows", **relation}]
    trio.run(event("memory", id="x", content="x", relations=relations, entities=entities))
    trio.run(event("memory.update", memory_id="a", relations=relations, entities=entities))
    assert trio.refused == [("invalid_event", ["relations.1.target"])] * 2
    assert trio.hash() == before


def test_relation_has_the_weight_of_its_newest_memory(trio: Engine) -> None:
    knows = {"source": "Ann", "type": "knows", "target": "Bob"}
    trio.run(
        event("memory", id="x", content="x", relations=[{**knows, "weight": 0.25, "confidence": 0.5}]),
        event("memory", id="y", content="y", relations=[{**knows, "confidence": 0.75}]),
    )
    ann_knows_bob = NodeKey("entity:ann"), NodeKey("entity:bob"), "knows"
    assert trio.edges()[ann_knows_bob][3:5] == (1.0, 0.75)
    trio.run(event("memory.forget", memory_id="y"))
    assert trio.edges()[ann_knows_bob][3:5] == (0.25, 0.5)
    trio.run(give(edge("entity:Ann", "entity:Bob", "knows", weight=0.125)))
    assert trio.edges()[ann_knows_bob][3:5] == (0.125, 1.0)


@pytest.mark.parametrize("field", ["weight", "confidence"])
@pytest.mark.parametrize("value", [1.7e308, 1.01, -0.1])
def test_weight_and_confidence_are_shares(trio: Engine, field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    relation = {"source": "Ann", "type": "knows", "target": "Bob", **wrong}
    said = event("memory", content="x", relations=[relation])
    trio.run(give(edge("a", "b"), edge("a", "c", **wrong)), said)
    assert trio.refused == [("invalid_event", [f"edges.1.{field}"]), ("invalid_event", [f"relations.0.{field}"])]
    assert trio.edges() == {}


@pytest.mark.parametrize("name", ["nobody", "tag:cold", "episode:x", "time:noon", "entity:", "entity: ", "q:"])
def test_missing_edge_end_is_named_and_nothing_is_applied(trio: Engine, name: str) -> None:
    before = trio.hash()
    trio.run(give(edge("a", "b"), edge(name, "a"), edge("a", name), edge(name, name)))
    fields = ["edges.1.source", "edges.2.target", "edges.3.source", "edges.3.target"]
    assert trio.refused == [("not_found", fields)]
    assert trio.hash() == before


def test_a_forgotten_memory_has_no_edges_and_gets_none(trio: Engine) -> None:
    trio.run(give(edge("a", "b"), edge("b", "c")), event("memory.forget", memory_id="b"), give(edge("a", "b")))
    assert trio.edges() == {}
    assert trio.refused == [("not_found", ["edges.0.target"])]


def test_an_edge_from_a_memory_to_itself_is_refused(trio: Engine) -> None:
    trio.run(give(edge("a", "b"), edge("c", "c")))
    assert trio.refused == [("invalid_event", ["edges.1.target"])]
    assert trio.edges() == {}


def test_edges_under_an_id_take_effect_once(trio: Engine) -> None:
    said = give(edge("a", "b"), id="e1")
    trio.run(said, archive(edges=[edge("a", "b")]), said)
    assert outcomes(trio) == ["updated", "updated", "duplicate"]
    assert trio.edges()[A, B, "caused_by"].archived


def test_an_edge_goes_with_its_last_evidence(trio: Engine) -> None:
    trio.run(give(edge("a", "b", evidence="c")), event("memory.forget", memory_id="c"))
    assert trio.edges() == {}


def test_an_edge_given_without_evidence_outlives_all_evidence(trio: Engine) -> None:
    trio.run(give(edge("a", "b")), give(edge("a", "b", evidence="c")), event("memory.forget", memory_id="c"))
    assert trio.edges()[A, B, "caused_by"].evidence == []


@pytest.mark.parametrize(
    ("change", "left"), [({"content": "other"}, 0), ({"tags": ["cold"]}, 1), ({"content": "a", "tags": ["cold"]}, 1)]
)
def test_evidence_is_the_text_without_labels(trio: Engine, change: dict[str, Any], left: int) -> None:
    trio.run(give(edge("a", "b", evidence="a")), event("memory.update", memory_id="a", **change))
    assert len(trio.edges()) == left


def test_contradiction_is_symmetric(trio: Engine) -> None:
    trio.run(give(edge("b", "a", "contradicts", weight=0.5)), give(edge("a", "b", "contradicts", weight=0.5)))
    assert trio.edges().keys() == {(A, B, "contradicts"), (B, A, "contradicts")}
    assert outcomes(trio) == ["updated", "unchanged"]
    assert [edge.target for edge in trio.graph.edges(A, 5)] == [B]


def test_superseded_memory_is_marked_while_the_edge_exists(trio: Engine) -> None:
    def superseded() -> dict[int, list[Superseded]]:
        return trio.graph.superseded()

    trio.run(give(edge("b", "a", "supersedes", expires_at=99), edge("c", "a", "supersedes")))
    assert superseded() == {0: [Superseded("b", 3, 99, said_ms=3), Superseded("c", 3, None, said_ms=3)]}
    trio.run(archive(edges=[edge("c", "a", "supersedes")]))
    assert superseded() == {0: [Superseded("b", 3, 99, said_ms=3)]}
    trio.run(event("memory.forget", memory_id="b"))
    assert superseded() == {}
    trio.run(archive(edges=[edge("c", "a", "supersedes")], archived=False))
    assert superseded() == {0: [Superseded("c", 6, None, said_ms=3)]}
    trio.run(event("memory.forget", memory_id="a"))
    assert superseded() == {}


def test_hot_owner_tracks_supersession_after_each_event(trio: Engine) -> None:
    graph = trio.hot.graph
    assert graph.superseded() == {}
    trio.run(give(edge("b", "a", "supersedes")))
    assert graph.superseded() == {0: [Superseded("b", 3, None, said_ms=3)]} == trio.graph.superseded()
    trio.run(event("memory.forget", memory_id="b"))
    assert graph.superseded() == {}


def test_nodes_are_archived_and_restored_by_any_reference(trio: Engine) -> None:
    trio.run(event("memory", id="d", content="then Ann Lee came"))
    named = {"a": A, "tag:Hot": NodeKey("tag:hot"), "ann lee": NodeKey("entity:ann lee")}
    trio.run(archive(*named))
    assert {key for key, node in trio.nodes().items() if node.archived} == {*named.values()}
    trio.run(archive(*named), archive(*named, archived=False), archive(*named, archived=False))
    assert not any(node.archived for node in trio.nodes().values())
    assert outcomes(trio)[1:] == ["updated", "unchanged", "updated", "unchanged"]


def test_an_archived_edge_is_given_anew(trio: Engine) -> None:
    trio.run(give(edge("a", "b")), archive(edges=[edge("a", "b")]))
    assert trio.edges()[A, B, "caused_by"].archived
    trio.run(give(edge("a", "b")))
    assert not trio.edges()[A, B, "caused_by"].archived


def test_a_similarity_is_archived_from_both_ends(tmp_path: Path) -> None:
    trio = Engine(tmp_path / "similar", Settings(partitions=1))
    trio.run(*(event("memory", id=name, content=name, embedding=[1, 0, 0, 0]) for name in "ab"))
    trio.run(archive(edges=[edge("b", "a", "similar_to")]))
    assert [found.archived for found in trio.edges().values()] == [True, True]
    trio.run(archive(edges=[edge("a", "b", "similar_to")], archived=False))
    assert [found.archived for found in trio.edges().values()] == [False, False]


def test_missing_archive_target_is_named_and_nothing_is_applied(trio: Engine) -> None:
    before = trio.hash()
    trio.run(archive("a", "nobody", "entity:x", edges=[edge("a", "b"), edge("a", "b", "similar_to")]))
    assert trio.refused == [("not_found", ["entities.1", "entities.2", "edges.0", "edges.1"])]
    assert trio.hash() == before
