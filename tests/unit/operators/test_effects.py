"""Effects of answers are counted once, despite repetition and kills."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.operators.answers import queries
from recallflow.operators.answers.answer import IDS_MOST, RETURNED_MOST, Marks
from recallflow.operators.step import Clocks
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, ReadPlace, answers, explained, make_event, run_flow

NOW_MS = 1_000_000


class Logs(Harness):
    """Logs of one time: taken in, one batch each, and answered."""

    def __init__(self, path: Path) -> None:
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: NOW_MS)
        super().__init__(path, clocks=clocks, record={"append_ms": NOW_MS})

    def answer(self, *, silent: bool = False) -> list[dict[str, Any]]:
        return [response for topic in self.lines for response in answers(self.read(topic, silent=silent))]

    def marks(self) -> int:
        return sum(key.startswith(keys.EFFECTS) for key, _ in self.records())


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    logs = Logs(tmp_path / "s")
    texts = {"a": "the red bike", "b": "green tea"}
    logs.write(MEMORIES, *(make_event("message", id=name, content=text) for name, text in texts.items()))
    return logs


def ask(**fields: Any) -> dict[str, Any]:
    return make_event("recall", 5_000, **{"query": "red bike", "k": 1} | fields)


def used(events: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    got = [make_event("memory.get", memory_id=name) for name in names]
    return [response["usage"] for response in run_flow([*events, *got]).responses[-len(names) :]]


def counts(logs: Logs, *names: str) -> list[int]:
    logs.write(QUERIES, *(make_event("memory.get", memory_id=name) for name in names))
    return [response["usage"]["count"] for response in logs.answer()[-len(names) :]]


def said(*texts: str) -> list[dict[str, Any]]:
    return [make_event("message", n, id=f"m{n}", content=text) for n, text in enumerate(texts)]


def test_returned_memories_are_counted_with_the_latest_time() -> None:
    events = [*said("the red bike", "green tea"), ask(), ask(timestamp=9_000), ask(timestamp=7_000)]
    nothing = {"count": 0, "last_accessed_at": None, "useful": 0, "not_useful": 0}
    assert used(events, "m0", "m1") == [nothing | {"count": 3, "last_accessed_at": "1970-01-01T00:00:09Z"}, nothing]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        *(([ask(mode=mode)], 1) for mode in ("hybrid", "relevance", "recency", "episode", "decayed", "balanced")),
        ([ask(as_of={"event_time": 6_000})], 0),
        ([ask(as_of={"ingestion_time": 6_000})], 0),
        ([ask(include_history=True)], 0),
        ([make_event("memory.get", memory_id="m0"), make_event("memory.history", memory_id="m0")], 0),
        ([ask(id="q"), ask(id="q"), ask(id="other"), ask(), ask()], 4),
        ([ask(id="q", user_id="bob"), ask(id="q")], 1),
    ],
)
def test_answers_about_now_count_once_per_query_id(asked: list[dict[str, Any]], count: int) -> None:
    assert used([*said("the red bike"), *asked], "m0")[0]["count"] == count


def test_only_the_latest_ids_are_known() -> None:
    events = said("the red bike") + [ask(id=f"q{n}") for n in range(IDS_MOST)]
    assert used([*events, ask(id="q0")], "m0")[0]["count"] == IDS_MOST
    assert used([*events, ask(id="new"), ask(id="q0")], "m0")[0]["count"] == IDS_MOST + 2


def test_a_session_remembers_the_newest_it_returned(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "s")
    logs.write(MEMORIES, *(make_event("memory", n, id=f"m{n}", content=f"tea {n}") for n in range(250)))
    asked = [{"created_after": low, "created_before": low + 50} for low in range(0, 250, 50)]
    logs.write(
        QUERIES,
        *(make_event("recall", 500, query="tea", k=50, session_id="s", filters=filters) for filters in asked),
        make_event("recall", 500, query="tea", k=50, session_id="s", filters=asked[1]),
    )
    logs.answer()
    (returned,) = logs.table(keys.SESSION)
    seqs = [int.from_bytes(returned[at : at + 8], "little") for at in range(0, len(returned), 8)]
    assert len(seqs) == RETURNED_MOST
    assert set(seqs) == set(range(50, 250))
    assert set(seqs[-50:]) == set(range(50, 100))  # asked for again


def test_failed_effects_do_not_fail_the_answer(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_way(_: Partition, __: Marks, hot: HotOwner, *___: object) -> None:
        hot.usage().count([0], 5)
        raise KeyError

    logs.answer()
    with monkeypatch.context() as patch:
        patch.setattr(queries, "stage_effects", half_way)
        logs.write(QUERIES, ask(), ask())
        assert [len(response["memories"]) for response in logs.answer()] == [1, 1]
    logs.write(QUERIES, ask())
    (response,) = logs.answer()
    assert explained(response)["a"]["factors"]["usage"] == 0  # what was counted half-way went with the owner
    assert counts(logs, "a") == [1]


def test_feedback_is_counted_on_its_side_once_per_event() -> None:
    named = {"useful": True, "id": "f"}
    voices: list[dict[str, Any]] = [{"useful": True}, {"useful": True}, {"useful": False}, named, named]
    events = [make_event("memory.feedback", memory_id="m0", **fields) for fields in voices]
    nothing = {"count": 0, "last_accessed_at": None}
    assert used([*said("tea"), *events], "m0") == [nothing | {"useful": 3, "not_useful": 1}]


def test_feedback_on_an_unknown_memory_is_refused() -> None:
    feedback = make_event("memory.feedback", memory_id="m0", useful=True, receipt=True)
    forget = make_event("memory.forget", memory_id="m0")
    done = run_flow([feedback, *said("tea"), feedback, forget, feedback])
    assert [letter["error"]["code"] for letter in done.rejected] == ["not_found"] * 2
    assert [letter["error"]["fields"][0]["field"] for letter in done.rejected] == ["memory_id"] * 2
    assert [(receipt["outcome"], receipt["memory_id"]) for receipt in done.receipts] == [("updated", "m0")]


def test_a_rebuild_brings_feedback_back_and_answers_nothing(logs: Logs) -> None:
    logs.write(MEMORIES, make_event("memory.feedback", memory_id="a", useful=True))
    logs.write(QUERIES, ask())
    assert logs.answer(silent=True) == []
    logs.write(QUERIES, make_event("memory.get", memory_id="a"))
    (response,) = logs.answer()
    assert response["usage"] == {"count": 0, "last_accessed_at": None, "useful": 1, "not_useful": 0}


def test_marks_are_removed_with_the_last_snapshot_that_needs_them(logs: Logs) -> None:
    logs.write(QUERIES, ask(), ask())
    logs.answer()
    kept = []
    for _ in range(4):
        logs.mark()
        kept.append(logs.marks())
    # Written before the first snapshot, which is surely committed by the third.
    assert kept == [2, 2, 0, 0]


STEP = st.sampled_from(["tell", "ask", "again", "judge", "snapshot", "kill"])


@settings(max_examples=share(0.3))
@given(steps=st.lists(st.tuples(STEP, st.integers(0, 5)), min_size=4, max_size=16))
def test_kills_change_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """The same logs give the same usage and the same answers, killed at any moments from any surely committed snapshot
    or not."""
    killed, whole = (Logs(tmp_path_factory.mktemp("logs") / "s") for _ in range(2))
    snapshots: list[ReadPlace | None] = [None]
    for logs in (killed, whole):
        logs.write(MEMORIES, make_event("message", id="first", content="a red bike with tea"))
        logs.answer()
    told = 0
    for step, number in steps:
        event: tuple[str, dict[str, Any]] | None = None
        match step:
            case "tell":
                text = ["red bike", "green tea"][number % 2]
                event = MEMORIES, make_event("message", told, id=f"m{told}", content=text)
                told += 1
            case "ask":
                query = ["red bike", "tea", "what?"][number % 3]
                event = QUERIES, make_event("recall", told, query=query, k=2, session_id=f"s{number % 2}")
            case "again":
                event = QUERIES, make_event("recall", told, id=f"q{number}", query="bike", k=1)
            case "judge":
                event = MEMORIES, make_event("memory.feedback", memory_id=f"m{number}", useful=number % 3 > 0)
            case "snapshot":
                snapshots = [*snapshots, killed.mark()][-2:]
                whole.mark()
            case "kill":
                killed.kill(snapshots[0] if number % 2 else snapshots[-1])
                snapshots = snapshots[-1:] if number % 2 == 0 else snapshots[:1]
        if event is not None:
            killed.write(*event)
            whole.write(*event)
        killed.answer()
        whole.answer()
    final = [make_event("recall", 900, query="bike", k=10, session_id=f"s{n}") for n in range(2)]
    for logs in (killed, whole):
        logs.write(QUERIES, *final)
    one, other = (logs.answer()[-2:] for logs in (killed, whole))
    assert [explained(answer) for answer in one] == [explained(answer) for answer in other]
    assert killed.table(keys.USAGE) == whole.table(keys.USAGE)
    for logs in (killed, whole):
        logs.stop()
