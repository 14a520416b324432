"""Ranking modes: order, hand-computed scores, and their factors."""

import math
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import RecallSettings
from recallflow.operators.recall.ranking import age_decay, boosts, memory_factors, quality_factor, rank, usage_factor
from recallflow.operators.recall.ranking_input import Ranking, RankingInput
from recallflow.queries import BOOSTS, WEIGHTS, Decay, DecayFunction, Mode
from recallflow.state.rows import Entry
from recallflow.state.usage import OwnerUsage, Records, Usage
from tests.unit.operators.harness import DAY_MS, ids_of, make_entry, make_inputs

NOW_MS = 1_000 * DAY_MS


def ask(*arguments: Any, **given: Any) -> RankingInput:
    return make_inputs(*arguments, now_ms=NOW_MS, **given)


def answer(inputs: RankingInput) -> list[str]:
    return ids_of(inputs, rank(inputs))


def ago(days: float) -> int:
    return NOW_MS - round(days * DAY_MS)


def episode_of(count: int, **fields: Any) -> list[Entry]:
    """Memories that differ in nothing but their order."""
    return [make_entry(n, episode=0, **fields) for n in range(count)]


def assert_factors(ranking: Ranking, expected: Mapping[str, list[float]]) -> None:
    assert ranking.factors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(ranking.factors[name], values, rtol=1e-6, atol=1e-7, err_msg=name)


def test_relevance_is_by_the_signal_alone() -> None:
    entries = [make_entry(n, episode=0, created_ms=n, importance=1 - n / 3) for n in range(4)]
    ranking = rank(asked := ask("relevance", entries, [-1.0, 3.0, 1.0, 7.0]))
    assert ids_of(asked, ranking) == ["m3", "m1", "m2", "m0"]
    np.testing.assert_allclose(ranking.scores, [1, 0.5, 0.25, 0])  # min-max over -1 to 7


@pytest.mark.parametrize("function", get_args(DecayFunction))
def test_recency_ties_go_to_later_time_then_later_arrival(function: DecayFunction) -> None:
    # All lie ahead and count as now, so that every decay gives them 1.
    entries = [make_entry(seq, episode=0, created_ms=ago(-days)) for seq, days in [(1, 1), (3, 1), (4, 1), (0, 2)]]
    assert answer(ask("recency", entries, [0] * 4, decay=Decay(function=function))) == ["m0", "m4", "m3", "m1"]


def test_ages_equal_under_a_decay_rank_latest_first() -> None:
    entries = [make_entry(n, episode=0, created_ms=ago(days)) for n, days in enumerate([900, 800, 700, 600])]
    step, steep = Decay(function="step", threshold_days=1), Decay(tau_days=0.001)
    for decay in (step, steep):  # exp(-600,000) is no float
        ranking = rank(asked := ask("recency", entries, [0] * 4, k=3, decay=decay))
        assert ranking.scores.tolist() == [0, 0, 0]
        assert ids_of(asked, ranking) == ["m3", "m2", "m1"]


def test_a_hybrid_score_by_hand() -> None:
    # Signals 4, 2, 0 span 4 units of log-odds: semantic factors 1, 0.5, 0, and the other weights are divided by 4.
    # Recency of 0, 30 and 60 days: 1 - ln(1 + t/30)/ln(1 + 365/30), ln 2 = 0.693147, ln 3 = 1.098612, 2.577688.
    # Decay, 1/(1 + t/30): 1, 0.5, 0.333333. Importance 0, 0.5, 1.
    # Cluster: two at 45° to their centroid and one alone.
    # Usage, u/(1 + u)/(1 + t/30): never 0; 3 times 30 days ago, u = ln 4; once just now, u = ln 2.
    # Quality of a confidence of 0.2, 0.2, 0.7 with no, no and one bad voice: 0.2, 0.2, 1.4/3.
    entries = [
        make_entry(1, episode=0, created_ms=ago(60), importance=1.0, confidence=0.2),
        make_entry(0, episode=0, created_ms=ago(30), importance=0.5, confidence=0.2),
        make_entry(2, episode=2, created_ms=ago(0), importance=0.0, confidence=0.7),
    ]
    usage = {0: Usage(ago(30), 3), 2: Usage(ago(0), 1, 0, 1)}
    vectors = {0: (1, 0), 1: (0, 1), 2: (1, 0)}
    ranking = rank(asked := ask("hybrid", entries, [0.0, 2.0, 4.0], vectors=vectors, usage=usage))
    assert ids_of(asked, ranking) == ["m2", "m0", "m1"]
    assert not ranking.tiebreak_applied
    assert ranking.weights == pytest.approx(
        {
            "semantic": 1.0, "cluster": 0.005, "recency": 0.0075, "importance": 0.005, "usage": 0.0025,
            "quality": 0.005, "decay": 0.0025,
        }
    )  # fmt: skip
    assert_factors(
        ranking,
        {
            "semantic": [1, 0.5, 0], "cluster": [1, 0.70710678, 0.70710678], "recency": [1, 0.73109729, 0.57379950],
            "importance": [0, 0.5, 1], "usage": [0.40938389, 0.29047011, 0], "quality": [0.46666667, 0.2, 0.2],
            "decay": [1, 0.5, 0.33333333],
        },
    )  # fmt: skip
    # 1 + 0.005 + 0.0075 + 0.001023460 + 0.002333333 + 0.0025;
    # 0.5 + 0.003535534 + 0.005483230 + 0.0025 + 0.000726175 + 0.001 + 0.00125;
    # 0.003535534 + 0.004303496 + 0.005 + 0.001 + 0.000833333
    np.testing.assert_allclose(ranking.scores, [1.018356793, 0.514494939, 0.014672363], rtol=1e-6)


