"""Effects of the graph on whole answers, through the dataflow."""

from typing import Any

import pytest

from recallflow.operators.graph import paths
from tests.unit.operators.graph.engine import ask, rolled_out
from tests.unit.operators.harness import DAY_MS, codes, explained, ids, make_event, run_flow

TIMES = ("processing_time_ms", "sla_target_ms", "sla_met", "computation_tier", "routing_info", "fallback", "query_id")


@pytest.fixture
def memories() -> list[dict[str, Any]]:
    """Forty memories about other things, and a few that only the graph relates."""
    others = [f"the {thing} number {n} is stored in shelf {n % 7}" for n, thing in enumerate(["crate", "barrel"] * 20)]
    told = [make_event("memory", n, id=f"x{n}", content=text) for n, text in enumerate(others)]
    dashboard = {"topics": ["dashboard"]}
    return [
        *told,
        make_event("memory", 100, id="alarm", content="Rollout alarms go to the on-call phone", **dashboard),
        make_event("memory", 101, id="red", content="Grafana turns red above five percent", **dashboard),
        make_event("memory", 102, id="hybrid", content="We chose the hybrid strategy for retrieval"),
        make_event("memory", 103, id="why", content="Plain vectors missed exact names", kind="decision"),
        make_event(
            "memory", 104, id="must", content="Releases stop on Fridays until the office opens on Monday", kind="rule"
        ),
        make_event(
            "graph.edges",
            105,
            edges=[
                {"source": "hybrid", "target": "why", "type": "caused_by", "confidence": 0.9},
                {"source": "hybrid", "target": "must", "type": "depends_on"},
            ],
        ),
    ]


def test_expansion_adds_memories_of_the_same_topic(memories: list[dict[str, Any]]) -> None:
    queries = [ask("rollout alarms", strategy="baseline", k=20), ask("rollout alarms")]
    baseline, answer = run_flow([*memories, *queries], decisions=rolled_out()).responses
    assert "red" not in ids(baseline)
    (added,) = [memory for memory in answer["memories"] if memory["id"] == "red"]
    assert added["rank"] == 4
    (reason,) = added["why"]
    assert added["score"] == pytest.approx(0.25 * reason["edge"]["fit"], abs=1e-6)
    assert 0 < reason["edge"]["fit"] < 0.01  # it has no word of the question
    assert reason["text"] == "shares topic:dashboard with “Rollout alarms go to the on-call phone”"
    assert reason["neighbour"] == {"id": "alarm", "quote": "Rollout alarms go to the on-call phone"}
    edge = dict(reason["edge"])
    steps = [(step["source"], step["type"], step["target"]) for step in edge.pop("path")]
    edge.pop("fit")
    assert steps == [("alarm", "shared_node", "topic:dashboard"), ("topic:dashboard", "shared_node", "red")]
    assert (reason["code"], edge) == (
        "linked",
        {
            "from": "alarm",
            "node": "topic:dashboard",
            "edge_type": "shared_node",
            "hops": 1,
            "edge": {
                "source": "topic:dashboard", "target": "red", "type": "shared_node", "weight": 1.0, "confidence": 1.0,
            },
        },
    )  # fmt: skip
    assert (answer["status"], answer["fallback"], answer["computation_tier"]) == ("ok", None, "graph")
    assert answer["routing_info"]["graph"]["reached"] >= 1


def test_memories_of_a_common_node_rank_by_the_question() -> None:
    told = [
        make_event("memory", n, id=f"x{n}", content=f"the crate number {n} is in shelf {n % 7}", topics=["stock"])
        for n in range(300)
    ]
    for n, text in ((3, "the blue kite flew"), (40, "a kite of blue paper flew high"), (41, "a kite")):
        told[n]["content"] = text
    given = make_event("graph.edges", 400, edges=[{"source": "x3", "target": "x299", "type": "works_with"}])
    asked = ask("Who flew the blue kite?", k=1)
    (answer,) = run_flow([*told, given, asked], decisions=rolled_out(), similarity_max_per_memory=0).responses
    assert ids(answer)[:4] == ["x3", "x299", "x40", "x41"]
    added = answer["memories"][1:]
    assert [memory["score"] for memory in added] == sorted((memory["score"] for memory in added), reverse=True)
    assert [memory["why"][0]["edge"]["fit"] == 1 for memory in added] == [True, *[False] * 4]


