"""Brokers that are away are waited for, and much shorter once somebody wants us to stop."""

import threading

from recallflow.connectors.kafka.patience import STOP_S, Patience

SUPERVISOR_S = 10.0  # so soon a flow that is told to stop has to end


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_outage_is_waited_for_as_long_as_it_may_last() -> None:
    clock = Clock()
    patience = Patience(40.0, threading.Event(), clock)
    clock.now_s += 39.9
    assert not patience.ended()
    clock.now_s += 0.2
    assert patience.ended()
    assert str(patience) == "within 40 s"


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