def test_hybrid_looks_at_more_candidates_than_it_answers() -> None:
    # The 200 best by signal are candidates, whatever k is. One memory is the most important by far, which is worth one
    # unit of log-odds here; a step of the signal is a thousandth of one.
    def first(rank_of_best: int, k: int) -> list[str]:
        entries = [
            make_entry(n, episode=0, created_ms=ago(1000), importance=0.0, confidence=0.0)
            if n != rank_of_best
            else make_entry(n, episode=n, created_ms=ago(0), importance=1.0, confidence=1.0)
            for n in range(300)
        ]
        order = sorted(entries, key=lambda entry: (entry.episode, entry.seq))
        return answer(ask("hybrid", order, [1 - entry.seq / 1000 for entry in order], k=k, weights={"importance": 1.0}))

    for k in (1, 50):
        assert first(199, k)[0] == "m199"
        assert first(200, k)[0] == "m0"


def test_related_memories_are_candidates_despite_low_similarity() -> None:
    # m199 is the last that is looked at for its signal; an edge leads to m260.
    signal = [30 - n / 10 for n in range(270)]
    asked = ask("hybrid", episode_of(270), signal, k=10, relationship={260: 1.0}, weights={"relationship": 25})
    ranking = rank(asked)
    assert ids_of(asked, ranking)[:2] == ["m260", "m0"]
    # It lies below what the stretch spans, which stays what it is without it: 19.9 units of log-odds.
    np.testing.assert_allclose(ranking.factors["semantic"][:3], [0, 1, 1 - 0.1 / 19.9])
    assert ranking.scores[0] - ranking.scores[1] == pytest.approx(25 / 19.9 - 1)


def test_proximity_is_a_hybrid_factor_only_on_request() -> None:
    near = [0.0, 0.5, 1.0]
    entries = episode_of(3)
    assert "proximity" not in rank(ask("hybrid", entries, [2, 1, 0], proximity=near)).factors
    ranking = rank(ask("hybrid", entries, [2, 1, 0], proximity=near, entity_urns=["urn:x"]))
    # Over two units of log-odds its weight of 0.45 is 0.225 here: 1, 0.5 + 0.1125 and 0.225, but for other factors.
    assert ranking.factors["proximity"].tolist() == [0, 0.5, 1]
    assert ranking.weights["proximity"] == pytest.approx(0.225)
    np.testing.assert_allclose(np.diff(ranking.scores), [-0.3875, -0.3875])
    heavy = rank(ask("hybrid", entries, [2, 1, 0], proximity=near, weights={"proximity": 1.2}))
    np.testing.assert_allclose(np.diff(heavy.scores), [-0.2, -0.2])


def test_tie_break_is_signal_importance_recency_id() -> None:
    # Importance and age vary below the spread floor, and the signal by 0.02: all scores are about equal.
    facts: dict[str, tuple[float, float, float]] = {
        "a": (0.02, 0.50, 1.0), "b": (0.00, 0.52, 1.0), "c": (0.00, 0.51, 0.5), "d": (0.00, 0.51, 1.0),
        "e": (0.00, 0.51, 1.0),
    }  # fmt: skip
    expected = ["a", "b", "c", "e", "d"]
    for order in ("abcde", "edcba", "cadbe"):
        entries = [
            make_entry(n, id=name, importance=facts[name][1], created_ms=ago(facts[name][2]))
            for n, name in reversed(list(enumerate(order)))
        ]
        ranking = rank(asked := ask("hybrid", entries, [facts[entry.id][0] for entry in entries]))
        assert ranking.tiebreak_applied
        assert ids_of(asked, ranking) == expected


