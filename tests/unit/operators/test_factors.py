"""Weights, factors, boosts and decay functions, one at a time and by hand."""

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import RecallSettings
from recallflow.operators.recall.ranking import boosts, quality, rank, raw, recency, usage
from recallflow.queries import BOOSTS, WEIGHTS, Decay, DecayFunction, Mode
from recallflow.state.usage import OwnerUsage, Records, Usage
from tests.unit.operators.harness import DAY_MS, ids_of, make_entry, make_inputs

NOW_MS = 1_000 * DAY_MS
AGES = [{"created_ms": NOW_MS - days * DAY_MS} for days in (121, 181, 121)]
SHARES = (0.6, 0.4, 1.0)

# By factor or boost: fields of the memories, and of the inputs. The first of the pair has more of it, and the third
# memory, which does not fit, has as much or more.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "cluster": ([{}, {}, {"episode": 1}], {"vectors": {0: (1, 0), 1: (1, 0), 2: (0, 1)}}),
    "recency": (AGES, {"weights": {"decay": 0}}),
    "decay": (AGES, {"weights": {"recency": 0}}),
    "importance": ([{"importance": share} for share in SHARES], {}),
    "usage": ([{}] * 3, {"usage": {0: Usage(NOW_MS, 1), 2: Usage(NOW_MS, 50)}}),
    "quality": ([{"confidence": share} for share in SHARES], {}),
    "proximity": ([{}] * 3, {"proximity": [0.5, 0.25, 1.0], "entity_urns": ["urn:x"]}),
    "relationship": ([{}] * 3, {"relationship": {0: 0.125, 2: 1.0}}),  # by a common topic, and by the strongest edge
    "personalisation": ([{}] * 3, {"vectors": {0: (1, 0), 1: (0, 1), 2: (1, 0)}, "usage": {2: Usage(useful=1)}}),
    "session_continuity": ([{}] * 3, {"returned": [0, 2]}),
}


def order(name: str, behind: float, **weights: float) -> list[str]:
    """Rank a case whose first memory fits worse than the second by these log-odds, and the third by ten units."""
    memories, fields = CASES[name]
    entries = [make_entry(n, **{"episode": n, "created_ms": NOW_MS} | memory) for n, memory in enumerate(memories)]
    weighed = fields | {"weights": fields.get("weights", {}) | weights}
    inputs = make_inputs("hybrid", entries, [5 - behind, 5, -5], now_ms=NOW_MS, **weighed)
    return ids_of(inputs, rank(inputs))


def test_every_factor_and_boost_has_a_case() -> None:
    assert CASES.keys() | {"semantic"} == WEIGHTS["hybrid"].keys() | BOOSTS["hybrid"].keys()


@pytest.mark.parametrize("name", CASES)
def test_weight_of_5_reorders_a_pair_that_fits_about_alike(name: str) -> None:
    assert order(name, 0.2) == ["m1", "m0", "m2"]
    assert order(name, 0.2, **{name: 5}) == ["m0", "m1", "m2"]


LIKED = Usage(useful=1)


def test_personalisation_uses_the_mean_of_useful_memories() -> None:
    # Liked: (1, 0) and (0, 1), so the taste is (√½, √½). Cosines: √½, √½, 1, -√½ (none below 0), and unknown.
    vectors = {0: (1, 0), 1: (0, 1), 2: (0.5**0.5, 0.5**0.5), 3: (-1, 0)}
    entries = [make_entry(n, episode=0) for n in range(5)]
    usage = {0: LIKED, 1: Usage(useful=3, not_useful=2), 3: Usage(useful=2, not_useful=2)}
    found = boosts(make_inputs("hybrid", entries, [0] * 5, vectors=vectors, usage=usage), np.arange(5), 1.0)
    assert found.keys() == {"personalisation"}
    np.testing.assert_allclose(found["personalisation"], [0.0707107, 0.0707107, 0.1, 0, 0.0603553], atol=1e-6)


@pytest.mark.parametrize(("mode", "scale"), [("hybrid", 1.0), ("balanced", 0.5)])
def test_boosts_are_log_odds_and_come_before_the_cut(mode: Mode, scale: float) -> None:
    # Two units of log-odds, which the mode's semantic weight is worth: m2 gains 0.03 + 0.8 units, m1 gains 0.03.
    entries = [make_entry(n, episode=0) for n in range(5)]
    given: dict[str, Any] = {"relationship": {2: 0.8}, "returned": [1, 2], "k": 2, "weights": {"recency": 0.0}}
    ranking = rank(asked := make_inputs(mode, entries, [2.0, 1.9, 1.5, 0.0, 0.0], **given))
    assert not ranking.tiebreak_applied
    assert ids_of(asked, ranking) == ["m2", "m0"]
    assert ranking.scores[0] - ranking.scores[1] == pytest.approx((0.83 - 0.5) / 2 * scale)
    np.testing.assert_allclose(ranking.boosts["relationship"], [0.4 * scale, 0])
    np.testing.assert_allclose(ranking.boosts["session_continuity"], [0.015 * scale, 0])


