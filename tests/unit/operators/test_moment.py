"""Questions about another moment: what the engine knew then, what had happened by then, and what was replaced since."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed

Run = Callable[..., Processed]
Event = Callable[..., dict[str, Any]]

MINUTE = 60_000
TEXTS = ["The red bike is new", "Bo rides a bike to work", "Tea with milk?", "We rode far on red bikes", "Tea is fine"]
IDS = ["a", "b", "c", "d"]
CREATE = st.fixed_dictionaries(
    {
        "type": st.just("message"),
        "id": st.sampled_from(IDS),
        "content": st.sampled_from(TEXTS),
        "session_id": st.sampled_from(["s", "t"]),
        "name": st.sampled_from(["Ann", "Bo"]),
    }
)
FACT = st.fixed_dictionaries(
    {"type": st.just("memory"), "id": st.sampled_from(["f", "g"]), "content": st.sampled_from(TEXTS)}
)
UPDATE = st.fixed_dictionaries(
    {"type": st.just("memory.update"), "memory_id": st.sampled_from([*IDS, "f"])},
    optional={
        "content": st.sampled_from(TEXTS),
        "importance": st.sampled_from([0.1, 0.9]),
        "expires_at": st.integers(0, 400).map(lambda minutes: minutes * MINUTE),
    },
)
FORGET = st.fixed_dictionaries({"type": st.just("memory.forget"), "memory_id": st.sampled_from([*IDS, "f"])})
END = st.fixed_dictionaries({"type": st.just("episode.end"), "session_id": st.sampled_from(["s", "t"])})
AT = st.integers(0, 30).map(lambda step: step * 10 * MINUTE)


def timed(steps: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.tuples(steps, AT).map(lambda pair: pair[0] | {"timestamp": pair[1]}), max_size=8)


def owned(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"tenant_id": "acme", "user_id": "ann"} | event for event in events]


def asked(response: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What an answer says, without what only tells of the run."""
    return [(m["rank"], m["id"], m["content"], m["score"], m["episode_id"]) for m in response["memories"]]


@settings(max_examples=40)
@given(
    before=timed(st.one_of(CREATE, CREATE, FACT, UPDATE, FORGET, END)),
    after=timed(st.one_of(CREATE, FACT, UPDATE, END)),
    mode=st.sampled_from(["relevance", "hybrid", "recency", "episode"]),
)
def test_what_was_known_then_is_what_an_engine_answers_that_saw_no_more(
    run_flow: Run, before: list[dict[str, Any]], after: list[dict[str, Any]], mode: str
) -> None:
    moment = max(accumulate((event["timestamp"] for event in before), max), default=0)
    later = [event | {"timestamp": event["timestamp"] + moment + 1} for event in after]
    query = {"type": "recall", "query": "Who rides the red bike?", "mode": mode, "k": 10}
    then = run_flow(owned([*before, query | {"timestamp": moment}]))
    now = run_flow(owned([*before, *later, query | {"timestamp": moment * 9, "as_of": {"ingestion_time": moment}}]))
    assert asked(now.responses[0]) == asked(then.responses[0])
    assert now.responses[0]["explanations"] == then.responses[0]["explanations"]


def test_a_forgotten_memory_is_in_no_past(run_flow: Run, make_event: Event) -> None:
    done = run_flow(
        [
            make_event("memory", 1, id="a", content="The code is 1234"),
            make_event("memory.update", 2, memory_id="a", content="The code is 9999"),
            make_event("memory.forget", 3, memory_id="a"),
            make_event("recall", 4, query="code", as_of={"ingestion_time": 1}),
            make_event("recall", 4, query="code", include_history=True),
        ]
    )
    assert [response["memories"] for response in done.responses] == [[], []]


def test_a_replaced_version_comes_back_at_its_moment_with_its_own_words(run_flow: Run, make_event: Event) -> None:
    done = run_flow(
        [
            make_event("memory", 1, id="home", content="Ann lives in Leeds"),
            make_event("memory.update", 5, memory_id="home", content="Ann lives in Porto"),
            make_event("recall", 9, query="Where does Ann live?", as_of={"ingestion_time": 4}),
            make_event("recall", 9, query="Where does Ann live?"),
        ]
    )
    assert [r["memories"][0]["content"] for r in done.responses] == ["Ann lives in Leeds", "Ann lives in Porto"]


def test_history_holds_every_version_and_what_expired(run_flow: Run, make_event: Event) -> None:
    done = run_flow(
        [
            make_event("memory", 1, id="home", content="Ann lives in Leeds"),
            make_event("memory.update", 5, memory_id="home", content="Ann lives in Porto"),
            make_event("memory", 6, id="flat", content="Ann lives at a friend's", expires_at=7),
            make_event("recall", 9, query="Where does Ann live?"),
            make_event("recall", 9, query="Where does Ann live?", include_history=True),
        ]
    )
    now, history = ({m["content"] for m in response["memories"]} for response in done.responses)
    assert now == {"Ann lives in Porto"}
    assert history == {"Ann lives in Porto", "Ann lives in Leeds", "Ann lives at a friend's"}


@pytest.mark.parametrize(("event_ms", "found"), [(4, set()), (5, {"a"}), (9, {"a"}), (10, {"a", "b"}), (20, {"b"})])
def test_an_event_time_is_a_line_across_what_happened_and_what_held(
    run_flow: Run, make_event: Event, event_ms: int, found: set[str]
) -> None:
    done = run_flow(
        [
            make_event("memory", 10, id="b", content="A bike"),
            make_event("memory", 5, id="a", content="A red bike", valid_to=20),
            make_event("recall", 30, query="bike", as_of={"event_time": event_ms}),
        ]
    )
    assert {m["id"] for m in done.responses[0]["memories"]} == found


def test_an_answer_about_the_past_leaves_an_owner_as_it_is(run_flow: Run, make_event: Event) -> None:
    events = [make_event("memory", at, id=f"m{at}", content=f"Bike number {at}") for at in range(5)]
    ask = make_event("recall", 9, query="bike")
    past = make_event("recall", 9, query="bike", as_of={"ingestion_time": 2})
    done = run_flow([*events, past, ask])
    assert asked(done.responses[1]) == asked(run_flow([*events, ask]).responses[0])
