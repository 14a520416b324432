"""Queries about the graph: counts, rollout and subgraphs."""

from collections.abc import Iterable
from typing import Any

import pytest

from recallflow.control import ControlHistory, GateVerdict, Rollout
from recallflow.operators.graph import rollout as status_module
from tests.unit.operators.graph.harness import HOUR_MS
from tests.unit.operators.harness import make_event, run_flow

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
    monkeypatch.setattr(status_module, "COUNTED", 3)
    (response,) = run_flow(told(make_event("graph.status"))).responses
    report = response["graph_status"]
    assert not report["complete"]
    assert sum(report["nodes"].values()) == 3


def explored(*nodes: str, hops: int = 1, **more: Any) -> dict[str, Any]:
    asked = make_event("graph.explore", nodes=[*nodes], hops=hops)
    (response,) = run_flow(told(asked, **more), similarity_max_per_memory=0).responses
    subgraph: dict[str, Any] = response["subgraph"]
    return subgraph


def test_a_subgraph_has_nodes_links_and_the_memories_linked() -> None:
    found = explored("topic:dashboard")
    assert [node["key"] for node in found["nodes"]] == ["topic:dashboard", "r", "d"]
    assert found["links"] == [{"memory": memory, "node": "topic:dashboard", "role": "topic"} for memory in ("r", "d")]
    assert [(memory["id"], memory["content"]) for memory in found["memories"]] == [
        ("r", ROLLOUT["content"]),
        ("d", DASHBOARD["content"]),
    ]
    assert found["caps"] == {"fan_out": [], "visited_at_hop": None}


def test_lookup_returns_all_fields_of_an_edge() -> None:
    given = {"source": "d", "target": "r", "type": "caused_by", "weight": 0.5, "confidence": 0.8, "expires_at": HOUR_MS}
    found = explored("d", edges=[given])
    (edge,) = found["edges"]
    assert {name: edge[name] for name in ("source", "target", "type", "weight", "confidence", "archived")} == {
        "source": "d", "target": "r", "type": "caused_by", "weight": 0.5, "confidence": 0.8, "archived": False,
    }  # fmt: skip
    assert edge["expires_at"] == "1970-01-01T01:00:00Z"


def test_relations_are_shown_with_their_evidence_archived_ones_too() -> None:
    found = explored("Acme")
    edges = {(edge["source"], edge["type"], edge["target"]): edge for edge in found["edges"]}
    assert edges.keys() == {("entity:ann", "works_at", "entity:acme"), ("entity:acme", "part_of", "entity:group")}
    assert edges["entity:acme", "part_of", "entity:group"]["archived"]
    assert {tuple(edge["evidence"]) for edge in found["edges"]} == {("p",)}


@pytest.mark.parametrize("wanted", ["urn:ann", "Ann", "ANN", "entity:ann"])
def test_a_node_is_found_by_urn_name_and_key(wanted: str) -> None:
    assert "entity:ann" in [node["key"] for node in explored(wanted)["nodes"]]


def test_a_node_has_its_hops_and_its_centrality() -> None:
    found = explored("tag:ops", hops=3)
    told = {node["key"]: (node["hops"], node["centrality"]) for node in found["nodes"] if "type" not in node["key"]}
    assert {key: hops for key, (hops, _) in told.items()} == {"tag:ops": 0, "r": 1, "topic:dashboard": 1, "d": 2}
    assert told["r"][1] == max(centrality for _, centrality in told.values())
    assert all(0 < centrality <= 1 for _, centrality in told.values())


def test_without_a_node_the_newest_memories_are_shown() -> None:
    found = explored()
    assert [memory["id"] for memory in found["memories"]] == ["p", "r", "d"]


def test_a_user_without_memories_has_an_empty_subgraph() -> None:
    (response,) = run_flow([make_event("graph.explore")]).responses
    assert (response["status"], response["subgraph"]["nodes"], response["subgraph"]["edges"]) == ("ok", [], [])


def test_missing_items_are_an_error_that_names_them() -> None:
    asked = make_event("graph.explore", nodes=["d", "nobody", "nothing"])
    (response,) = run_flow(told(asked)).responses
    assert (response["status"], response["error"]["code"]) == ("error", "not_found")
    assert [field["field"] for field in response["error"]["fields"]] == ["nodes.1", "nodes.2"]


def test_united_names_appear_once_in_explore_and_context() -> None:
    people = [
        make_event("memory", 1_000, id="a", content="a person", entities=[{"name": "Robert", "aliases": ["Bob"]}]),
        make_event("memory", 2_000, id="b", content="then Bob bought a canoe"),
        make_event("memory", 3_000, id="c", content="with Robert on the lake"),
    ]
    explore = make_event("graph.explore", 9_000, nodes=["entity:bob"], hops=1)
    ask = make_event("recall", 9_000, query="What did Bob buy?", k=3, max_tokens=500)
    explored, answered = run_flow([*people, explore, ask], similarity_max_per_memory=0).responses
    found = explored["subgraph"]
    entities = [(node["key"], node["aliases"]) for node in found["nodes"] if node["kind"] == "entity"]
    assert entities == [("entity:robert", ["Bob"])]
    assert sorted(link["memory"] for link in found["links"] if link["node"] == "entity:robert") == ["a", "b", "c"]
    entry = {"name": "Robert", "type": "entity", "properties": {}, "relationships": [], "aliases": ["Bob"]}
    assert answered["context"]["graph_context"] == [entry]
