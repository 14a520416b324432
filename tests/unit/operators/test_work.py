"""Large events are applied in steps: no query sees a part of one, and kills change nothing."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.operators import large
from recallflow.operators.answers import parked_queries
from recallflow.operators.recall import moment
from recallflow.outputs import Ack, Output
from recallflow.records import Record
from recallflow.state import keys
from recallflow.state.graph_codec import decode_neighbours
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, ReadPlace, answers, letters, make_event, receipts

MINUTE_MS = 60_000

GONE, LEFT = 9, 4  # messages of Ann's that are forgotten, and that are not


class Engine(Harness):
    def __init__(self, path: Path) -> None:
        self.outputs: list[Output] = []
        self.last: ReadPlace | None = None
        super().__init__(path, record={"headers": (("h", b"1"),)})

    def take(self, records: Iterable[Record]) -> list[Output]:
        self.outputs += (found := super().take(records))
        return found

    def advance(self) -> list[Output]:
        self.outputs += (found := super().advance())
        return found

    def mark(self) -> ReadPlace:
        self.last = super().mark()
        return self.last

    def answers(self) -> dict[str, list[str]]:
        return {
            one["query_id"]: sorted({memory["id"] for memory in one.get("memories", [])})
            for one in answers(self.outputs)
        }

    def receipts(self) -> dict[str, str]:
        return {one["position"]: one["outcome"] for one in receipts(self.outputs)}


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    numbers = count()
    return lambda: Engine(tmp_path / f"state{next(numbers)}")


def said() -> list[dict[str, Any]]:
    """Messages of a session to forget among those of another, with versions, relations, tags, near duplicates and
    edges."""

    def message(n: int, session: str) -> dict[str, Any]:
        told = {"id": f"{session}{n % 50}", "session_id": session, "content": f"Bo likes #tea number {n % 3} in Porto"}
        return make_event("message", n * MINUTE_MS, **told)

    gone = [message(n if n < GONE // 2 else n + 50, "gone") for n in range(GONE)]  # in two episodes
    left = [message(n, "left") for n in range(LEFT)]
    relation = {"source": "Bo", "type": "likes", "target": "tea"}
    changes = [
        make_event("memory.update", memory_id="gone1", content="Bo likes coffee", tags=["hot"], relations=[relation]),
        make_event("memory.update", memory_id="gone1", content="Bo likes coffee more"),
        make_event("memory.update", memory_id="left1", relations=[relation], entities=[{"name": "Bo", "urn": "u:b"}]),
        make_event("memory.update", memory_id="gone2", entities=[{"name": "Bo", "urn": "u:a"}]),
        make_event("memory.feedback", memory_id="gone3", useful=True),
        make_event(
            "graph.edges",
            edges=[
                {"source": "gone4", "target": "left2", "type": "caused_by", "evidence": "gone5"},
                {"source": "left3", "target": "gone6", "type": "supersedes"},
                {"source": "gone1", "target": "left0", "type": "about", "evidence": "gone1"},
                {"source": "entity:Porto", "target": "gone1", "type": "about"},
                {"source": "gone1", "target": "entity:Faro", "type": "about"},
                {"source": "left0", "target": "left1", "type": "about", "evidence": "gone1"},
            ],
        ),
        make_event("graph.archive", entities=["gone7"]),
    ]
    mixed = [event for pair in zip(gone, [*left, *[None] * GONE], strict=False) for event in pair if event is not None]
    return [*mixed, *changes]


FORGET = {"session_id": "gone"}
LEFT_IDS = [f"left{n}" for n in range(LEFT)]


def ask(query_id: str, **fields: Any) -> dict[str, Any]:
    return make_event("recall", 60 * MINUTE_MS, id=query_id, query="tea?", k=50, include_history=True, **fields)


LARGE: list[tuple[str, dict[str, Any]]] = [
    ("memory.forget", {"filter": FORGET}),
    ("memory.forget", {"memory_id": "gone1"}),  # of many versions, edges, and edges that it is evidence of
    ("message", {"timestamp": 31 * MINUTE_MS, "session_id": "gone", "content": "closes the gap"}),
]


@pytest.mark.parametrize(("kind", "fields"), LARGE, ids=str)
def test_the_state_is_that_of_one_step(
    make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, kind: str, fields: dict[str, Any]
) -> None:
    behind = make_event("message", 61 * MINUTE_MS, id="new", session_id="gone", content="Bo likes #tea in Porto")
    event = make_event(kind, id="large", receipt=True, **fields)
    hashes, waited = [], []
    for looked_at, share in ((4_000, 4_000), (4, 30), (3, 1), (50, 3), (2, 12)):
        monkeypatch.setattr(large, "READ_MAX", looked_at)
        monkeypatch.setattr(large, "STEP_WEIGHT", share)
        engine = make_engine()
        engine.run(MEMORIES, *said())
        engine.run(MEMORIES, event, behind)
        waited.append(engine.is_due)
        engine.advance_to_end()
        (outcome,) = engine.receipts().values()
        assert outcome == ("created" if kind == "message" else "forgotten")
        hashes.append(engine.hash())
        assert engine.problems() == []
    assert waited[0] is False
    assert any(waited)
    assert len(set(hashes)) == 1


@pytest.mark.usefixtures("small_steps")
def test_large_work_is_atomic_and_later_events_wait_in_order(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    other = make_event("message", id="bob1", user_id="bob", content="tea")
    engine.run(MEMORIES, *said(), other)
    engine.run(QUERIES, ask("before"))
    engine.run(
        MEMORIES, make_event("memory.forget", filter=FORGET),
        make_event("message", 61 * MINUTE_MS, id="new", session_id="gone", content="tea"),
        make_event("memory.update", memory_id="gone1", content="late", receipt=True),
    )  # fmt: skip
    for number in range(3):
        engine.run(QUERIES, ask(f"during{number}"), ask(f"bob{number}", user_id="bob"))
    answers = engine.answers()
    assert set(answers) == {"before", "bob0", "bob1", "bob2"}
    assert answers["bob2"] == ["bob1"]
    engine.advance_to_end()
    answers = engine.answers()
    assert len(answers["before"]) == GONE + LEFT
    assert [answers[f"during{number}"] for number in range(3)] == [sorted(["new", *LEFT_IDS])] * 3
    refused = letters(engine.outputs)
    assert [(one.error.code, one.record.headers) for one in refused] == [("not_found", (("h", b"1"),))]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "steps", [n if n in (0, 1, 3, 6) else pytest.param(n, marks=pytest.mark.exhaustive) for n in range(9)]
)
@pytest.mark.parametrize("snapshot_after", [None, "memories", "the event"])
@pytest.mark.parametrize(("kind", "fields"), LARGE, ids=str)
def test_a_kill_between_two_steps_changes_nothing(
    make_engine: Callable[[], Engine], steps: int, snapshot_after: str | None, kind: str, fields: dict[str, Any]
) -> None:
    event = make_event(kind, id="large", receipt=True, **fields)
    behind = make_event("message", 61 * MINUTE_MS, id="new", session_id="gone", content="tea", receipt=True)

    def run(engine: Engine, kill: bool) -> None:
        engine.run(MEMORIES, *said())
        if snapshot_after == "memories":
            engine.mark()
        engine.run(MEMORIES, event, behind)
        assert engine.is_due
        if snapshot_after == "the event":
            engine.mark()
        for _ in range(steps):
            engine.advance()
        if kill:
            engine.kill(engine.last)
            engine.run(QUERIES, ask("killed"))  # comes before the memories are read again
            engine.read(MEMORIES)
        engine.advance_to_end()

    whole, killed = make_engine(), make_engine()
    run(whole, kill=False)
    run(killed, kill=True)
    assert killed.hash() == whole.hash()
    # What it put out twice has the same identity: the sink sends it once.
    assert killed.receipts() == whole.receipts()
    assert set(killed.receipts().values()) == {"created" if kind == "message" else "forgotten", "created"}
    left = {one for one in killed.answers()["killed"] if one.startswith("gone")}
    if kind == "memory.forget":
        assert not left & ({"gone1"} if "memory_id" in fields else {*left})
    assert not [key for key, _ in killed.records() if key.startswith(keys.WORK)]


@pytest.mark.usefixtures("small_steps")
def test_abandoned_steps_block_no_later_event(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    engine.run(MEMORIES, *said())
    engine.mark()
    engine.run(MEMORIES, make_event("memory.forget", filter=FORGET))
    engine.lines[MEMORIES][-1] = orjson.dumps(make_event("message", id="other", content="tea"))  # lines fed anew
    engine.kill(engine.last)
    engine.run(QUERIES, ask("q"))
    engine.advance_to_end()
    assert engine.answers()["q"] == LEFT_IDS
    engine.read(MEMORIES)
    engine.run(QUERIES, ask("r"))
    assert engine.answers()["r"] == [*LEFT_IDS, "other"]
    assert not [key for key, _ in engine.records() if key.startswith(keys.WORK)]


@pytest.mark.usefixtures("small_steps")
def test_failing_step_refuses_the_event(make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    engine = make_engine()
    engine.run(MEMORIES, *said())
    monkeypatch.setattr(large, "_forget", fail)
    engine.run(MEMORIES, make_event("memory.forget", filter=FORGET), make_event("message", id="new", content="tea"))
    engine.advance_to_end()
    refused = letters(engine.outputs)
    assert [one.error.code for one in refused] == ["internal_error"]
    engine.run(QUERIES, ask("q"))
    assert "new" in engine.answers()["q"]


@pytest.mark.parametrize("how", ["by id", "by a filter", "in steps"])
def test_forgotten_memory_leaves_nothing(
    make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Every record of the owner is looked at: by the places of the forgotten memories, by their ids' names, and by
    their text."""
    if how == "in steps":
        monkeypatch.setattr(large, "READ_MAX", 4)
        monkeypatch.setattr(large, "STEP_WEIGHT", 3)
    engine = make_engine()
    engine.run(MEMORIES, *said())
    engine.run(QUERIES, ask("q"), ask("r", session_id="gone"))  # usage is counted
    gone = {json[3]: json[0] for key, value in engine.records() if _table(key) == keys.ENTRY
            if (json := orjson.loads(value))[3].startswith("gone")}  # fmt: skip
    assert len(gone) == GONE
    numbered = (keys.ENTRY, keys.VECTORS, keys.PAST_ENTRY, keys.PAST_VECTORS, keys.USAGE, keys.LINKS, keys.SIMILAR)
    assert {_table(key) for key, _ in engine.records() if _seq(key) in gone.values()} >= {*numbered, keys.MEMBER}
    if how == "by id":
        engine.run(MEMORIES, *(make_event("memory.forget", memory_id=one) for one in gone))
    else:
        engine.run(MEMORIES, make_event("memory.forget", filter=FORGET))
    engine.advance_to_end()
    names = _names(engine, gone)
    for key, value in engine.records():
        table = _table(key)
        if table is None or table in (keys.SESSION, keys.EPISODE_LOG, keys.EPISODE):
            continue  # what was returned in a session, and the place in time of a message, are no part of a memory
        assert _seq(key) not in gone.values(), (table, key)
        if table == keys.CURRENT:
            assert not value.endswith(b"false]") or key[18:] not in names  # the tombstone of its id
            continue
        assert key[18:34] not in names, (table, key)
        assert b"coffee" not in value, (table, key)
        if table == keys.SIMILAR:
            assert not {one.seq for one in decode_neighbours(value)} & {*gone.values()}
        if table in (keys.EDGE, keys.SUPERSEDED, keys.NODE):
            assert b'"gone' not in value, (table, value)


