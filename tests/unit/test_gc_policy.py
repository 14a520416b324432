"""Python looks for garbage that holds itself between two batches, in the middle of one only before that takes long."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from recallflow.connectors.lines import BATCH_RECORDS
from recallflow.flows.gc_policy import collect_due_garbage, collecting_between_batches
from tests.unit.operators.harness import make_event, run_flow

MANY = 5_000
BATCHES = 2
MEANWHILE = 4  # of other threads and of the dataflow's own making


class Cycle:
    """Garbage as soon as it is made."""

    def __init__(self) -> None:
        self.itself = self


def left(count: int) -> "weakref.WeakSet[Cycle]":
    return weakref.WeakSet(Cycle() for _ in range(count))


@contextmanager
def looks() -> Iterator[list[int]]:
    """The generation of each look that Python takes."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


@pytest.fixture(autouse=True)
def _nothing_before() -> Iterator[None]:
    """Freeze objects of earlier tests, which take a second to traverse."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_run_collects_at_most_once_a_batch() -> None:
    lines = [make_event("message", n, content=f"Tea, cup {n}", session_id="s") for n in range(BATCHES * BATCH_RECORDS)]
    with looks() as seen:
        assert not run_flow(lines).rejected
    assert 1 <= len(seen) <= BATCHES + MEANWHILE


def test_garbage_of_a_batch_is_collected_behind_it() -> None:
    with collecting_between_batches():
        garbage = left(MANY)
        assert len(garbage) == MANY
        collect_due_garbage()
        assert not garbage


def test_very_much_garbage_is_collected_within_a_batch() -> None:
    with collecting_between_batches():
        assert len(left(25 * MANY)) < 25 * MANY


def test_after_a_run_that_failed_python_looks_as_before() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collecting_between_batches():
        1 / 0  # noqa: B018
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0
