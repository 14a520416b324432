"""Items of a key in batches, by an injected clock."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.async_call.batching import BatchingLogic, Held

SIZE, WAIT_S = 3, 2.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def batching(clock: Clock, resumed: Held[int] | None = None) -> BatchingLogic[int]:
    return BatchingLogic(SIZE, WAIT_S, clock, resumed)


def due_s(logic: BatchingLogic[int]) -> float:
    return (logic.notify_at() - datetime.fromtimestamp(0, UTC)).total_seconds()


def test_a_full_batch_goes_on_at_once_and_the_rest_waits(clock: Clock) -> None:
    logic = batching(clock)
    assert logic.on_batch([1, 2, 3, 4, 5, 6, 7]) == ([(1, 2, 3), (4, 5, 6)], False)
    assert due_s(logic) == 102.0
    assert logic.on_notify() == ([(7,)], True)


def test_a_batch_waits_from_its_first_item_on(clock: Clock) -> None:
    logic = batching(clock)
    assert logic.on_batch([1]) == ([], False)
    clock.now_s = 101.0
    assert logic.on_batch([2]) == ([], False)
    assert due_s(logic) == 102.0


def test_what_waits_is_the_snapshot_and_goes_on_at_once_after_a_start(clock: Clock) -> None:
    logic = batching(clock)
    logic.on_batch([1, 2])
    assert logic.on_eof() == ((), False)
    clock.now_s = 500.0
    resumed = batching(clock, logic.snapshot())
    assert due_s(resumed) == 500.0
    assert resumed.on_notify() == ([(1, 2)], True)


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=8), max_size=8))
def test_every_item_comes_out_once_and_in_order(batches: list[list[int]]) -> None:
    logic = batching(Clock())
    out: list[tuple[int, ...]] = []
    for batch in batches:
        found, emptied = logic.on_batch(batch)
        out += found
        assert emptied == (logic.snapshot() == Held(()))
    out += logic.on_notify()[0]
    assert [item for batch in out for item in batch] == [item for batch in batches for item in batch]
    assert all(1 <= len(batch) <= SIZE for batch in out)
