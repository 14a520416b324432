"""Questions about the past, and the time at which an event came in."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.operators.recall import moment
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, FlatEmbedder, Harness, answers, explained, make_event, run_flow

MINUTE_MS = 60_000

TEXTS = ["The red bike is new", "Bo rides a bike to work", "Tea with milk?", "We rode far on red bikes", "Tea is fine"]
IDS = ["a", "b", "c", "d"]
CREATE = st.fixed_dictionaries(
    {
        "type": st.just("message"), "id": st.sampled_from(IDS), "content": st.sampled_from(TEXTS),
        "session_id": st.sampled_from(["s", "t"]), "name": st.sampled_from(["Ann", "Bo"]),
    }
)  # fmt: skip
FACT = st.fixed_dictionaries(
    {"type": st.just("memory"), "id": st.sampled_from(["f", "g"]), "content": st.sampled_from(TEXTS)}
)
UPDATE = st.fixed_dictionaries(
    {"type": st.just("memory.update"), "memory_id": st.sampled_from([*IDS, "f"])},
    optional={
        "content": st.sampled_from(TEXTS),
        "importance": st.sampled_from([0.1, 0.9]),
        "expires_at": st.integers(0, 400).map(lambda minutes: minutes * MINUTE_MS),
    },
)
FORGET = st.fixed_dictionaries({"type": st.just("memory.forget"), "memory_id": st.sampled_from([*IDS, "f"])})
END = st.fixed_dictionaries({"type": st.just("episode.end"), "session_id": st.sampled_from(["s", "t"])})
AT = st.integers(0, 30).map(lambda step: step * 10 * MINUTE_MS)


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
def test_past_answer_equals_the_answer_given_then(
    before: list[dict[str, Any]], after: list[dict[str, Any]], mode: str, at_once: int
) -> None:
    then_ms = max(accumulate((event["timestamp"] for event in before), max), default=0)
    later = [event | {"timestamp": event["timestamp"] + then_ms + 1} for event in after]
    query = {"type": "recall", "query": "Who rides the red bike?", "mode": mode, "k": 10, "explain": True}
    then = run_flow(owned([*before, query | {"timestamp": then_ms}]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment, "AT_ONCE", at_once)
        now = run_flow(
            owned([*before, *later, query | {"timestamp": then_ms * 9, "as_of": {"ingestion_time": then_ms}}])
        )
    assert asked(now.responses[0]) == asked(then.responses[0])
    assert explained(now.responses[0]) == explained(then.responses[0])


def contents(response: dict[str, Any]) -> set[str]:
    return {memory["content"] for memory in response["memories"]}


@settings(max_examples=share(0.5))
@given(edits=st.lists(st.integers(0, 30), max_size=5), at_ms=st.integers(0, 35))
def test_latest_version_of_the_moment_is_shown(edits: list[int], at_ms: int) -> None:
    events = [make_event("memory", 5, id="home", content="Ann lives in town 0")]
    events += [
        make_event("memory.update", edited_ms, memory_id="home", content=f"Ann lives in town {number}")
        for number, edited_ms in enumerate(edits, 1)
    ]
    asked_at = make_event("recall", 99, query="Where does Ann live?", as_of={"event_time": at_ms})
    done = run_flow([*events, asked_at])
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
        ("home", 0): False, ("home", 1): True, ("flat", 0): False, ("old", 0): False, ("new", 0): True,
    }  # fmt: skip
    first, second = history["home", 0], history["home", 1]
    assert (first["created_at"], first["updated_at"]) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z")
    assert (second["created_at"], second["updated_at"]) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:05Z")
    assert (first["project_id"], first["importance"], first["entities"]) == ("p1", 0.7, [{"name": "Ann"}])
    assert first["explanation"] != second["explanation"]
    assert [*then] == [("home", 0)]
    assert not then["home", 0]["current"]
    assert {*now} == {("home", 1), ("new", 0)}
    assert all(memory["current"] for memory in now.values())


FAR_MS = 253_402_214_400_000  # in the year 9999
OTHERS = [{"tenant_id": "globex"}, {"user_id": "bob"}, {"environment": "staging"}]


class Log(Harness):
    def append(self, at_ms: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        return answers(self.run(MEMORIES, event, append_ms=at_ms))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "s", FlatEmbedder(), one_log=True)


def known(responses: list[dict[str, Any]]) -> list[set[str]]:
    return [{memory["id"] for memory in response["memories"]} for response in responses]


@pytest.mark.parametrize("other", OTHERS)
def test_a_logs_clock_is_its_owners_too(log: Log, other: dict[str, str]) -> None:
    log.append(FAR_MS, make_event("memory", 1, id="ahead", content="tea") | other)
    log.append(4, make_event("memory", 1, id="mine", content="tea"))
    asks = make_event("recall", 9, query="tea", as_of={"ingestion_time": 5})
    assert known(log.append(9, asks) + log.append(9, asks | other)) == [{"mine"}, set()]


@settings(max_examples=share(0.5))
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["ann", "bob"]), st.booleans()), max_size=9))
def test_ingestion_time_of_an_owner_never_goes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, bool]]
) -> None:
    log = Log(tmp_path_factory.mktemp("log") / "s", FlatEmbedder(), one_log=True)
    latest = dict[str, int]()
    for number, (at_ms, user, restart) in enumerate(steps):
        if restart:
            log.restart()
        told = make_event("memory", 50 - number, id=f"m{number}", content="tea") | {"user_id": user}
        log.append(at_ms, told)
        latest[user] = max(latest.get(user, 0), at_ms)
        asked = make_event("memory.get", memory_id=f"m{number}") | {"user_id": user}
        (answer,) = log.append(0, asked)
        assert answer["versions"][0]["ingested_at"] == f"1970-01-01T00:00:00.{latest[user]:03d}Z".replace(".000Z", "Z")
    log.stop()
