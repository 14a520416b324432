"""Filters and k, against brute force over all memories."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed

Run = Callable[..., Processed]

NOW = 1_000_000
TEXTS = ["The red bike is new", "Bo rides a bike to work", "Tea with milk?", "We rode far", "Tea is fine", ""]
CATEGORIES, TAGS, SESSIONS, NAMES, PROJECTS = (
    ["a", "b", "c"],
    ["x", "y", "z"],
    ["s", "t", "u"],
    ["Ann", "Bo"],
    ["p", "q"],
)
SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
TIMES = st.integers(0, 40).map(lambda step: step * 50_000)  # some lie ahead of the query

MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message"), "content": st.sampled_from(TEXTS), "timestamp": TIMES},
    optional={
        "role": st.sampled_from(["user", "assistant"]),
        "name": st.sampled_from(NAMES),
        "session_id": st.sampled_from(SESSIONS),
        "project_id": st.sampled_from(PROJECTS),
    },
)
MEMORY = st.fixed_dictionaries(
    {"type": st.just("memory"), "content": st.sampled_from(TEXTS[:-1]), "timestamp": TIMES},
    optional={
        "kind": st.sampled_from(["fact", "rule", "preference"]),
        "layer": st.sampled_from(["rule", "working", "long_term"]),
        "category": st.sampled_from(CATEGORIES),
        "tags": st.lists(st.sampled_from(TAGS), max_size=2),
        "name": st.sampled_from(NAMES),
        "session_id": st.sampled_from(SESSIONS),
        "project_id": st.sampled_from(PROJECTS),
        "confidence": st.sampled_from(SHARES),
        "expires_at": TIMES,
    },
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "categories": st.lists(st.sampled_from([*CATEGORIES, "none"]), min_size=1, max_size=2),
        "tags": st.lists(st.sampled_from([*TAGS, "none"]), min_size=1, max_size=2),
        "kinds": st.lists(st.sampled_from(["message", "fact", "rule", "preference", "none"]), min_size=1, max_size=3),
        "layers": st.lists(st.sampled_from(["rule", "working", "long_term"]), min_size=1, max_size=2),
        "roles": st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=2),
        "names": st.lists(st.sampled_from([*NAMES, "user", "none"]), min_size=1, max_size=2),
        "project_id": st.sampled_from([*PROJECTS, "none"]),
        "session_ids": st.lists(st.sampled_from([*SESSIONS, "none"]), min_size=1, max_size=2),
        "created_after": TIMES,
        "created_before": TIMES,
        "min_confidence": st.sampled_from(SHARES),
    },
)


def passes(event: dict[str, Any], filters: dict[str, Any]) -> bool:
    """Whether a memory may be in the answer, by the events alone."""
    is_message = event["type"] == "message"
    role = event.get("role", "user") if is_message else None
    told = {
        "categories": event.get("category"),
        "kinds": "message" if is_message else event.get("kind", "fact"),
        "layers": event.get("layer", "long_term"),
        "roles": role,
        "names": event.get("name", role),
        "session_ids": event.get("session_id"),
    }
    return (
        all(value in filters[name] for name, value in told.items() if name in filters)
        and ("tags" not in filters or not {*filters["tags"]}.isdisjoint(event.get("tags", [])))
        and ("project_id" not in filters or filters["project_id"] == event.get("project_id"))
        and filters.get("created_after", event["timestamp"]) <= event["timestamp"]
        and event["timestamp"] < filters.get("created_before", event["timestamp"] + 1)
        and event.get("confidence", 1.0) >= filters.get("min_confidence", 0.0)
        and event.get("expires_at", NOW + 1) > NOW
    )


@settings(max_examples=30)
@given(
    told=st.lists(MESSAGE | MEMORY, max_size=12),
    asked=st.lists(st.tuples(FILTERS, st.integers(1, 14)), min_size=1, max_size=4),
)
@pytest.mark.parametrize("mode", ["recency", "relevance"])
def test_an_answer_holds_k_of_exactly_the_memories_that_pass(
    run_flow: Run, mode: str, told: list[dict[str, Any]], asked: list[tuple[dict[str, Any], int]]
) -> None:
    owner = {"tenant_id": "acme", "user_id": "ann"}
    events = [owner | event | {"id": f"m{n}"} for n, event in enumerate(told)]
    ask = owner | {"type": "recall", "query": "Who rides the red bike?", "mode": mode, "timestamp": NOW}
    everything = run_flow([*events, ask | {"k": 50}]).responses[0]["memories"]
    order = [memory["id"] for memory in everything]
    by_id = {event["id"]: event for event in events}
    assert sorted(order) == sorted(event["id"] for event in events if passes(event, {}))
    if mode == "recency":
        times = [by_id[name]["timestamp"] for name in order]
        assert times == sorted(times, reverse=True)
    answers = run_flow([*events, *(ask | {"filters": filters, "k": k} for filters, k in asked)]).responses
    for (filters, k), answer in zip(asked, answers, strict=True):
        # The order does not depend on the filters, so the best k that pass are the first k of all that pass.
        expected = [name for name in order if passes(by_id[name], filters)][:k]
        assert [memory["id"] for memory in answer["memories"]] == expected
