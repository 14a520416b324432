"""A memory's part of the graph, by example: creation, updates and removal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.graph import changes as graph_changes
from recallflow.state import entity_names, keys
from recallflow.state.graph_codec import NodeKey
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
