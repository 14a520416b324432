"""Queries about the graph: status, subgraphs and facts."""

from collections.abc import Iterable
from typing import Any

import pytest

from recallflow.control import ControlHistory, GateVerdict, Rollout
from recallflow.operators.answers import facts as facts_module
from recallflow.operators.graph import rollout as status_module
from tests.unit.operators.harness import HOUR_MS, make_event, run_flow

DASHBOARD: dict[str, Any] = {"id": "d", "content": "red lines mark the limits", "topics": ["dashboard"]}
ROLLOUT: dict[str, Any] = {
    "id": "r", "content": "rollout alarms page the on-call", "topics": ["dashboard"], "tags": ["ops"],
}  # fmt: skip
PEOPLE: dict[str, Any] = {
    "id": "p",
    "content": "who works where",
    "entities": [{"name": "Ann", "type": "person", "urn": "urn:ann"}],
    "relations": [
        {"source": "Ann", "type": "works_at", "target": "Acme"},
        {"source": "Acme", "type": "part_of", "target": "Group", "archived": True},
    ],
}


def told(*queries: dict[str, Any], edges: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    memories = [make_event("memory", 1_000 * n, **fields) for n, fields in enumerate((DASHBOARD, ROLLOUT, PEOPLE))]
    given = [make_event("graph.edges", 4_000, edges=[*edges])] if edges else []
    return [*memories, *given, *queries]


def test_status_counts_nodes_by_kind_and_edges_by_type() -> None:
    edges = [{"source": "d", "target": "r", "type": "contradicts"}]
    asked = make_event("graph.status")
    (response,) = run_flow(told(asked, edges=edges), similarity_max_per_memory=0).responses
    report = response["graph_status"]
    assert report["nodes"] == {"entity": 3, "memory": 3, "tag": 1, "topic": 1, "type": 1}
    assert report["edges"] == {"contradicts": 2, "part_of": 1, "works_at": 1}
    assert report["complete"]


def test_status_reports_rollout_and_blocking_verdict() -> None:
    history = ControlHistory()
    rollout = Rollout(type="graph.rollout", tenant_id="acme", name="default", mode="canary", by="ops", why="try it")
    history.add(HOUR_MS, rollout)
    verdict = GateVerdict(type="gate.verdict", tenant_id="acme", name="default", blocked=True, by="ops", why="too slow")
    history.add(2 * HOUR_MS, verdict)
    (response,) = run_flow([make_event("graph.status")], decisions=history).responses
    report = response["graph_status"]
    assert report["rollout"] == {
        "mode": "canary", "enabled": True, "since": "1970-01-01T01:00:00Z", "by": "ops", "why": "try it",
    }  # fmt: skip
    gate = report["gate"]
    assert gate.pop("windows")["answers"] == 0
    assert gate == {"blocked": True, "since": "1970-01-01T02:00:00Z", "by": "ops", "why": "too slow", "edge_types": {}}
    assert report["failures"] == []


def test_a_very_large_graph_is_counted_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "COUNTED_MAX", 3)
    (response,) = run_flow(told(make_event("graph.status"))).responses
    report = response["graph_status"]
    assert not report["complete"]
    assert sum(report["nodes"].values()) == 3


def explored(*nodes: str, hops: int = 1, **more: Any) -> dict[str, Any]:
    asked = make_event("graph.explore", nodes=[*nodes], hops=hops)
    (response,) = run_flow(told(asked, **more), similarity_max_per_memory=0).responses
    subgraph: dict[str, Any] = response["subgraph"]
    return subgraph


@pytest.mark.parametrize("wanted", ["urn:ann", "Ann", "ANN", "entity:ann"])
def test_a_node_is_found_by_urn_name_and_key(wanted: str) -> None:
    assert "entity:ann" in [node["key"] for node in explored(wanted)["nodes"]]


def test_a_node_has_its_hops_and_its_centrality() -> None:
    found = explored("tag:ops", hops=3)
    told = {node["key"]: (node["hops"], node["centrality"]) for node in found["nodes"] if "type" not in node["key"]}
    assert {key: hops for key, (hops, _) in told.items()} == {"tag:ops": 0, "r": 1, "topic:dashboard": 1, "d": 2}
    assert told["r"][1] == max(centrality for _, centrality in told.values())
    assert all(0 < centrality <= 1 for _, centrality in told.values())


def test_missing_items_are_an_error_that_names_them() -> None:
    asked = make_event("graph.explore", nodes=["d", "nobody", "nothing"])
    (response,) = run_flow(told(asked)).responses
    assert (response["status"], response["error"]["code"]) == ("error", "not_found")
    assert [field["field"] for field in response["error"]["fields"]] == ["nodes.1", "nodes.2"]


def relation(source: str, kind: str, target: str, **fields: Any) -> dict[str, Any]:
    return {"source": source, "type": kind, "target": target, **fields}


@pytest.fixture
def log() -> list[dict[str, Any]]:
    """One event an hour: who works where, and who knows whom."""
    ann = [relation("Ann", "works_at", "Acme"), relation("Ann", "knows", "Bob", weight=0.5)]
    moved = [relation("Ann", "works_at", "Globex")]
    said = [
        make_event("memory", HOUR_MS, id="m1", content="Ann told us about her job at Acme.", relations=ann),
        make_event("memory", 2 * HOUR_MS, id="m2", content="Bob sails on the lake.", relations=[]),
        make_event("memory", 3 * HOUR_MS, id="m3", content="Ann has a new job, at Globex.", relations=moved),
        make_event("memory", 4 * HOUR_MS, id="m4", content="Acme closed its mill.", relations=[]),
    ]
    given = [
        {"source": "entity:bob", "target": "entity:lake", "type": "sails_on", "evidence": "m2"},
        {"source": "m3", "target": "m1", "type": "supersedes"},
    ]
    return [*said, make_event("graph.edges", 5 * HOUR_MS, edges=given)]


