"""When an event came in: the log's time, on a clock that is its owner's own."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.groups import share
from tests.unit.operators.harness import MEMORIES, FlatEmbedder, Harness, answers, make_event, run_flow

FAR_MS = 253_402_214_400_000  # in the year 9999
OTHERS = [{"tenant_id": "globex"}, {"user_id": "bob"}, {"environment": "staging"}]


class Log(Harness):
    """A log that tells when it took each record in."""

    def append(self, at_ms: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        return answers(self.run(MEMORIES, event, append_ms=at_ms))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "s", FlatEmbedder(), one_log=True)


def known(responses: list[dict[str, Any]]) -> list[set[str]]:
    return [{memory["id"] for memory in response["memories"]} for response in responses]


@pytest.mark.parametrize("other", OTHERS)
def test_a_date_far_ahead_is_of_its_own_owner_only(other: dict[str, str]) -> None:
    ahead = make_event("memory", FAR_MS, id="ahead", content="tea") | other
    asks = make_event("recall", 9, query="tea", as_of={"ingestion_time": 5})
    done = run_flow([ahead, make_event("memory", 4, id="mine", content="tea"), asks, asks | other])
    assert known(done.responses) == [{"mine"}, set()]


def test_line_of_a_file_arrives_at_its_own_time() -> None:
    told = [make_event("memory", at, id=f"m{at}", content="tea") for at in (2, FAR_MS, 3)]
    asks = [make_event("recall", 9, query="tea", as_of={"ingestion_time": at}) for at in (1, 2, 3, FAR_MS)]
    done = run_flow([*told, *asks])
    assert known(done.responses) == [set(), {"m2"}, {"m2", "m3"}, {"m2", "m3", f"m{FAR_MS}"}]


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


@pytest.mark.parametrize("mode", ["relevance", "hybrid", "episode"])
def test_any_moment_is_answered_for_unordered_lines(mode: str) -> None:
    said = [make_event("message", at, id=f"m{at}", content=f"tea {at}", session_id="s") for at in (9_000, 1, FAR_MS, 5)]
    changed = make_event("memory.update", 2, memory_id="m9000", content="tea, later")
    gone = make_event("memory.forget", 3, memory_id="m1")
    asks = [
        make_event("recall", 9, query="tea", mode=mode, as_of={"ingestion_time": at}) for at in (0, 2, 7, 9_000, FAR_MS)
    ]
    done = run_flow([*said, changed, gone, *asks])
    assert known(done.responses) == [set(), {"m9000"}, {"m9000", "m5"}, {"m9000", "m5"}, {"m9000", "m5", f"m{FAR_MS}"}]
