"""Superseded memories are out of answers about now, and come back for questions about before; conflicts are named."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow.flows.embedded import Processed

Run = Callable[..., Processed]
Event = Callable[..., dict[str, Any]]


def edge(kind: str, **more: Any) -> dict[str, Any]:
    return {"edges": [{"source": "new", "target": "old", "type": kind} | more]}


@pytest.fixture
def log(make_event: Event) -> list[dict[str, Any]]:
    return [
        make_event("memory", 10, id="old", content="Ann takes her tea with milk"),
        make_event("memory", 20, id="new", content="Ann takes her tea without milk"),
    ]


def found(response: dict[str, Any]) -> set[str]:
    return {memory["id"] for memory in response["memories"]}


def test_a_refined_memory_is_out_until_the_edge_goes(run_flow: Run, make_event: Event, log: Any) -> None:
    ask = make_event("recall", 50, query="tea with milk?")
    done = run_flow(
        [
            *log,
            make_event("graph.edges", 30, **edge("supersedes")),
            ask,
            make_event("graph.edges", 40, **edge("supersedes", archived=True)),
            ask,
        ]
    )
    assert [found(response) for response in done.responses] == [{"new"}, {"new", "old"}]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"new"}),
        ({"include_history": True}, {"new", "old"}),
        ({"as_of": {"ingestion_time": 29}}, {"new", "old"}),
        ({"as_of": {"ingestion_time": 30}}, {"new"}),
        ({"as_of": {"event_time": 19}}, {"old"}),
        ({"as_of": {"event_time": 29}}, {"new", "old"}),
        ({"as_of": {"event_time": 30}}, {"new"}),
    ],
)
def test_it_comes_back_for_questions_about_before(
    run_flow: Run, make_event: Event, log: Any, asked: dict[str, Any], expected: set[str]
) -> None:
    refined = make_event("graph.edges", 30, **edge("supersedes"))
    done = run_flow([*log, refined, make_event("recall", 50, query="tea with milk?", **asked)])
    assert found(done.responses[0]) == expected


def test_a_refinement_that_expires_refines_no_longer(run_flow: Run, make_event: Event, log: Any) -> None:
    refined = make_event("graph.edges", 30, **edge("supersedes", expires_at=45))
    asked = [make_event("recall", at, query="tea with milk?") for at in (44, 45)]
    done = run_flow([*log, refined, *asked])
    assert [found(response) for response in done.responses] == [{"new"}, {"new", "old"}]


def test_forgetting_the_newer_one_brings_the_older_one_back(run_flow: Run, make_event: Event, log: Any) -> None:
    refined = make_event("graph.edges", 30, **edge("supersedes"))
    forgotten = make_event("memory.forget", 40, memory_id="new")
    done = run_flow([*log, refined, forgotten, make_event("recall", 50, query="tea with milk?")])
    assert found(done.responses[0]) == {"old"}


def test_a_contradiction_shows_in_the_next_answer(run_flow: Run, make_event: Event, log: Any) -> None:
    # What a question found of the graph is kept for the next one, until an event changes it.
    asked = [make_event("recall", at, query="tea with milk?") for at in (20, 50)]
    done = run_flow([*log, asked[0], make_event("graph.edges", 30, **edge("contradicts")), asked[1]])
    before, after = ([memory.get("conflicts_with") for memory in r["memories"]] for r in done.responses)
    assert (any(before), all(after)) == (False, True)


def test_contradicting_memories_stay_and_name_each_other(run_flow: Run, make_event: Event, log: Any) -> None:
    done = run_flow(
        [*log, make_event("graph.edges", 30, **edge("contradicts")), make_event("recall", 50, query="tea with milk?")]
    )
    named = {memory["id"]: memory.get("conflicts_with") for memory in done.responses[0]["memories"]}
    assert named == {"new": ["old"], "old": ["new"]}


def test_a_memorys_history_tells_what_refines_it_and_why(run_flow: Run, make_event: Event, log: Any) -> None:
    refined = make_event("graph.edges", 30, **edge("supersedes", evidence="new"))
    done = run_flow([*log, refined, make_event("memory.history", 50, memory_id="old")])
    told = [(e["source"], e["type"], e["target"], e["evidence"]) for e in done.responses[0]["edges"]]
    assert ("new", "supersedes", "old", ["new"]) in told