NO_WEIGHT = {"weights": dict.fromkeys(WEIGHTS["hybrid"], 0.0)}


@pytest.mark.parametrize(
    ("importance", "signal", "fields", "tied", "order"),
    [
        # Two scores 0.02 · 0.04 and d deviate by d/2 - 0.0004: 0.0221 and 0.0246, where the weights' sum is 1.11 and
        # 0.02 of it 0.0222. The less similar one is the more important.
        ([0.5, 0.54], [0.045, 0.0], {}, True, [0, 1]),
        ([0.5, 0.54], [0.05, 0.0], {}, False, [0, 1]),
        # Over 20 units of log-odds, all factors but the signal can make up no more than 1/20: they still tell apart
        # where the signal has no weight.
        ([0.0, 1.0, 0.5], [20, 10, 0], {"weights": {"semantic": 0.0}}, False, [1, 2, 0]),
        # Importance 1 would win by 0.02 over 0.015 of signal, were the scores of the batch not all so close: eighteen
        # others between them hold the deviation down.
        ([0.0] * 19 + [1.0], [0.05] + [0.04] * 18 + [0.035], {"k": 20}, True, [0]),
        ([0.5] * 3, [0.02, 0.01, 0.0], {"returned": [2]}, True, [2, 0, 1]),  # boosts come before the chain
        ([0.5], [3.0], {}, False, [0]),
        ([0.1, 0.9, 0.5], [1.0, 1.0, 2.0], NO_WEIGHT, True, [2, 1, 0]),
        # 0.02 of signal against 0.02·1 of importance, beside two half a unit behind, in the order of their signal.
        ([1.0, 0.0, 0.0, 0.0], [0.5, 0.52, 0.0, 0.0], {}, False, None),
    ],
)
def test_scores_close_to_each_other_are_tied(
    importance: list[float], signal: list[float], fields: dict[str, Any], tied: bool, order: list[int] | None
) -> None:
    entries = [make_entry(n, episode=0, importance=i) for n, i in enumerate(importance)]
    ranking = rank(asked := ask("hybrid", entries, signal, **fields))
    assert ranking.tiebreak_applied is tied
    if order is None:
        np.testing.assert_allclose(np.diff(ranking.scores), [0, -0.52, 0], atol=1e-12)
        assert ids_of(asked, ranking)[2:] == ["m2", "m3"]
    else:
        assert ids_of(asked, ranking)[: len(order)] == [f"m{n}" for n in order]


def test_a_balanced_score_by_hand() -> None:
    # 0.3 · exp(-t/30) + 0.5 · signal over its span + 0.2 · 1/(1 + hops), none of them stretched but the signal.
    entries = [make_entry(n, episode=0, created_ms=ago(days)) for n, days in enumerate([60, 30, 0])]
    ranking = rank(asked := ask("balanced", entries, [4.0, 1.0, 0.0], proximity=[0.0, 1.0, 0.5]))
    assert ids_of(asked, ranking) == ["m0", "m1", "m2"]
    assert ranking.weights == {"recency": 0.3, "semantic": 0.5, "proximity": 0.2}
    assert_factors(
        ranking, {"recency": [0.13533528, 0.36787944, 1], "semantic": [1, 0.25, 0], "proximity": [0, 1, 0.5]}
    )
    # 0.040600585 + 0.5; 0.110363832 + 0.125 + 0.2; 0.3 + 0.1
    np.testing.assert_allclose(ranking.scores, [0.540600585, 0.435363832, 0.4], rtol=1e-6)


def test_balanced_looks_at_the_freshest_and_the_nearest_too() -> None:
    # Of 100, the 40 that fit best are old and far; the last 40 are from today, m50 is near.
    entries = [make_entry(n, episode=0, created_ms=ago(1000 if n < 60 else 0)) for n in range(100)]
    near = [float(n == 50) for n in range(100)]
    asked = ask("balanced", entries, [100 - n for n in range(100)], k=3, proximity=near, weights={"semantic": 0.1})
    assert set(answer(asked)) == {"m60", "m61", "m62"}
    asked = ask("balanced", entries, [100 - n for n in range(100)], k=1, proximity=near, weights={"proximity": 9})
    assert answer(asked) == ["m50"]


