"""Decay functions by hand, and laws of all of them."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.factors import recency
from recallflow.queries import Decay, DecayFunction
from tests.unit.operators.harness import make_entry, make_scene

DAY_MS = 24 * 60 * 60 * 1000
FUNCTIONS: tuple[DecayFunction, ...] = get_args(DecayFunction)


@pytest.mark.parametrize(
    ("decay", "ages", "expected"),
    [
        # exp(-t/10): at 0 days 1, at 10 days 1/e, at 20 days 1/e²
        ({"function": "exponential", "tau_days": 10}, [0, 10, 20], [1, 0.36787944, 0.13533528]),
        # 1 - t/40, and nothing below 0
        ({"function": "linear", "max_age_days": 40}, [0, 10, 40, 41], [1, 0.75, 0, 0]),
        # 1/(1 + ln(1 + t)): ln 2 = 0.693147, ln 10 = 2.302585
        ({"function": "logarithmic"}, [0, 1, 9], [1, 0.59061611, 0.30279311]),
        # the threshold itself is past it
        ({"function": "step", "threshold_days": 7}, [0, 6.999, 7, 100], [1, 1, 0, 0]),
        # 1/(1 + t/20)
        ({"function": "hyperbolic", "decay_days": 20}, [0, 10, 20, 60], [1, 0.66666667, 0.5, 0.25]),
    ],
)
def test_decay_by_hand(decay: dict[str, Any], ages: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(recency(np.array(ages, np.float64), Decay(**decay)), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("function", "at_30_days"),
    [
        ("exponential", 0.36787944),  # τ 30
        ("linear", 0.91780822),  # 1 - 30/365
        ("logarithmic", 0.22553065),  # 1/(1 + ln 31), ln 31 = 3.433987
        ("step", 0.0),  # threshold 30
        ("hyperbolic", 0.5),  # decay 30
    ],
)
def test_decay_without_parameters(function: DecayFunction, at_30_days: float) -> None:
    np.testing.assert_allclose(recency(np.array([30.0]), Decay(function=function)), [at_30_days], rtol=1e-7)


def age_days(now_ms: int, *created_ms: int) -> list[float]:
    """Return the ages of memories of these event times, which rise."""
    entries = [make_entry(seq, episode=0, created_ms=at) for seq, at in enumerate(created_ms)]
    scene = make_scene("recency", entries, np.zeros(len(entries)), now_ms=now_ms)
    return [float(age) for age in scene.age_days(scene.allowed)]


def test_age_is_in_days_and_the_future_counts_as_now() -> None:
    now_ms = 10 * DAY_MS
    created_ms = [-5 * DAY_MS, 0, now_ms - DAY_MS // 2, now_ms - 1, now_ms, now_ms + 1]
    assert age_days(now_ms, *created_ms) == [15, 10, 0.5, 1 / DAY_MS, 0, 0]


def test_ages_span_the_years_1_to_9999_without_overflow() -> None:
    first_ms, last_ms = -62_135_596_800_000, 253_402_300_799_999
    (age,) = age_days(last_ms, first_ms)
    assert age == pytest.approx(3_652_059, abs=1)  # days from 0001-01-01 to the end of 9999-12-31
    for function in FUNCTIONS:
        assert 0 <= recency(np.array([age]), Decay(function=function))[0] < 0.1


@pytest.mark.parametrize("function", FUNCTIONS)
@given(ages=st.lists(st.floats(0, 4_000_000), min_size=1, max_size=20), days=st.floats(0.001, 1_000_000))
def test_every_decay_falls_from_1_and_never_below_0(function: DecayFunction, ages: list[float], days: float) -> None:
    decay = Decay(function=function, tau_days=days, max_age_days=days, threshold_days=days, decay_days=days)
    factors = recency(np.array([0.0, *sorted(ages)]), decay)
    assert factors[0] == 1
    assert factors.min() >= 0
    assert (np.diff(factors) <= 0).all()
