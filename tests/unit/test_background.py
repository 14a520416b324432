"""Waits, caches and garbage collection of a process."""

import threading

import pytest

from recallflow.background import STEP_MAX_S, STOP_S, Closing, Patience
from recallflow.caching import Kept
from recallflow.errors import SinkError
from tests.unit.connectors.clock import Clock

SUPERVISOR_S = 10.0  # so soon a flow that is told to stop has to end


def test_outage_is_waited_for_up_to_its_limit() -> None:
    clock = Clock()
    patience = Patience(40.0, threading.Event(), clock)
    for _ in range(20):
        clock.now_s += 1.99
        assert not patience.ended()
    clock.now_s += 0.3
    assert patience.ended()
    assert str(patience) == "within 40 s"


def test_a_process_that_was_paused_has_not_waited_meanwhile() -> None:
    clock = Clock()
    patience = Patience(10.0, threading.Event(), clock)
    clock.now_s += 3_600
    assert not patience.ended()
    clock.now_s += STEP_MAX_S
    assert patience.ended()


def test_a_signal_cuts_it_short_whenever_it_comes() -> None:
    stopping, clock = threading.Event(), Clock()
    patience = Patience(40.0, stopping, clock)
    clock.now_s += 20
    assert not patience.ended()
    stopping.set()
    assert not patience.ended()
    clock.now_s += STOP_S
    assert patience.ended()
    assert str(patience) == "within 4 s of the signal to stop"
    assert 2 * STOP_S < SUPERVISOR_S  # a snapshot's outputs, and what comes at the end


def test_the_first_failure_is_kept_and_raised_from_one_place() -> None:
    closing = Closing()
    closing.check()

    def fail(error: BaseException) -> None:
        raise error

    closing(lambda: fail(SinkError("first")))
    closing(lambda: fail(KeyboardInterrupt()))
    with pytest.raises(SinkError, match="first"):
        closing.check()


def test_cached_value_is_not_made_again() -> None:
    made: list[str] = []

    def make(text: str) -> str:
        made.append(text)
        return text.upper()

    kept = Kept(make, 100_000)
    assert [kept["tea"], kept["tea"], kept["oat"]] == ["TEA", "TEA", "OAT"]
    assert made == ["tea", "oat"]


def test_cache_stays_within_its_budget() -> None:
    kept: Kept[str, str] = Kept(str.upper, 64_000)
    for number in range(5_000):
        kept[f"word{number}"]
        assert kept.size_bytes <= 64_000
    assert 0 < len(kept) < 1_000


def test_value_that_takes_most_of_the_budget_is_not_kept() -> None:
    kept: Kept[str, str] = Kept(str.upper, 64_000)
    kept["tea"]
    assert kept["x" * 10_000] == "X" * 10_000
    assert list(kept) == ["tea"]


def test_size_of_referenced_objects_counts() -> None:
    flat: Kept[str, tuple[str, ...]] = Kept(lambda text: (text,), 1_000_000)
    deep: Kept[str, tuple[str, ...]] = Kept(lambda text: (text * 100,), 1_000_000)
    flat["tea"], deep["tea"]
    assert deep.size_bytes >= flat.size_bytes + 297