def test_derived_edge_alone_adds_nothing_and_is_reported() -> None:
    told = [
        make_event("message", n, id=f"m{n}", session_id="s", name="Ann", content=f"I told Bob of {what}")
        for n, what in enumerate(["the blue kite", "the blue boat", "a red door", "the sea"])
    ]
    asked = [ask("Who saw the blue kite?", k=1, id=f"q{depth}", traversal_depth=depth) for depth in (1, 2)]
    linked = make_event("memory.update", 500, memory_id="m3", tags=["kite"])
    given = make_event("memory.update", 501, memory_id="m0", tags=["kite"])
    answers = run_flow([*told, *asked, linked, given, ask("Who saw the blue kite?", k=1)], decisions=rolled_out())
    *before, after = answers.responses
    assert [ids(answer) for answer in before] == [["m0"], ["m0"]]
    assert [answer["routing_info"]["graph"] for answer in before] == [{"reached": 3, "derived_only": 3, "caps": {}}] * 2
    assert ids(after) == ["m0", "m3"]
    assert after["routing_info"]["graph"]["derived_only"] == 2


def test_added_memories_have_their_own_relevance(memories: list[dict[str, Any]]) -> None:
    queries = [ask("rollout alarms", **least) for least in ({}, {"min_relevance": 0.3})]
    every, chosen = run_flow([*memories, *queries], decisions=rolled_out()).responses
    relevance = {memory["id"]: memory["relevance"] for memory in every["memories"]}
    assert relevance["red"] < 0.3 < relevance["alarm"]
    assert ids(chosen) == [memory for memory in ids(every) if relevance[memory] >= 0.3]


def test_at_most_five_are_added(memories: list[dict[str, Any]]) -> None:
    edges = [{"source": "alarm", "target": f"x{n}", "type": "caused_by", "weight": (n + 1) / 10} for n in range(9)]
    events = [*memories, make_event("graph.edges", 200, edges=edges), ask("rollout alarms", k=1)]
    (answer,) = run_flow(events, decisions=rolled_out()).responses
    assert ids(answer) == ["alarm", "x8", "x7", "x6", "x5", "x4"]


def test_graph_returns_nothing_that_a_filter_excludes(memories: list[dict[str, Any]]) -> None:
    asked = ask("hybrid strategy", filters={"kinds": ["fact", "rule"]})
    (answer,) = run_flow([*memories, asked], decisions=rolled_out()).responses
    assert "must" in ids(answer)
    assert "why" not in ids(answer)


@pytest.mark.parametrize(
    ("mode", "enabled", "fallback"),
    [("off", True, "rollout_off"), ("shadow", True, "shadow_mode"), ("canary", False, "feature_flag_disabled")],
)
def test_unapplied_expansion_answers_exactly_the_baseline(
    mode: str, enabled: bool, fallback: str, memories: list[dict[str, Any]]
) -> None:
    given: dict[str, Any] = {"decisions": rolled_out(mode), "graph_enabled": enabled}
    (baseline,) = run_flow([*memories, ask("rollout alarms", strategy="baseline")], **given).responses
    (answer,) = run_flow([*memories, ask("rollout alarms")], **given).responses
    assert (baseline["fallback"], answer["fallback"]) == (None, fallback)
    assert {**baseline, **dict.fromkeys(TIMES)} == {**answer, **dict.fromkeys(TIMES)}


