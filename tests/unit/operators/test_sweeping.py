"""Garbage collection: an applied event leaves no reference cycle, and no collection runs while a past is built."""

import gc
from typing import Any

import pytest

from recallflow.operators.recall import moment
from recallflow.operators.recall.moment import Unswept
from recallflow.state.rows import Entry
from tests.unit.operators.harness import make_event, run_flow

pytestmark = pytest.mark.slow


def test_collection_rests_until_the_last_block_ends() -> None:
    unswept = Unswept()
    with unswept:
        with unswept:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_within_has_it_go_on() -> None:
    unswept = Unswept()
    with pytest.raises(ValueError, match="here"), unswept:
        raise ValueError("here")
    assert gc.isenabled()


def test_collection_stays_off_if_it_was_off() -> None:
    unswept = Unswept()
    gc.disable()
    try:
        with unswept:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_past_index_leaves_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Unswept):
        left: list[list[str]] = []

        def __exit__(self, *error: object) -> None:
            self.left.append([found.id for found in gc.get_objects() if isinstance(found, Entry)])
            super().__exit__(*error)

    monkeypatch.setattr(moment, "unswept", Counting())
    ids = [f"swept{n}" for n in range(5)]
    told = [make_event("message", n, id=one, content="tea with milk") for n, one in enumerate(ids)]
    run_flow([*told, make_event("recall", 9, query="tea", as_of={"ingestion_time": 5})])
    assert len(Counting.left) == 1
    assert not set(Counting.left[0]) & set(ids)


MANY = 20
MADE = 2  # objects of an event that are freed no earlier than its state directory
RELATION = {"source": "Ada", "type": "has", "target": "cup"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("message", {"content": "Tea with Ada", "session_id": "s"}),
        ("memory", {"content": "Ada has cups", "entities": [{"name": "Ada"}], "relations": [RELATION]}),
        ("memory.update", {"memory_id": "told", "content": "Ada has cups"}),
        ("memory.forget", {"memory_id": "none"}),
        ("memory.feedback", {"memory_id": "told", "useful": True}),
    ],
)
def test_applied_event_leaves_no_cycle(kind: str, fields: dict[str, Any]) -> None:
    def garbage(count: int) -> int:
        told = make_event("memory", 0, id="told", content="Ada has a cup")
        texts = [{"content": f"{fields['content']} {n}"} if "content" in fields else {} for n in range(count)]
        events = [make_event(kind, n, **fields | text) for n, text in enumerate(texts)]
        assert not run_flow([told, *events]).rejected
        return gc.collect()

    garbage(1)  # makes what is made once in a process
    gc.freeze()  # collections look at new objects alone
    gc.disable()
    try:
        assert garbage(2 * MANY) - garbage(MANY) < MADE * MANY
    finally:
        gc.enable()
        gc.unfreeze()
