"""How each mode orders memories, with scores worked out by hand."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.ranking import rank
from recallflow.operators.recall.ranking_input import Ranking, RankingInput
from recallflow.queries import WEIGHTS, Decay, DecayFunction
from recallflow.state.rows import Entry
from recallflow.state.usage import Usage
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
    signal=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=60),
    count=st.integers(1, 60),
    data=st.data(),
)
def test_best_places_come_in_order(signal: list[float], count: int, data: st.DataObject) -> None:
    allowed = sorted(data.draw(st.sets(st.integers(0, len(signal) - 1), min_size=1)))
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(len(signal))]
    inputs = make_inputs("relevance", entries, signal, allowed=allowed)
    expected = sorted(allowed, key=lambda place: (-signal[place], place))[:count]
    assert inputs.best(count).tolist() == expected
