"""Writes of the graph: nodes, edges, and names that are one entity."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.settings import Settings
from recallflow.limits import ALIASES_MAX
from recallflow.operators.graph import changes as graph_changes
from recallflow.state import entity_names, keys
from recallflow.state.entity_names import JOINED_NAMES_MAX
from recallflow.state.graph_codec import NodeKey
from tests.groups import share
from tests.unit.operators.graph.engine import ALONE, ANN, Engine, event, fact, memory, opened
from tests.unit.operators.graph.test_write_model import engines


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "s") as made:
        yield made


def keys_of(engine: Engine) -> set[str]:
    return {key.text for key in engine.nodes() if not key.memory}


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


@pytest.mark.parametrize("between", [2, 3])
def test_next_source_of_an_entity_is_among_its_first_memories(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    monkeypatch.setattr(graph_changes, "DESCRIBERS_MAX", 3)
    person = {"name": "Ann", "type": "person"}
    engine.run(fact("first", entities=[person]), *(fact(f"n{n}", "then Ann came") for n in range(between)))
    engine.run(fact("next", entities=[person | {"type": "pet"}]), event("memory.forget", memory_id="first"))
    assert engine.nodes()[NodeKey("entity:ann")].properties == ({"type": "pet"} if between == 2 else {})


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


def test_reference_syntax_does_not_depend_on_the_state(trio: Engine) -> None:
    trio.run(event("memory", id="tag:cold", content="x"), give(edge("a", "tag:cold")), archive("tag:cold"))
    assert trio.refused == [("not_found", ["edges.0.target"]), ("not_found", ["entities.0"])]
    trio.run(archive("memory:tag:cold"))
    assert trio.nodes()[memory("tag:cold")].archived


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


def test_edges_under_an_id_take_effect_once(trio: Engine) -> None:
    said = give(edge("a", "b"), id="e1")
    trio.run(said, archive(edges=[edge("a", "b")]), said)
    assert outcomes(trio) == ["updated", "updated", "duplicate"]
    assert trio.edges()[A, B, "caused_by"].archived


def test_nodes_are_archived_and_restored_by_any_reference(trio: Engine) -> None:
    trio.run(event("memory", id="d", content="then Ann Lee came"))
    named = {"a": A, "tag:Hot": NodeKey("tag:hot"), "ann lee": NodeKey("entity:ann lee")}
    trio.run(archive(*named))
    assert {key for key, node in trio.nodes().items() if node.archived} == {*named.values()}
    trio.run(archive(*named), archive(*named, archived=False), archive(*named, archived=False))
    assert not any(node.archived for node in trio.nodes().values())
    assert outcomes(trio)[1:] == ["updated", "unchanged", "updated", "unchanged"]


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


def same(source: str, target: str, **fields: Any) -> dict[str, Any]:
    return event("graph.edges", edges=[{"source": source, "target": target, "type": "same_as"} | fields])


def forget(memory_id: str) -> dict[str, Any]:
    return event("memory.forget", memory_id=memory_id)


def things(engine: Engine) -> set[tuple[str, ...]]:
    nodes = (node for node in engine.nodes().values() if node.kind == "entity")
    return {(node.name, *sorted(node.aliases)) for node in nodes}


def entity(name: str) -> NodeKey:
    return NodeKey(f"entity:{name}")


BOB_AND_ROBERT = [fact("b", "then Bob slept"), fact("r", "then Robert ate")]


@pytest.mark.parametrize(
    ("joining", "parting"),
    [
        (fact("a", entities=[{"name": "Robert", "aliases": ["Bob", " BOB "]}]), forget("a")),
        (fact("a", relations=[{"source": "Robert", "type": "same_as", "target": "bob"}]), forget("a")),
        (
            fact("a", entities=[{"name": "Robert", "aliases": ["Bob"]}]),
            event("memory.update", memory_id="a", entities=None),
        ),
        (
            fact("a", entities=[{"name": "Robert", "aliases": ["Bob"]}]),
            event("memory.update", memory_id="a", entities=[{"name": "Robert"}, {"name": "Bob"}]),
        ),
        (
            same("entity:robert", "entity:bob"),
            event("graph.archive", edges=[{"source": "entity:robert", "target": "entity:bob", "type": "same_as"}]),
        ),
        (same("entity:robert", "entity:bob"), same("entity:robert", "entity:bob", confidence=0.5)),
        (same("entity:robert", "entity:bob", evidence="r"), event("memory.update", memory_id="r", content="Robert?")),
    ],
)
def test_names_are_one_entity_while_a_union_exists(
    engine: Engine, joining: dict[str, Any], parting: dict[str, Any]
) -> None:
    engine.run(*BOB_AND_ROBERT)
    assert {("Bob",), ("Robert",)} == things(engine)
    engine.run(joining)
    assert {("Robert", "Bob")} == {tuple(name.capitalize() for name in thing) for thing in things(engine)}
    assert engine.graph.members(entity("bob"), 9) == engine.graph.members(entity("robert"), 9)
    assert {0, 1} <= {*engine.graph.members(entity("bob"), 9)}
    engine.run(parting)
    assert engine.graph.node(entity("bob")) != engine.graph.node(entity("robert"))
    assert 1 not in engine.graph.members(entity("bob"), 9)


@pytest.mark.parametrize(
    "edge",
    [
        {"source": "entity:ann", "target": "entity:bob", "confidence": 0.69},
        {"source": "entity:ann", "target": "entity:bob", "archived": True},
        {"source": "entity:ann", "target": "entity:bob", "expires_at": "2099-01-01T00:00:00Z"},
        {"source": "entity:ann", "target": "entity:bob", "valid_to": "2099-01-01T00:00:00Z"},
        {"source": "m", "target": "entity:bob"}, {"source": "tag:hot", "target": "entity:bob"},
    ],
)  # fmt: skip
def test_uncertain_temporary_or_typeless_edges_unite_nothing(engine: Engine, edge: dict[str, Any]) -> None:
    engine.run(fact("m", "with Ann and Bob", tags=["hot"]), event("graph.edges", edges=[edge | {"type": "same_as"}]))
    assert things(engine) == {("Ann",), ("Bob",)}
    assert len(engine.edges()) == 1


def test_a_thing_has_at_most_so_many_names(engine: Engine) -> None:
    engine.run(*[same("entity:hub", f"entity:n{number}") for number in range(JOINED_NAMES_MAX + 5)])
    (hub, *others) = sorted(things(engine), key=len, reverse=True)
    assert len(hub) == JOINED_NAMES_MAX
    assert {len(thing) for thing in others} == {1}
    assert len(others) == 6
    assert {edge.type for edge in engine.edges().values()} == {"same_as"}  # those that joined nothing


def test_a_memory_brings_at_most_so_many_aliases(engine: Engine) -> None:
    half = [f"a{number}" for number in range(ALIASES_MAX // 2)]
    people = [{"name": "Ann", "aliases": half}, {"name": "Bob", "aliases": [*half, "one more"]}]
    engine.run(fact("few", entities=[people[0]]), fact("many", entities=people))
    assert engine.refused == [("invalid_event", ["entities"])]
    assert {len(thing) for thing in things(engine)} == {1 + ALIASES_MAX // 2}


def test_one_sided_and_missing_unions_are_reported(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "s", ALONE)
    engine.run(same("entity:ann", "entity:bob"), same("entity:cleo", "entity:dee"))
    graph, partition = engine.graph, engine.directory.partition(0)
    owner = partition.keyring.owner(ANN)
    ann, cleo, dee = (keys.joined(owner, graph.name(entity(name))) for name in ("ann", "cleo", "dee"))
    made_up = entity_names.encode_joins("entity:cleo", [entity_names.NameJoin("entity:dee", 77, True)])
    nobody = orjson.dumps(["王小明"])
    partition.stage({ann: None, cleo: made_up, dee: None, keys.caseless(owner): nobody})
    partition.commit()
    said = "\n".join(engine.problems())
    engine.close()
    for expected in (
        f"names joined to {graph.name(entity('bob')).hex()}: edge number",
        f"names joined to {cleo[-16:].hex()}: edge number 77 does not exist",
        "names without case: a name has no node",
    ):
        assert expected in said
    assert not any(name in said for name in ("ann", "bob", "cleo", "王小明"))


NAME = st.sampled_from("abcdefg")
CHANGES = st.lists(st.tuples(NAME, NAME, st.booleans()).filter(lambda one: one[0] != one[1]), max_size=25)


@settings(max_examples=share(0.5))
@given(joining=CHANGES, sizes=st.lists(st.integers(1, 5), min_size=1))
def test_small_name_limit_bounds_unions_in_any_batch(joining: list[tuple[str, str, bool]], sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched, engines(2) as (whole, cut):
        patched.setattr(entity_names, "JOINED_NAMES_MAX", 3)
        events = [same(f"entity:{one}", f"entity:{other}", archived=archived) for one, other, archived in joining]
        whole.run(*events)
        while cut.number < len(events):
            size = sizes[cut.number % len(sizes)]
            cut.run(*events[cut.number : cut.number + size])
            cut.again()
        assert cut.hash() == whole.hash()
        assert cut.problems() == whole.problems() == []
        assert things(cut) == things(whole)
        assert all(len(thing) <= 3 for thing in things(whole))
        mentioned = sorted({end for one in joining for end in one[:2]})
        assert sorted(name for thing in things(whole) for name in thing) == mentioned
