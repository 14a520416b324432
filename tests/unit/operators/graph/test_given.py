"""Edges given by events, and archiving by events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.settings import Settings
from recallflow.state.graph_codec import NodeKey, Superseded
from tests.unit.operators.graph.engine import Engine, event, memory, opened

A, B = memory("a"), memory("b")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
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


def outcomes(engine: Engine) -> list[str]:
    return [receipt["outcome"] for receipt in engine.receipts[3:]]


def test_an_edge_carries_all_that_is_given_of_it(engine: Engine) -> None:
    said = edge("a", "b", weight=0.25, confidence=0.5, evidence="c", expires_at="2025-01-01T00:00:00Z", archived=True)
    engine.run(give(said))
    (found,) = engine.edges().values()
    assert (found.source, found.target, found.type, found.weight, found.confidence) == (A, B, "caused_by", 0.25, 0.5)
    assert (found.evidence, found.expires_ms, found.archived) == (["c"], 1_735_689_600_000, True)
    assert found.ingested_ms == 3
    assert engine.graph.edges(A, 5) == engine.graph.edges(B, 5) == [found]


def test_repeated_edge_is_one_edge_with_the_latest_values(engine: Engine) -> None:
    engine.run(give(edge("a", "b", weight=0.5)), give(edge("a", "b", weight=0.5)), give(edge("a", "b", weight=0.7)))
    (found,) = engine.edges().values()
    assert (found.weight, found.ingested_ms) == (0.7, 3)
    assert outcomes(engine) == ["updated", "unchanged", "updated"]


def test_an_edge_may_lead_to_a_node(engine: Engine) -> None:
    engine.run(give(edge("a", "tag:HOT"), edge("a", "entity:New  York"), edge("entity:Bob", "condition:rain")))
    assert engine.edges().keys() == {
        (A, NodeKey("tag:hot"), "caused_by"),
        (A, NodeKey("entity:new york"), "caused_by"),
        (NodeKey("entity:bob"), NodeKey("condition:rain"), "caused_by"),
    }
    nodes = engine.nodes()
    assert [(nodes[NodeKey(key)].kind, nodes[NodeKey(key)].name) for key in ("entity:new york", "condition:rain")] == [
        ("entity", "New  York"),
        ("condition", "rain"),
    ]


def test_conditions_are_shared_and_go_with_their_last_edge(engine: Engine) -> None:
    engine.run(
        give(edge("a", "time:Morning", "conditional_on")),
        give(edge("b", "condition:time:morning", "conditional_on"), edge("time:morning", "c", "knows")),
    )
    morning = NodeKey("time:morning")
    assert engine.nodes()[morning].kind == "condition"
    assert len(engine.graph.edges(morning, 10)) == 3
    for name in "abc":
        assert morning in engine.nodes()
        engine.run(event("memory.forget", memory_id=name))
    assert list(engine.graph.nodes()) == []


def test_memory_id_equal_to_a_node_means_the_memory(engine: Engine) -> None:
    engine.run(
        event("memory", id="tag:hot", content="x"),
        event("memory", id="memory:a", content="y"),
        give(edge("a", "tag:hot"), edge("a", "memory:tag:hot"), edge("b", "memory:a"), edge("b", "memory:memory:a")),
    )
    assert engine.edges().keys() == {
        (A, NodeKey("tag:hot"), "caused_by"), (A, memory("tag:hot"), "caused_by"), (B, A, "caused_by"),
        (B, memory("memory:a"), "caused_by"),
    }  # fmt: skip
    for found in engine.edges().values():
        assert engine.graph.find(str(found.target)) == found.target


def test_reference_syntax_does_not_depend_on_the_state(engine: Engine) -> None:
    engine.run(event("memory", id="tag:cold", content="x"), give(edge("a", "tag:cold")), archive("tag:cold"))
    assert engine.refused == [("not_found", ["edges.0.target"]), ("not_found", ["entities.0"])]
    engine.run(archive("memory:tag:cold"))
    assert engine.nodes()[memory("tag:cold")].archived


def test_a_memory_may_be_called_like_a_condition(engine: Engine) -> None:
    engine.run(
        give(edge("a", "time:noon", "conditional_on")),
        event("memory", id="time:noon", content="x"),
        give(edge("b", "time:noon"), edge("b", "condition:time:noon")),
    )
    noon = NodeKey("time:noon")
    assert (str(noon), str(memory("time:noon"))) == ("condition:time:noon", "time:noon")
    assert {ends[1] for ends in engine.edges() if ends[0] == B} == {noon, memory("time:noon")}


@pytest.mark.parametrize(
    ("relation", "entities"),
    [
        ({"source": "Ann", "target": "  ANN"}, []),
        ({"source": "Ann", "target": "urn:ann"}, [{"name": "Ann", "urn": "urn:ann"}]),
    ],
)
def test_a_relation_of_an_entity_to_itself_is_refused(
    engine: Engine, relation: dict[str, Any], entities: list[dict[str, Any]]
) -> None:
    before = engine.hash()
    relations = [{"source": "Ann", "type": "knows", "target": "Bob"}, {"type": "knows", **relation}]
    engine.run(event("memory", id="x", content="x", relations=relations, entities=entities))
    engine.run(event("memory.update", memory_id="a", relations=relations, entities=entities))
    assert engine.refused == [("invalid_event", ["relations.1.target"])] * 2
    assert engine.hash() == before


def test_relation_has_the_weight_of_its_newest_memory(engine: Engine) -> None:
    knows = {"source": "Ann", "type": "knows", "target": "Bob"}
    engine.run(
        event("memory", id="x", content="x", relations=[{**knows, "weight": 0.25, "confidence": 0.5}]),
        event("memory", id="y", content="y", relations=[{**knows, "confidence": 0.75}]),
    )
    ann_knows_bob = NodeKey("entity:ann"), NodeKey("entity:bob"), "knows"
    assert engine.edges()[ann_knows_bob][3:5] == (1.0, 0.75)
    engine.run(event("memory.forget", memory_id="y"))
    assert engine.edges()[ann_knows_bob][3:5] == (0.25, 0.5)
    engine.run(give(edge("entity:Ann", "entity:Bob", "knows", weight=0.125)))
    assert engine.edges()[ann_knows_bob][3:5] == (0.125, 1.0)


@pytest.mark.parametrize("field", ["weight", "confidence"])
@pytest.mark.parametrize("value", [1.7e308, 1.01, -0.1])
def test_weight_and_confidence_are_shares(engine: Engine, field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    relation = {"source": "Ann", "type": "knows", "target": "Bob", **wrong}
    said = event("memory", content="x", relations=[relation])
    engine.run(give(edge("a", "b"), edge("a", "c", **wrong)), said)
    assert engine.refused == [("invalid_event", [f"edges.1.{field}"]), ("invalid_event", [f"relations.0.{field}"])]
    assert engine.edges() == {}


@pytest.mark.parametrize("name", ["nobody", "tag:cold", "episode:x", "time:noon", "entity:", "entity: ", "q:"])
def test_missing_edge_end_is_named_and_nothing_is_applied(engine: Engine, name: str) -> None:
    before = engine.hash()
    engine.run(give(edge("a", "b"), edge(name, "a"), edge("a", name), edge(name, name)))
    fields = ["edges.1.source", "edges.2.target", "edges.3.source", "edges.3.target"]
    assert engine.refused == [("not_found", fields)]
    assert engine.hash() == before


def test_a_forgotten_memory_has_no_edges_and_gets_none(engine: Engine) -> None:
    engine.run(give(edge("a", "b"), edge("b", "c")), event("memory.forget", memory_id="b"), give(edge("a", "b")))
    assert engine.edges() == {}
    assert engine.refused == [("not_found", ["edges.0.target"])]


def test_an_edge_from_a_memory_to_itself_is_refused(engine: Engine) -> None:
    engine.run(give(edge("a", "b"), edge("c", "c")))
    assert engine.refused == [("invalid_event", ["edges.1.target"])]
    assert engine.edges() == {}


def test_edges_under_an_id_take_effect_once(engine: Engine) -> None:
    said = give(edge("a", "b"), id="e1")
    engine.run(said, archive(edges=[edge("a", "b")]), said)
    assert outcomes(engine) == ["updated", "updated", "duplicate"]
    assert engine.edges()[A, B, "caused_by"].archived


def test_an_edge_goes_with_its_last_evidence(engine: Engine) -> None:
    engine.run(give(edge("a", "b", evidence="c")), event("memory.forget", memory_id="c"))
    assert engine.edges() == {}


def test_an_edge_given_without_evidence_outlives_all_evidence(engine: Engine) -> None:
    engine.run(give(edge("a", "b")), give(edge("a", "b", evidence="c")), event("memory.forget", memory_id="c"))
    assert engine.edges()[A, B, "caused_by"].evidence == []


@pytest.mark.parametrize(
    ("change", "left"), [({"content": "other"}, 0), ({"tags": ["cold"]}, 1), ({"content": "a", "tags": ["cold"]}, 1)]
)
def test_evidence_is_the_text_without_labels(engine: Engine, change: dict[str, Any], left: int) -> None:
    engine.run(give(edge("a", "b", evidence="a")), event("memory.update", memory_id="a", **change))
    assert len(engine.edges()) == left


def test_contradiction_is_symmetric(engine: Engine) -> None:
    engine.run(give(edge("b", "a", "contradicts", weight=0.5)), give(edge("a", "b", "contradicts", weight=0.5)))
    assert engine.edges().keys() == {(A, B, "contradicts"), (B, A, "contradicts")}
    assert outcomes(engine) == ["updated", "unchanged"]
    assert [edge.target for edge in engine.graph.edges(A, 5)] == [B]


def test_superseded_memory_is_marked_while_the_edge_exists(engine: Engine) -> None:
    def superseded() -> dict[int, list[Superseded]]:
        return engine.graph.superseded()

    engine.run(give(edge("b", "a", "supersedes", expires_at=99), edge("c", "a", "supersedes")))
    assert superseded() == {0: [Superseded("b", 3, 99, said_ms=3), Superseded("c", 3, None, said_ms=3)]}
    engine.run(archive(edges=[edge("c", "a", "supersedes")]))
    assert superseded() == {0: [Superseded("b", 3, 99, said_ms=3)]}
    engine.run(event("memory.forget", memory_id="b"))
    assert superseded() == {}
    engine.run(archive(edges=[edge("c", "a", "supersedes")], archived=False))
    assert superseded() == {0: [Superseded("c", 6, None, said_ms=3)]}
    engine.run(event("memory.forget", memory_id="a"))
    assert superseded() == {}


def test_hot_owner_tracks_supersession_after_each_event(engine: Engine) -> None:
    graph = engine.hot.graph
    assert graph.superseded() == {}
    engine.run(give(edge("b", "a", "supersedes")))
    assert graph.superseded() == {0: [Superseded("b", 3, None, said_ms=3)]} == engine.graph.superseded()
    engine.run(event("memory.forget", memory_id="b"))
    assert graph.superseded() == {}


def test_nodes_are_archived_and_restored_by_any_reference(engine: Engine) -> None:
    engine.run(event("memory", id="d", content="then Ann Lee came"))
    named = {"a": A, "tag:Hot": NodeKey("tag:hot"), "ann lee": NodeKey("entity:ann lee")}
    engine.run(archive(*named))
    assert {key for key, node in engine.nodes().items() if node.archived} == {*named.values()}
    engine.run(archive(*named), archive(*named, archived=False), archive(*named, archived=False))
    assert not any(node.archived for node in engine.nodes().values())
    assert outcomes(engine)[1:] == ["updated", "unchanged", "updated", "unchanged"]


def test_an_archived_edge_is_given_anew(engine: Engine) -> None:
    engine.run(give(edge("a", "b")), archive(edges=[edge("a", "b")]))
    assert engine.edges()[A, B, "caused_by"].archived
    engine.run(give(edge("a", "b")))
    assert not engine.edges()[A, B, "caused_by"].archived


def test_a_similarity_is_archived_from_both_ends(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "similar", Settings(partitions=1))
    engine.run(*(event("memory", id=name, content=name, embedding=[1, 0, 0, 0]) for name in "ab"))
    engine.run(archive(edges=[edge("b", "a", "similar_to")]))
    assert [found.archived for found in engine.edges().values()] == [True, True]
    engine.run(archive(edges=[edge("a", "b", "similar_to")], archived=False))
    assert [found.archived for found in engine.edges().values()] == [False, False]


def test_missing_archive_target_is_named_and_nothing_is_applied(engine: Engine) -> None:
    before = engine.hash()
    engine.run(archive("a", "nobody", "entity:x", edges=[edge("a", "b"), edge("a", "b", "similar_to")]))
    assert engine.refused == [("not_found", ["entities.1", "entities.2", "edges.0", "edges.1"])]
    assert engine.hash() == before