def test_a_failed_expansion_answers_the_baseline_and_says_so(
    memories: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("rollout alarms")

    monkeypatch.setattr(paths, "expand", fails)
    queries = [ask("rollout alarms"), make_event("graph.status")]
    answer, status = run_flow([*memories, *queries], decisions=rolled_out()).responses
    assert (len(answer["memories"]), answer["fallback"]) == (3, "graph_expansion_error")
    assert (answer["status"], codes(answer)) == ("degraded", ["graph_expansion_error"])
    (failure,) = status["graph_status"]["failures"]
    assert "KeyError" in failure["error"]
    assert "rollout" not in failure["error"]


def test_neighbours_that_weigh_nothing_are_not_looked_for(memories: list[dict[str, Any]]) -> None:
    deep = ask("hybrid strategy for retrieval", strategy="baseline", traversal_depth=2, k=5)
    asked = [deep, deep | {"weights": {"relationship": 0}}, deep | {"traversal_depth": 1}, deep | {"mode": "relevance"}]
    boosted, without, shallow, other = run_flow([*memories, *asked]).responses
    assert any("relationship" in one["boosts"] for one in explained(boosted).values())
    assert ids(without) == ids(shallow) != ids(boosted)
    tiers = [answer["computation_tier"] for answer in (boosted, without, shallow, other)]
    assert tiers == ["graph", "standard", "standard", "standard"]


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        ("boosts", {"traversal_depth": 3}), ("proximity", {"entity_urns": ["dashboard"], "mode": "entity_focused"}),
        ("graph", {"strategy": "hybrid_graph"}),
    ],
)  # fmt: skip
def test_graph_steps_are_skipped_without_time_and_tier_reports_it(
    memories: list[dict[str, Any]], step: str, fields: dict[str, Any]
) -> None:
    told = make_event("memory", 200, id="board", content="It hangs", entities=[{"name": "dashboard"}])
    asked = ask("rollout alarms", **{"strategy": "baseline"} | fields)
    in_time, late = run_flow(
        [*memories, told, asked, asked | {"sla_target_ms": 1e-9}], decisions=rolled_out()
    ).responses
    assert (in_time["computation_tier"], codes(in_time)) == ("graph", [])
    assert late["computation_tier"] == "standard"
    (warning,) = [one for one in late["warnings"] if one["code"] == "deadline"]
    assert step in warning["detail"]
    assert "no_graph" not in codes(late)


def test_graph_failure_leaves_the_answer(memories: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr(paths, "boosts", fails)
    asked = ask("rollout alarms", strategy="baseline", traversal_depth=3)
    (answer,) = run_flow([*memories, asked]).responses
    assert (len(answer["memories"]), answer["status"], codes(answer)) == (3, "degraded", ["graph_failed"])


def test_a_trace_tells_every_step(memories: list[dict[str, Any]]) -> None:
    edges = [
        {"source": "hybrid", "target": "x1", "type": "caused_by", "archived": True},
        {"source": "hybrid", "target": "x2", "type": "caused_by", "expires_at": 10},
    ]
    given = make_event("graph.edges", 300, edges=edges)
    asked = make_event("graph.trace", DAY_MS, query="hybrid strategy", k=1)
    (response,) = run_flow([*memories, given, asked], similarity_max_per_memory=0).responses
    trace = response["graph_trace"]
    assert [seed["id"] for seed in trace["seeds"]] == ["hybrid"]
    outcomes = {(step["source"], step["target"], step["type"]): step["outcome"] for step in trace["steps"]}
    assert outcomes["hybrid", "why", "caused_by"] == "reached"
    assert outcomes["hybrid", "x1", "caused_by"] == "archived edge"
    assert outcomes["hybrid", "x2", "caused_by"] == "edge of another time"
    assert outcomes["hybrid", "type:fact", "shared_node"] == "node of a form"
    assert [memory["id"] for memory in trace["expanded"]] == ["why", "must"]
    assert trace["expanded"][0]["why"]["edge_type"] == "caused_by"
    assert trace["caps"] == {"fan_out": [], "visited_at_hop": None}
    assert (trace["fallback"], trace["left_out"]) == ("rollout_off", 0)