def _table(key: bytes) -> bytes | None:
    return keys.split(key)[1] if key.startswith(keys.OWNERS) else None


def _seq(key: bytes) -> int | None:
    """The memory that a record is of, by its key; None where the key names none."""
    table = _table(key)
    if table in (keys.ENTRY, keys.VECTORS, keys.USAGE, keys.LINKS, keys.SIMILAR, keys.SUPERSEDED, keys.UNSYNCED):
        return keys.sequence(key)
    if table in (keys.PAST_ENTRY, keys.PAST_VECTORS):
        return keys.seq_and_version(key)[0]
    return keys.reversed_sequence(key) if table == keys.MEMBER else None


def _names(engine: Engine, ids: dict[str, int]) -> set[bytes]:
    partition = engine.directory.partition(0)
    owner = next(keys.split(key)[0] for key, _ in engine.records() if _table(key) == keys.ENTRY)
    return {partition.keyring.name(owner, one) for one in ids}


@pytest.mark.parametrize("about", [{"include_history": True}, {"as_of": {"ingestion_time": 20}}], ids=str)
@pytest.mark.parametrize("kill", [False, True])
def test_past_is_built_in_steps_as_of_the_query(
    make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, about: dict[str, Any], kill: bool
) -> None:
    whole = make_engine()
    whole.run(MEMORIES, *said())
    question = make_event("recall", 60 * MINUTE_MS, id="past", query="tea?", k=50, **about)
    whole.run(QUERIES, question)
    monkeypatch.setattr(moment, "AT_ONCE", 3)
    monkeypatch.setattr(parked_queries, "AT_ONCE", 3)
    engine = make_engine()
    engine.run(MEMORIES, *said())
    engine.run(QUERIES, question, make_event("recall", 60 * MINUTE_MS, id="now", query="tea?", k=50))
    assert [*engine.answers()] == ["now"]
    if kill:
        engine.advance()
        engine.mark()
        engine.kill(engine.last)
    else:
        engine.run(MEMORIES, make_event("memory", 61 * MINUTE_MS, id="later", content="tea"))
    engine.advance_to_end()
    (expected,) = whole.answers().values()
    assert engine.answers()["past"] == expected
    assert len(expected) > 1


@pytest.mark.usefixtures("small_steps")
def test_snapshot_of_an_ending_log_holds_no_line(tmp_path: Path) -> None:
    engine = Harness(tmp_path / "state", one_log=True)
    engine.run(MEMORIES, *(make_event("message", id=f"m{n}", content=f"walnut {n}") for n in range(9)))
    refused = [make_event("memory.feedback", memory_id=f"m{n}", useful=True) for n in range(3)]
    forget = make_event("memory.forget", filter={"older_than": MINUTE_MS})
    outputs = engine.run(MEMORIES, forget, *refused, make_event("recall", MINUTE_MS, query="walnut"))
    assert engine.mark().unfinished == []
    engine.stop()
    assert [letter.position.offset for letter in letters(outputs[:3])] == [10, 11, 12]
    (answer,) = answers(outputs[3:])
    assert answer["memories"] == []
    assert outputs[-1] == Ack("memories:0", (9, 10, 11, 12, 13))
