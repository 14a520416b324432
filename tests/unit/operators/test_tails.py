"""Owners and outputs kept in memory and on disk, and for how long."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.settings import Settings
from recallflow.operators import outbox
from recallflow.outputs import DeadLetter, Receipted
from recallflow.records import Position, Record
from recallflow.state import directory, keys, segments
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwners
from recallflow.state.segment import Segment
from recallflow.state.trace_search import Pieces
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, Harness, ReadPlace, answers, make_event, receipts

WORDS = ("ferry", "walnut", "lantern", "Porto", "violin")
USERS = ("ann", "bo")
STAY, LEAVE = 1 << 30, 1  # bytes of owners in memory: all stay, or all leave after each batch
EVENT = st.tuples(st.sampled_from(["say"] * 4 + ["update", "forget", "ask"]), st.sampled_from(USERS), st.integers(0, 9))
BATCH = st.lists(EVENT, min_size=1, max_size=12)
# Of one process after the other; each one ends well, and packs what it has of the newest memories.
LIVES = st.lists(
    st.tuples(st.sampled_from([STAY, LEAVE]), st.lists(BATCH, min_size=1, max_size=4)), min_size=1, max_size=4
)
Batch = list[tuple[str, str, int]]


@pytest.fixture(scope="module")
def budgets() -> Iterator[list[int]]:
    """The last one is the budget of the next process. A short log makes segments of both sizes."""
    found = [STAY]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", 4)
        patch.setattr(segments, "LARGE", 8)
        patch.setattr(directory, "HotOwners", lambda _: HotOwners(found[-1]))
        yield found


class Log:
    def __init__(self, *users: str) -> None:
        self._said: dict[str, list[str]] = {user: [] for user in users or USERS}
        self._number = 0

    def batch(self, drawn: Batch) -> list[dict[str, Any]]:
        return [self._event(*one) for one in drawn]

    def _event(self, action: str, user: str, at: int) -> dict[str, Any]:
        self._number += 1
        said, text = self._said[user], f"{WORDS[self._number % 5]} {WORDS[at % 5]} {self._number}"
        of = said[-1 - at % len(said)] if said else "nothing"
        told: dict[str, Any] = {"type": "recall", "query": text, "k": 20}
        if action == "say":
            said.append(f"m{self._number}")
            told = {"type": "message", "id": said[-1], "content": text, "session_id": f"s{at % 2}", "role": "user"}
        elif action == "update":
            told = {"type": "memory.update", "memory_id": of, "content": f"now {text}"}
        elif action == "forget":
            told = {"type": "memory.forget", "memory_id": of}
        return told | {"tenant_id": "acme", "user_id": user, "timestamp": 60_000 * (self._number - at)}


def questions() -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"type": "recall", "query": f"Who took the {word}?", "k": 99} for word in WORDS]
    asked += [{"type": "user.stats"}, {"type": "episodes.list"}]
    return [one | {"tenant_id": "acme", "user_id": user, "timestamp": 6_000_000} for user in USERS for one in asked]


def comparable(outputs: list[Any]) -> list[dict[str, Any]]:
    found = answers(outputs)
    for one in found:
        one.get("routing_info", {}).pop("cache_hits", None)
    return found


@settings(max_examples=share(0.2))
@given(lives=LIVES)
def test_evicted_owner_answers_like_a_cached_one(budgets: list[int], lives: list[tuple[int, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        budgets.append(STAY)
        one, log = Harness(Path(folder) / "one", one_log=True), Log()
        batches = [[log.batch(drawn) for drawn in life] for _, life in lives]
        expected = [comparable(one.run(MEMORIES, *batch)) for life in batches for batch in life]
        expected.append(comparable(one.run(MEMORIES, *questions())))

        budgets.append(lives[0][0])
        many = Harness(Path(folder) / "many", one_log=True)
        said = []
        for (budget, _), life in zip(lives, batches, strict=True):
            budgets.append(budget)
            many.restart()
            said += [comparable(many.run(MEMORIES, *batch)) for batch in life]
        many.restart()
        said.append(comparable(many.run(MEMORIES, *questions())))
        assert said == expected
        assert many.hash() == one.hash()
        many.stop()
        one.stop()
        assert verify(Path(folder) / "many").problems == []


def tails(harness: Harness) -> Iterator[int]:
    for key, value in harness.directory.partition(0).scan(keys.OWNERS):
        if keys.split(key)[1] == keys.SEGMENT:
            found = Segment.decode(value, "hash-384", 384)
            assert found is not None
            if found.end != keys.sequence(key):
                yield found.size


def test_packing_at_the_end_is_bounded(budgets: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "PACKED_AT_END", 12)
    budgets.append(STAY)
    harness = Harness(tmp_path / "s", one_log=True)
    for user in range(9):
        said = [("say", f"u{user}", 0)] * 3
        # Each third of them in a worker of its own, which is a thread.
        with ThreadPoolExecutor(1) as worker:
            worker.submit(harness.run, MEMORIES, *Log(f"u{user}").batch(said)).result()
    harness.restart()
    assert [*tails(harness)] == [3] * 4


EACH = 4  # events between two snapshots: receipts, and one that is refused by the state


def came(engine: Harness) -> list[tuple[int, str]]:
    found = []
    for output in engine.read(MEMORIES, EACH):
        match output:
            case Receipted():
                found.append((output.position.offset, receipts([output])[0]["outcome"]))
            case DeadLetter():
                found.append((output.position.offset, output.error.code))
    return found


def event(at: int) -> dict[str, Any]:
    if at % EACH == 0:
        return make_event("memory.update", at, memory_id="nobody's", content="Tea")
    return make_event("memory", at, id=f"m{at}", content=f"Bike {at}", receipt=True)


def kept(engine: Harness) -> int:
    return sum(key.startswith(keys.OUTBOX) for key, _ in engine.records())


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("whole", [3, 4, 7])
def test_outputs_come_again_from_any_recent_snapshot(tmp_path: Path, whole: int, back: int) -> None:
    engine = Harness(tmp_path / "s")
    engine.write(MEMORIES, *(event(at) for at in range(whole * EACH)))
    first = []
    snapshots: list[ReadPlace | None] = [None]
    for _ in range(whole):
        first += came(engine)
        snapshots.append(engine.mark())
    assert len(first) == whole * EACH
    engine.kill(snapshots[whole - back])  # within the last snapshot, or right behind it
    again = [output for _ in range(back) for output in came(engine)]
    assert again == first[-back * EACH :]


def test_key_equal_to_the_records_is_not_stored(tmp_path: Path) -> None:
    record = Record(Position(MEMORIES, 0, 7), b"{}", 0, key=b"acme/ann@example.com")
    outputs = [
        Receipted(record.position, 0, b"acme/ann@example.com", b"{}"),
        Receipted(record.position, 1, b"another's", b"{}"),
    ]
    fingerprint = Settings(partitions=1).fingerprint(Settings().load_embedder())
    with StateDirectory.open(tmp_path / "s", fingerprint, 1024 * 1024) as directory:
        partition = directory.partition(0)
        stored = outbox.encode(partition, record, outputs)
        partition.stage(stored)
        assert outbox.read(partition, record) == outputs
    (value,) = stored.values()
    assert not Pieces([b"ann@example.com"]).find_in(value or b"")