def asked(log: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    query = make_event("graph.facts", 99 * HOUR_MS, **fields)
    (answer,) = run_flow([*log, query], similarity_max_per_memory=0).responses
    found: dict[str, Any] = answer["graph_facts"]
    return found


def triples(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["source_name"], one["type"], one["target_name"]) for one in found["facts"]]


def test_facts_are_found_by_words_with_their_memories(log: list[dict[str, Any]]) -> None:
    found = asked(log, query="Where does Ann work?")
    assert triples(found)[0] == ("Ann", "works_at", "Globex")
    assert found["complete"]
    best = found["facts"][0]
    assert best["evidence"] == [{"id": "m3", "quote": "Ann has a new job, at Globex."}]
    assert (best["source"], best["target"], best["marks"]) == ("entity:ann", "entity:globex", [])
    sails = asked(log, query="who sails?")["facts"][0]
    assert (sails["type"], sails["score"], [one["id"] for one in sails["evidence"]]) == ("sails_on", 1.0, ["m2"])


def test_long_memory_is_quoted_around_a_query_word() -> None:
    before = "The morning was grey and nobody wanted to go out before the rain had stopped. " * 4
    content = before + "Dora repairs clocks for the town hall."
    stated = [relation("Dora", "works_for", "the town hall")]
    log = [make_event("memory", HOUR_MS, id="m1", content=content, relations=stated)]
    (fact,) = asked(log, query="Whose clocks are repaired?")["facts"]
    assert fact["evidence"] == [{"id": "m1", "quote": "Dora repairs clocks for the town hall."}]


def test_facts_of_superseded_memories_appear_on_request(log: list[dict[str, Any]]) -> None:
    now = asked(log, types=["works_at"])
    every = asked(log, types=["works_at"], include_history=True)
    assert triples(now) == [("Ann", "works_at", "Globex")]
    marks = {one["target_name"]: one["marks"] for one in every["facts"]}
    assert marks == {"Globex": [], "Acme": ["superseded"]}


@pytest.mark.parametrize("name", ["Bob", "entity:bob", "BOB"])
def test_an_entity_has_the_facts_at_it(name: str, log: list[dict[str, Any]]) -> None:
    found = asked(log, entities=[name], include_history=True)
    assert triples(found) == [("Bob", "sails_on", "lake"), ("Ann", "knows", "Bob")]


def test_marks_say_why_a_fact_does_not_count() -> None:
    edges: list[dict[str, Any]] = [
        {"type": "now"}, {"type": "sealed", "archived": True}, {"type": "gone", "expires_at": HOUR_MS},
        {"type": "past", "valid_to": HOUR_MS}, {"type": "ahead", "valid_from": 200 * HOUR_MS},
    ]  # fmt: skip
    ends = {"source": "entity:a", "target": "entity:b"}
    told = make_event(
        "memory", HOUR_MS, content="out of date", expires_at=HOUR_MS, relations=[relation("a", "old", "b")]
    )
    log = [make_event("graph.edges", HOUR_MS, edges=[ends | edge for edge in edges]), told]
    found = asked(log, entities=["entity:a"], include_history=True)
    assert {one["type"]: one["marks"] for one in found["facts"]} == {
        "now": [], "sealed": ["archived"], "gone": ["expired"], "past": ["expired"], "ahead": ["not_yet_valid"],
        "old": ["expired"],
    }  # fmt: skip
    assert [one["type"] for one in asked(log, entities=["a"])["facts"]] == ["now"]


def test_too_many_facts_are_reported(log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "OPENED_MAX", 1)
    assert not asked(log)["complete"]
    assert not asked(log, entities=["Ann", "Bob"])["complete"]
    assert asked(log, entities=["Ann"])["complete"]


def test_an_entity_that_is_not_there_is_named(log: list[dict[str, Any]]) -> None:
    query = make_event("graph.facts", entities=["Ann", "nobody"])
    (answer,) = run_flow([*log, query]).responses
    assert (answer["error"]["code"], [one["field"] for one in answer["error"]["fields"]]) == (
        "not_found", ["entities.1"],
    )  # fmt: skip


def test_fact_of_one_alias_is_a_fact_of_the_entity() -> None:
    robert = [{"name": "Robert", "aliases": ["Bob"]}]
    log = [
        make_event("memory", HOUR_MS, id="m1", content="Bob sails.", relations=[relation("Bob", "owns", "Petrel")]),
        make_event("memory", 2 * HOUR_MS, id="m2", content="Robert it is.", entities=robert),
        make_event(
            "memory", 3 * HOUR_MS, id="m3", content="So he does.", relations=[relation("Robert", "owns", "Petrel")]
        ),
    ]
    for fields in ({}, {"entities": ["Bob"]}, {"entities": ["Robert"]}, {"query": "What does Bob own?"}):
        (fact,) = asked(log, **fields)["facts"]
        assert (fact["source_name"], fact["target_name"], fact["evidence_count"]) == ("Robert", "Petrel", 2)
    before = asked(log, as_of={"ingestion_time": HOUR_MS})
    assert [(one["source_name"], one["evidence_count"]) for one in before["facts"]] == [("Bob", 1)]
