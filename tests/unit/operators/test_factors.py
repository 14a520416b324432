"""The factors that change with use and feedback, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import RecallSettings
from recallflow.operators.recall.factors import log_recency, quality, raw, usage
from recallflow.state.usage import OwnerUsage, Records, Usage
from tests.unit.operators.harness import make_entry, make_scene

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


def records(*used: Usage) -> Records:
    return OwnerUsage((seq, one.encode()) for seq, one in enumerate(used)).of(np.arange(len(used)))


def test_usage_grows_with_the_logarithm_of_times_and_fades() -> None:
    used = records(Usage(), Usage(NOW_MS, 1), Usage(NOW_MS, 9), Usage(NOW_MS - 30 * DAY_MS, 9), Usage(NOW_MS + 5, 9))
    once, nine_times = math.log(2) / (1 + math.log(2)), math.log(10) / (1 + math.log(10))
    expected = [0, once, nine_times, nine_times / 2, nine_times]
    np.testing.assert_allclose(usage(used, NOW_MS), expected)


def test_quality_is_the_confidence_until_somebody_says_otherwise() -> None:
    used = records(Usage(), Usage(useful=1), Usage(useful=2), Usage(not_useful=1), Usage(useful=1, not_useful=1))
    # (2 · 0.5 + useful) / (2 + voices)
    np.testing.assert_allclose(quality(np.full(5, 0.5), used), [0.5, 2 / 3, 3 / 4, 1 / 3, 0.5])


@given(confidence=st.floats(0, 1), useful=st.integers(0, 10**6), not_useful=st.integers(0, 10**6), more=st.booleans())
def test_quality_is_a_share_that_follows_each_voice(
    confidence: float, useful: int, not_useful: int, more: bool
) -> None:
    before = Usage(0, 0, useful, not_useful)
    one, other = quality(np.full(2, confidence), records(before, before.judged(useful=more)))
    assert 0 <= one <= 1
    assert other >= one if more else other <= one


def test_about_another_moment_neither_use_nor_feedback_counts() -> None:
    entries = [make_entry(n, episode=0, confidence=0.5) for n in range(2)]
    used = {0: Usage(0, 9, 9, 0), 1: Usage(0, 0, 0, 9)}
    now, then = (make_scene("hybrid", entries, [0, 0], usage=usage) for usage in (used, None))
    assert raw(now, np.arange(2))["usage"].tolist() == [pytest.approx(math.log(10) / (1 + math.log(10))), 0]
    assert raw(now, np.arange(2))["quality"].tolist() == pytest.approx([10 / 11, 1 / 11])
    assert raw(then, np.arange(2))["usage"].tolist() == [0, 0]
    assert raw(then, np.arange(2))["quality"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("function", "expected"), [("hyperbolic", 0.25), ("exponential", 0.5), ("linear", 0.5)])
def test_the_days_of_hyperbolic_decay_count_where_it_is_chosen(function: str, expected: float) -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    scene = make_scene("hybrid", entries, [0], now_ms=NOW_MS, decay={"function": function, "decay_days": 10})
    assert raw(scene, np.arange(1))["decay"].tolist() == [expected]


@given(ages=st.lists(st.floats(0, 4_000_000), max_size=20))
def test_recency_falls_with_age_from_1_to_0(ages: list[float]) -> None:
    factors = log_recency(np.array(sorted(ages)))
    assert ((factors >= 0) & (factors <= 1)).all()
    assert (np.diff(factors) <= 0).all()


@pytest.mark.parametrize(("older", "expected"), [(121, 0.45), (181, 1.09), (364, 2.31)])
def test_recency_tells_months_apart(older: float, expected: float) -> None:
    newer_one, older_one = 5 * log_recency(np.array([90.0, older]))
    assert newer_one - older_one == pytest.approx(expected, abs=0.01)


def test_recency_follows_a_decay_that_is_set() -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    tenant = RecallSettings.model_validate({"decay": {"tau_days": 60}})
    unset, asked, of_tenant = (
        make_scene("hybrid", entries, [0], now_ms=NOW_MS, **given)
        for given in ({}, {"decay": {"function": "exponential"}}, {"tenant": tenant})
    )
    found = [raw(scene, np.arange(1))["recency"].tolist() for scene in (unset, asked, of_tenant)]
    assert found == [[pytest.approx(0.7311, abs=1e-4)], [pytest.approx(math.exp(-1))], [pytest.approx(math.exp(-0.5))]]
