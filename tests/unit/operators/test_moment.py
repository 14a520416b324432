"""Questions about another moment: what the engine knew then, what had happened by then, and what was replaced since."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.operators.recall import moment
from tests.groups import share
from tests.unit.operators.harness import explained, make_event, run_flow

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
    return [(m["rank"], m["id"], m["content"], m["score"], m["episode_id"]) for m in response["memories"]]


@settings(max_examples=share(0.4))
@given(
    before=timed(st.one_of(CREATE, CREATE, FACT, UPDATE, FORGET, END)),
    after=timed(st.one_of(CREATE, FACT, UPDATE, END)),
    mode=st.sampled_from(["relevance", "hybrid", "recency", "episode"]),
    at_once=st.sampled_from([1, 2, moment.AT_ONCE]),
)
def test_past_is_what_an_engine_knew_then(
    before: list[dict[str, Any]], after: list[dict[str, Any]], mode: str, at_once: int
) -> None:
    then_ms = max(accumulate((event["timestamp"] for event in before), max), default=0)
    later = [event | {"timestamp": event["timestamp"] + then_ms + 1} for event in after]
    query = {"type": "recall", "query": "Who rides the red bike?", "mode": mode, "k": 10}
    then = run_flow(owned([*before, query | {"timestamp": then_ms}]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment, "AT_ONCE", at_once)
        now = run_flow(
            owned([*before, *later, query | {"timestamp": then_ms * 9, "as_of": {"ingestion_time": then_ms}}])
        )
    assert asked(now.responses[0]) == asked(then.responses[0])
    assert explained(now.responses[0]) == explained(then.responses[0])


def test_a_forgotten_memory_is_in_no_past() -> None:
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


@pytest.mark.parametrize(("event_ms", "found"), [(4, set()), (5, {"a"}), (9, {"a"}), (10, {"a", "b"}), (20, {"b"})])
def test_moment_separates_past_and_later_events(event_ms: int, found: set[str]) -> None:
    done = run_flow(
        [
            make_event("memory", 10, id="b", content="A bike"),
            make_event("memory", 5, id="a", content="A red bike", valid_to=20),
            make_event("recall", 30, query="bike", as_of={"event_time": event_ms}),
        ]
    )
    assert {m["id"] for m in done.responses[0]["memories"]} == found


def test_past_query_leaves_the_owner_unchanged() -> None:
    events = [make_event("memory", at, id=f"m{at}", content=f"Bike number {at}") for at in range(5)]
    ask = make_event("recall", 9, query="bike")
    past = make_event("recall", 9, query="bike", as_of={"ingestion_time": 2})
    done = run_flow([*events, past, ask])
    assert asked(done.responses[1]) == asked(run_flow([*events, ask]).responses[0])


def contents(response: dict[str, Any]) -> set[str]:
    return {memory["content"] for memory in response["memories"]}


def at_event_time(at_ms: int, **fields: Any) -> dict[str, Any]:
    return make_event("recall", 99, query="Where does Ann live?", as_of={"event_time": at_ms}, **fields)


def test_an_edit_is_of_its_own_event_time() -> None:
    done = run_flow(
        [
            make_event("memory", 10, id="home", content="Ann lives in Leeds", tags=["then"]),
            make_event("memory", 11, id="tea", content="Ann likes tea"),
            make_event("memory.update", 20, memory_id="home", content="Ann lives in Porto", tags=["now"]),
            *(at_event_time(at_ms) for at_ms in (9, 10, 19, 20, 99)),
            at_event_time(19, filters={"tags": ["now"]}),
            at_event_time(19, mode="recency", include_history=True),
            at_event_time(20, mode="recency", include_history=True),
        ]
    )
    *shown, filtered, earlier, later = (contents(response) for response in done.responses)
    assert shown[:2] == [set(), {"Ann lives in Leeds"}]
    assert shown[2] == {"Ann lives in Leeds", "Ann likes tea"}
    assert shown[3] == shown[4] == {"Ann lives in Porto", "Ann likes tea"}
    assert filtered == set()
    assert earlier == {"Ann lives in Leeds", "Ann likes tea"}
    assert later == {"Ann lives in Leeds", "Ann lives in Porto", "Ann likes tea"}


@settings(max_examples=share(0.5))
@given(edits=st.lists(st.integers(0, 30), max_size=5), at_ms=st.integers(0, 35))
def test_latest_version_of_the_moment_is_shown(edits: list[int], at_ms: int) -> None:
    events = [make_event("memory", 5, id="home", content="Ann lives in town 0")]
    events += [
        make_event("memory.update", edited_ms, memory_id="home", content=f"Ann lives in town {number}")
        for number, edited_ms in enumerate(edits, 1)
    ]
    done = run_flow([*events, at_event_time(at_ms)])
    made = [number for number, edited_ms in enumerate([5, *edits]) if edited_ms <= at_ms]
    assert contents(done.responses[0]) == ({f"Ann lives in town {max(made)}"} if at_ms >= 5 else set())


def test_a_history_tells_its_versions_apart() -> None:
    about = {"project_id": "p1", "importance": 0.7, "entities": [{"name": "Ann"}]}
    done = run_flow(
        [
            make_event("memory", 1_000, id="home", content="Ann lives in Leeds", **about),
            make_event("memory.update", 5_000, memory_id="home", content="Ann lives in Porto"),
            make_event("memory", 6_000, id="flat", content="Ann lives at a friend's", expires_at=7_000),
            make_event("memory", 6_000, id="old", content="Ann lives in a barn"),
            make_event("memory", 6_500, id="new", content="She lives in a house"),
            make_event("graph.edges", 6_600, edges=[{"source": "new", "type": "supersedes", "target": "old"}]),
            make_event("recall", 9_000, query="Where does Ann live?", include_history=True),
            make_event("recall", 9_000, query="Where does Ann live?", as_of={"ingestion_time": 4_000}),
            make_event("recall", 9_000, query="Where does Ann live?"),
        ]
    )
    history, then, now = ({(m["id"], m["version"]): m for m in response["memories"]} for response in done.responses)
    assert {key: memory["current"] for key, memory in history.items()} == {
        ("home", 0): False,
        ("home", 1): True,
        ("flat", 0): False,
        ("old", 0): False,
        ("new", 0): True,
    }
    first, second = history["home", 0], history["home", 1]
    assert (first["created_at"], first["updated_at"]) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z")
    assert (second["created_at"], second["updated_at"]) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:05Z")
    assert (first["project_id"], first["importance"], first["entities"]) == ("p1", 0.7, [{"name": "Ann"}])
    assert first["explanation"] != second["explanation"]
    assert [*then] == [("home", 0)]
    assert not then["home", 0]["current"]
    assert {*now} == {("home", 1), ("new", 0)}
    assert all(memory["current"] for memory in now.values())