def test_a_decayed_score_by_hand() -> None:
    # confidence · 1/(1 + t/30) · relevance: 1 · 0.25 · 0.9; 0.8 · 1 · 0.5; 0.6 · 0.5 · 0.01
    entries = [
        make_entry(0, episode=0, created_ms=ago(90), confidence=1.0),
        make_entry(1, episode=0, created_ms=ago(0), confidence=0.8),
        make_entry(2, episode=0, created_ms=ago(-1), confidence=0.59),
        make_entry(3, episode=3, created_ms=ago(30), confidence=0.6),
    ]
    ranking = rank(asked := ask("decayed", entries, [3.0, 2.0, 9.0, 0.0], relevance=[0.9, 0.5, 1.0, 0.01]))
    assert ids_of(asked, ranking) == ["m1", "m0", "m3"]
    assert_factors(ranking, {"confidence": [0.8, 1, 0.6], "decay": [1, 0.25, 0.5], "similarity": [0.5, 0.9, 0.01]})
    np.testing.assert_allclose(ranking.scores, [0.4, 0.225, 0.003])
    assert ranking.weights == {}


@given(
    signal=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=60), count=st.integers(1, 60),
    data=st.data(),
)  # fmt: skip
def test_best_places_come_in_order(signal: list[float], count: int, data: st.DataObject) -> None:
    allowed = sorted(data.draw(st.sets(st.integers(0, len(signal) - 1), min_size=1)))
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(len(signal))]
    inputs = make_inputs("relevance", entries, signal, allowed=allowed)
    expected = sorted(allowed, key=lambda place: (-signal[place], place))[:count]
    assert inputs.best(count).tolist() == expected


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
    np.testing.assert_allclose(usage_factor(used, NOW_MS), expected)


def test_quality_equals_confidence_until_feedback() -> None:
    used = records(Usage(), Usage(useful=1), Usage(useful=2), Usage(not_useful=1), Usage(useful=1, not_useful=1))
    # (2 · 0.5 + useful) / (2 + voices)
    np.testing.assert_allclose(quality_factor(np.full(5, 0.5), used), [0.5, 2 / 3, 3 / 4, 1 / 3, 0.5])


def test_about_another_moment_neither_use_nor_feedback_counts() -> None:
    entries = [make_entry(n, episode=0, confidence=0.5) for n in range(2)]
    used = {0: Usage(0, 9, 9, 0), 1: Usage(0, 0, 0, 9)}
    now, then = (make_inputs("hybrid", entries, [0, 0], usage=usage) for usage in (used, None))
    assert memory_factors(now, np.arange(2))["usage"].tolist() == [pytest.approx(math.log(10) / (1 + math.log(10))), 0]
    assert memory_factors(now, np.arange(2))["quality"].tolist() == pytest.approx([10 / 11, 1 / 11])
    assert memory_factors(then, np.arange(2))["usage"].tolist() == [0, 0]
    assert memory_factors(then, np.arange(2))["quality"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("function", "expected"), [("hyperbolic", 0.25), ("exponential", 0.5), ("linear", 0.5)])
def test_the_days_of_hyperbolic_decay_count_where_it_is_chosen(function: str, expected: float) -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    inputs = make_inputs("hybrid", entries, [0], now_ms=NOW_MS, decay={"function": function, "decay_days": 10})
    assert memory_factors(inputs, np.arange(1))["decay"].tolist() == [expected]


def test_recency_follows_a_decay_that_is_set() -> None:
    entries = [make_entry(0, episode=0, created_ms=NOW_MS - 30 * DAY_MS)]
    tenant = RecallSettings.model_validate({"decay": {"tau_days": 60}})
    unset, asked, of_tenant = (
        make_inputs("hybrid", entries, [0], now_ms=NOW_MS, **given)
        for given in ({}, {"decay": {"function": "exponential"}}, {"tenant": tenant})
    )
    found = [memory_factors(inputs, np.arange(1))["recency"].tolist() for inputs in (unset, asked, of_tenant)]
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
    np.testing.assert_allclose(age_decay(np.array(ages, np.float64), Decay(**decay)), expected, rtol=1e-7)


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
    np.testing.assert_allclose(age_decay(np.array([30.0]), Decay(function=function)), [at_30_days], rtol=1e-7)


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
    factors = age_decay(np.array([0.0, *sorted(ages)]), decay)
    assert factors[0] == 1
    assert factors.min() >= 0
    assert (np.diff(factors) <= 0).all()
