"""Weights, factors, boosts and decay functions, one at a time and by hand."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import ControlHistory, RecallSettings, TenantSettings
from recallflow.operators.recall.factors import boosts, log_recency, quality, raw, recency, usage
from recallflow.operators.recall.modes import rank
from recallflow.queries import BOOSTS, WEIGHTS, Decay, DecayFunction, Mode
from recallflow.state.usage import OwnerUsage, Records, Usage
from tests.unit.operators.harness import explained, ids, ids_of, make_entry, make_event, make_scene, run_flow

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
AGES = [{"created_ms": NOW_MS - days * DAY_MS} for days in (121, 181, 121)]
SHARES = (0.6, 0.4, 1.0)

# By factor or boost: fields of the memories, and of the scene. The first of the pair has more of it, and the third
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
    scene = make_scene("hybrid", entries, [5 - behind, 5, -5], now_ms=NOW_MS, **weighed)
    return ids_of(scene, rank(scene))


def test_every_factor_and_boost_has_a_case() -> None:
    assert CASES.keys() | {"semantic"} == WEIGHTS["hybrid"].keys() | BOOSTS["hybrid"].keys()


@pytest.mark.parametrize("name", CASES)
def test_weight_of_5_reorders_a_pair_that_fits_about_alike(name: str) -> None:
    assert order(name, 0.2) == ["m1", "m0", "m2"]
    assert order(name, 0.2, **{name: 5}) == ["m0", "m1", "m2"]


def test_semantic_weight_of_5_reorders_a_pair() -> None:
    assert order("importance", 0.2, importance=2) == ["m0", "m1", "m2"]
    assert order("importance", 0.2, importance=2, semantic=5) == ["m1", "m0", "m2"]


@pytest.mark.parametrize("name", CASES)
def test_default_weight_orders_a_pair_that_fits_alike(name: str) -> None:
    assert order(name, 1e-4, **{name: 0}) == ["m1", "m0", "m2"]
    assert order(name, 1e-4) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_all_boosts_do_not_put_an_unrelated_memory_first(mode: Mode) -> None:
    entries = [make_entry(n, episode=n, created_ms=NOW_MS) for n in range(3)]
    given: dict[str, Any] = {"relationship": {2: 1.0}, "returned": [2], "usage": {2: Usage(NOW_MS, 9, 9, 0)}}
    scene = make_scene(mode, entries, [5, 4.5, 3], now_ms=NOW_MS, vectors={0: (0, 1), 2: (1, 0)}, **given)
    assert ids_of(scene, rank(scene))[0] == "m0"


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_thumbs_up_does_not_put_an_unrelated_memory_first(mode: Mode) -> None:
    texts = {"bike": "The red bike is in the garage", "tea": "We had green tea", "train": "The train was late"}
    told = [make_event("memory", id=name, content=text, confidence=0.5) for name, text in texts.items()]
    judged = [make_event("memory.feedback", memory_id=name, useful=True) for name in ("tea", "train")]
    ask = make_event("recall", query="Where is the red bike?", mode=mode, session_id="s")
    for response in run_flow([*told, ask, judged[0], ask, judged[1], ask]).responses:
        assert ids(response)[0] == "bike"


LIKED = Usage(useful=1)


def test_personalisation_uses_the_mean_of_useful_memories() -> None:
    # Liked: (1, 0) and (0, 1), so the taste is (√½, √½). Cosines: √½, √½, 1, -√½ (none below 0), and unknown.
    vectors = {0: (1, 0), 1: (0, 1), 2: (0.5**0.5, 0.5**0.5), 3: (-1, 0)}
    entries = [make_entry(n, episode=0) for n in range(5)]
    usage = {0: LIKED, 1: Usage(useful=3, not_useful=2), 3: Usage(useful=2, not_useful=2)}
    found = boosts(make_scene("hybrid", entries, [0] * 5, vectors=vectors, usage=usage), np.arange(5), 1.0)
    assert found.keys() == {"personalisation"}
    np.testing.assert_allclose(found["personalisation"], [0.0707107, 0.0707107, 0.1, 0, 0.0603553], atol=1e-6)


def test_useful_memories_without_vectors_are_ignored() -> None:
    entries = [make_entry(n, episode=0) for n in range(2)]
    scene = make_scene("hybrid", entries, [0, 0], vectors={1: (1, 0)}, usage={0: LIKED})
    assert boosts(scene, np.arange(2), 1.0) == {}


@pytest.mark.parametrize(("mode", "scale"), [("hybrid", 1.0), ("balanced", 0.5)])
def test_boosts_are_log_odds_and_come_before_the_cut(mode: Mode, scale: float) -> None:
    # Two units of log-odds, which the mode's semantic weight is worth: m2 gains 0.03 + 0.8 units, m1 gains 0.03.
    entries = [make_entry(n, episode=0) for n in range(5)]
    given: dict[str, Any] = {"relationship": {2: 0.8}, "returned": [1, 2], "k": 2, "weights": {"recency": 0.0}}
    ranking = rank(asked := make_scene(mode, entries, [2.0, 1.9, 1.5, 0.0, 0.0], **given))
    assert not ranking.tiebreak_applied
    assert ids_of(asked, ranking) == ["m2", "m0"]
    assert ranking.scores[0] - ranking.scores[1] == pytest.approx((0.83 - 0.5) / 2 * scale)
    np.testing.assert_allclose(ranking.boosts["relationship"], [0.4 * scale, 0])
    np.testing.assert_allclose(ranking.boosts["session_continuity"], [0.015 * scale, 0])


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_each_boost_has_a_weight_of_its_own(mode: Mode) -> None:
    entries = [make_entry(n, episode=0) for n in range(3)]
    given: dict[str, Any] = {"relationship": {2: 0.8}, "returned": [1], "usage": {0: LIKED}, "vectors": {0: (1, 0)}}
    scene = make_scene(mode, entries, [2, 1, 0], **given)
    usual = boosts(scene, np.arange(3), 2.0)
    assert usual.keys() == BOOSTS[mode].keys()
    for name in usual:
        for times in (0.0, 0.5, 2.0):
            weights = {**BOOSTS[mode], name: times * BOOSTS[mode][name]}
            found = boosts(replace(scene, tuning=replace(scene.tuning, boosts=weights)), np.arange(3), 2.0)
            assert found.keys() == usual.keys() - ({name} if not times else set())
            for other, values in found.items():
                expected = usual[other] * (times if other == name else 1.0)
                np.testing.assert_allclose(values, expected)


def test_answer_explains_boosts_with_the_weights_that_hold() -> None:
    told = [make_event("message", id=name, content=text) for name, text in (("a", "red bike"), ("b", "green tea"))]
    judged = make_event("memory.feedback", memory_id="a", useful=True)
    settings = {"weights": {"hybrid": {"personalisation": 0}}}
    decided = ControlHistory()
    decided.add(0, TenantSettings(type="tenant.settings", tenant_id="acme", name="recall", settings=settings))
    ask = make_event("recall", query="red bike", k=1)
    own, balanced = ask | {"weights": {"personalisation": 0.5}}, ask | {"mode": "balanced", "session_id": "s"}
    asked = [ask, own, balanced, balanced, balanced | {"session_id": "t"}, balanced | {"as_of": {"event_time": 5}}]
    done = run_flow([*told, judged, *asked], decisions=decided).responses
    unit = explained(done[1])["a"]["weights"]["recency"] / WEIGHTS["hybrid"]["recency"]  # a score's, of log-odds
    liked, returned = pytest.approx(0.05 * unit, rel=1e-3), pytest.approx(0.015 * unit, rel=1e-3)
    assert [explained(response)["a"]["boosts"] for response in done] == [
        {}, {"personalisation": pytest.approx(0.5 * unit, rel=1e-3)}, {"personalisation": liked},
        {"personalisation": liked, "session_continuity": returned}, {"personalisation": liked}, {},
    ]  # fmt: skip
    for response in done:
        told_of = explained(response)["a"]
        total = sum(told_of["weights"][name] * value for name, value in told_of["factors"].items())
        assert response["memories"][0]["score"] == pytest.approx(total + sum(told_of["boosts"].values()), abs=1e-5)


@pytest.mark.parametrize("mode", ["relevance", "recency", "entity_focused", "episode", "decayed"])
def test_other_modes_have_none(mode: Mode) -> None:
    entries = [make_entry(n, episode=0) for n in range(3)]
    given: dict[str, Any] = {
        "relationship": {2: 0.1}, "returned": [1], "usage": {0: LIKED}, "vectors": {0: (1, 0), 1: (1, 0)},
    }  # fmt: skip
    assert rank(make_scene(mode, entries, [2, 1, 0], **given)).boosts == {}


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
