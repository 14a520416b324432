"""Bounds of waits for brokers, and errors of closing."""

import threading

import pytest

from recallflow.background import STEP_MAX_S, STOP_S, Closing, Patience
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
