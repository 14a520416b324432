"""A service that fails is left alone, tried now and then, and asked again once it answers."""

from recallflow.llm import FAILURES, LEFT_ALONE_S, Breaker
from tests.unit.connectors.clock import Clock


def test_open_breaker_lets_one_call_try() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        assert (breaker.begin(), breaker.is_open) == (0, False)
        breaker.failed()
    assert (breaker.begin(), breaker.is_open) == (LEFT_ALONE_S, True)
    clock.now_s += LEFT_ALONE_S
    assert (breaker.begin(), breaker.begin()) == (0, LEFT_ALONE_S)
    clock.now_s += 1
    breaker.failed()
    assert breaker.begin() == LEFT_ALONE_S
    clock.now_s += LEFT_ALONE_S
    assert breaker.begin() == 0
    breaker.succeeded()
    assert (breaker.begin(), breaker.begin(), breaker.is_open) == (0, 0, False)


def test_a_service_may_ask_to_be_left_alone_for_longer() -> None:
    breaker = Breaker(Clock())
    for _ in range(FAILURES):
        breaker.failed(at_least_s=60)
    assert breaker.begin() == 60