def records(*used: Usage) -> Records:
    return OwnerUsage((seq, one.encode()) for seq, one in enumerate(used)).of(np.arange(len(used)))


def test_usage_grows_with_the_logarithm_of_times_and_fades() -> None:
    used = records(Usage(), Usage(NOW_MS, 1), Usage(NOW_MS, 9), Usage(NOW_MS - 30 * DAY_MS, 9), Usage(NOW_MS + 5, 9))
    once, nine_times = math.log(2) / (1 + math.log(2)), math.log(10) / (1 + math.log(10))
    expected = [0, once, nine_times, nine_times / 2, nine_times]
    np.testing.assert_allclose(usage(used, NOW_MS), expected)


def test_quality_equals_confidence_until_feedback() -> None:
    used = records(Usage(), Usage(useful=1), Usage(useful=2), Usage(not_useful=1), Usage(useful=1, not_useful=1))
    # (2 · 0.5 + useful) / (2 + voices)
    np.testing.assert_allclose(quality(np.full(5, 0.5), used), [0.5, 2 / 3, 3 / 4, 1 / 3, 0.5])


def test_about_another_moment_neither_use_nor_feedback_counts() -> None:
    entries = [make_entry(n, episode=0, confidence=0.5) for n in range(2)]
    used = {0: Usage(0, 9, 9, 0), 1: Usage(0, 0, 0, 9)}
    now, then = (make_inputs("hybrid", entries, [0, 0], usage=usage) for usage in (used, None))
    assert raw(now, np.arange(2))["usage"].tolist() == [pytest.approx(math.log(10) / (1 + math.log(10))), 0]
    assert raw(now, np.arange(2))["quality"].tolist() == pytest.approx([10 / 11, 1 / 11])
    assert raw(then, np.arange(2))["usage"].tolist() == [0, 0]
    assert raw(then, np.arange(2))["quality"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("function", "expected"), [("hyperbolic", 0.25), ("exponential", 0.5), ("linear", 0.5)])
def test_the_days_of_hyperbolic_decay_count_where_it_is_chosen(function: str, expected: float) -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    inputs = make_inputs("hybrid", entries, [0], now_ms=NOW_MS, decay={"function": function, "decay_days": 10})
    assert raw(inputs, np.arange(1))["decay"].tolist() == [expected]


def test_recency_follows_a_decay_that_is_set() -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    tenant = RecallSettings.model_validate({"decay": {"tau_days": 60}})
    unset, asked, of_tenant = (
        make_inputs("hybrid", entries, [0], now_ms=NOW_MS, **given)
        for given in ({}, {"decay": {"function": "exponential"}}, {"tenant": tenant})
    )
    found = [raw(inputs, np.arange(1))["recency"].tolist() for inputs in (unset, asked, of_tenant)]
    assert found == [[pytest.approx(0.7311, abs=1e-4)], [pytest.approx(math.exp(-1))], [pytest.approx(math.exp(-0.5))]]


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
    inputs = make_inputs("recency", entries, np.zeros(len(entries)), now_ms=now_ms)
    return [float(age) for age in inputs.age_days(inputs.allowed)]


def test_age_is_in_days_and_the_future_counts_as_now() -> None:
    now_ms = 10 * DAY_MS
    created_ms = [-5 * DAY_MS, 0, now_ms - DAY_MS // 2, now_ms - 1, now_ms, now_ms + 1]
    assert age_days(now_ms, *created_ms) == [15, 10, 0.5, 1 / DAY_MS, 0, 0]


@pytest.mark.parametrize("function", FUNCTIONS)
@given(ages=st.lists(st.floats(0, 4_000_000), min_size=1, max_size=20), days=st.floats(0.001, 1_000_000))
def test_every_decay_falls_from_1_and_never_below_0(function: DecayFunction, ages: list[float], days: float) -> None:
    decay = Decay(function=function, tau_days=days, max_age_days=days, threshold_days=days, decay_days=days)
    factors = recency(np.array([0.0, *sorted(ages)]), decay)
    assert factors[0] == 1
    assert factors.min() >= 0
    assert (np.diff(factors) <= 0).all()
