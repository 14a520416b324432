"""Names united by `same_as`, aliases or URNs are one node, in any order of events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.limits import ALIASES_MAX
from recallflow.state import entity_names, graph_check, keys
from recallflow.state.entity_names import JOINED_NAMES_MAX
from recallflow.state.graph_codec import NodeKey
from tests.groups import share
from tests.unit.operators.graph.engine import ALONE, ANN, Engine, event, fact, opened
from tests.unit.operators.graph.test_write_model import engines


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "s") as made:
        yield made


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
        {"source": "m", "target": "entity:bob"},
        {"source": "tag:hot", "target": "entity:bob"},
    ],
)
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
    made_up = entity_names.encode_joined("entity:cleo", [entity_names.NameJoin("entity:dee", 77, True)])
    nobody = entity_names.encode_names(["王小明"])
    partition.stage({ann: None, cleo: made_up, dee: None, keys.caseless(owner): nobody})
    partition.commit()
    said = "\n".join(engine.problems())
    engine.close()
    for expected in (
        f"names joined to {graph.name(entity('bob')).hex()}: edge number",
        f"names joined to {cleo[-16:].hex()}: no edge of number 77 joins them",
        "names without case: one has no node",
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
        patched.setattr(graph_check, "JOINED_NAMES_MAX", 3)
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
