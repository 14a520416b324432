"""How each mode orders memories, with scores worked out by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed
from recallflow.operators.recall.modes import HYBRID_WEIGHTS, MODES, Ranking, Scene, explained, rank
from recallflow.operators.recall.question import understand
from recallflow.queries import Decay, DecayFunction, Mode, Recall
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Vectors

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
MODEL = "model"

MakeEntry = Callable[..., Entry]
MakeEvent = Callable[..., dict[str, Any]]
RunFlow = Callable[..., Processed]


def ago(days: float) -> int:
    return NOW_MS - round(days * DAY_MS)


def scene(
    mode: Mode,
    entries: Sequence[Entry],
    semantic: Sequence[float],
    *,
    k: int = 10,
    vectors: Mapping[int, tuple[float, float]] | None = None,
    allowed: Sequence[int] | None = None,
    question: str = "?",
    decay: Decay | None = None,
) -> Scene:
    """`semantic` and `allowed` are by place: give entries in conversation order."""
    index = OwnerIndex(MODEL, 2)
    index.add(entries, {seq: Vectors(MODEL, np.array([row], np.float32)) for seq, row in (vectors or {}).items()})
    assert [index.ids[slot] for slot in index.conversation.slots] == [entry.id for entry in entries]
    query = Recall(
        type="recall", tenant_id="acme", user_id="ann", query=question, mode=mode, k=k, decay=decay or Decay()
    )
    places = np.arange(len(entries)) if allowed is None else np.array(allowed)
    return Scene(index, understand(question, []), query, k, NOW_MS, np.array(semantic, np.float64), places)


def ids(scene: Scene, ranking: Ranking) -> list[str]:
    return [scene.index.ids[scene.index.conversation.slots[place]] for place in ranking.places]


def answer(asked: Scene) -> list[str]:
    return ids(asked, rank(asked))


def episode_of(make_entry: MakeEntry, count: int, **fields: Any) -> list[Entry]:
    """Memories that differ in nothing but their order."""
    return [make_entry(n, episode=0, **fields) for n in range(count)]


# ── relevance ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_relevance_is_by_the_signal_alone(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=n, importance=1 - n / 3) for n in range(4)]
    asked = scene("relevance", entries, [-1.0, 3.0, 1.0, 7.0])
    ranking = rank(asked)
    assert ids(asked, ranking) == ["m3", "m1", "m2", "m0"]
    np.testing.assert_allclose(ranking.scores, [1, 0.5, 0.25, 0])  # min-max over -1 to 7


def test_relevance_scores_span_what_is_answered(make_entry: MakeEntry) -> None:
    asked = scene("relevance", episode_of(make_entry, 4), [-1.0, 3.0, 1.0, 7.0], k=3)
    np.testing.assert_allclose(rank(asked).scores, [1, 1 / 3, 0])


def test_equal_signals_come_in_conversation_order(make_entry: MakeEntry) -> None:
    assert answer(scene("relevance", episode_of(make_entry, 5), [1, 2, 1, 2, 1])) == ["m1", "m3", "m0", "m2", "m4"]


@pytest.mark.parametrize("mode", list(MODES))
def test_no_mode_answers_what_is_not_allowed(make_entry: MakeEntry, mode: Mode) -> None:
    entries = episode_of(make_entry, 4, created_ms=ago(1), stems="tea")
    asked = scene(mode, entries, [4, 3, 2, 1], allowed=[1, 3], question="tea")
    assert set(answer(asked)) == {"m1", "m3"}


@pytest.mark.parametrize("mode", list(MODES))
def test_every_mode_fills_k_and_no_more(make_entry: MakeEntry, mode: Mode) -> None:
    entries = episode_of(make_entry, 6, created_ms=ago(1), stems="tea")
    for k in (1, 5, 6, 50):
        asked = scene(mode, entries, range(6), k=k, question="tea")
        ranking = rank(asked)
        assert len(ranking.places) == len(ranking.scores) == min(k, 6)
        assert {len(values) for values in ranking.factors.values()} == {min(k, 6)}


# ── recency ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_recency_is_a_decay_of_age(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=ago(days)) for n, days in enumerate([60, 30, 0])]
    asked = scene("recency", entries, [9, 0, 0])
    ranking = rank(asked)
    assert ids(asked, ranking) == ["m2", "m1", "m0"]
    np.testing.assert_allclose(ranking.scores, [1, 0.36787944, 0.13533528], rtol=1e-7)


def test_recency_follows_the_decay_that_is_asked_for(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=ago(days)) for n, days in enumerate([60, 30, 0])]
    hyperbolic = Decay(function="hyperbolic", decay_days=20)
    np.testing.assert_allclose(rank(scene("recency", entries, [0] * 3, decay=hyperbolic)).scores, [1, 0.4, 0.25])


@pytest.mark.parametrize("function", get_args(DecayFunction))
def test_ties_of_recency_go_to_the_later_time_and_then_the_later_arrival(
    make_entry: MakeEntry, function: DecayFunction
) -> None:
    # All lie ahead and count as now, so that every decay gives them 1.
    entries = [make_entry(seq, episode=0, created_ms=ago(-days)) for seq, days in [(1, 1), (3, 1), (4, 1), (0, 2)]]
    assert answer(scene("recency", entries, [0] * 4, decay=Decay(function=function))) == ["m0", "m4", "m3", "m1"]


def test_ages_that_a_decay_cannot_tell_apart_still_come_latest_first(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=ago(days)) for n, days in enumerate([900, 800, 700, 600])]
    step, steep = Decay(function="step", threshold_days=1), Decay(tau_days=0.001)
    for decay in (step, steep):  # exp(-600,000) is no float
        ranking = rank(asked := scene("recency", entries, [0] * 4, k=3, decay=decay))
        assert ranking.scores.tolist() == [0, 0, 0]
        assert ids(asked, ranking) == ["m3", "m2", "m1"]


# ── hybrid ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hybrid_weights_are_the_contract() -> None:
    assert dict(HYBRID_WEIGHTS) == {
        "semantic": 0.45,
        "cluster": 0.10,
        "recency": 0.15,
        "importance": 0.10,
        "usage": 0.05,
        "quality": 0.10,
        "decay": 0.05,
    }
    assert sum(HYBRID_WEIGHTS.values()) == pytest.approx(1)


def test_a_hybrid_score_by_hand(make_entry: MakeEntry) -> None:
    # Signals 4, 2, 0 span 4 units of log-odds: semantic factors 1, 0.5, 0, and the other weights are divided by 4.
    # Recency, exp(-t/30) of 0, 30 and 60 days: 1, 0.367879, 0.135335, stretched 1, 0.268941, 0.
    # Decay, 1/(1 + t/30): 1, 0.5, 0.333333, stretched 1, 0.25, 0. Importance 0, 0.5, 1 as it is.
    # Quality 0.2, 0.2, 0.7, stretched 0, 0, 1. Cluster: two at 45° to their centroid and one alone, stretched 0, 0, 1.
    entries = [
        make_entry(1, episode=0, created_ms=ago(60), importance=1.0, confidence=0.2),
        make_entry(0, episode=0, created_ms=ago(30), importance=0.5, confidence=0.2),
        make_entry(2, episode=2, created_ms=ago(0), importance=0.0, confidence=0.7),
    ]
    asked = scene("hybrid", entries, [0.0, 2.0, 4.0], vectors={0: (1, 0), 1: (0, 1), 2: (1, 0)})
    ranking = rank(asked)
    assert ids(asked, ranking) == ["m2", "m0", "m1"]
    assert not ranking.tiebreak_applied
    assert ranking.weights == pytest.approx(
        {
            "semantic": 0.45,
            "cluster": 0.025,
            "recency": 0.0375,
            "importance": 0.025,
            "usage": 0.0125,
            "quality": 0.025,
            "decay": 0.0125,
        }
    )
    factors: dict[str, list[float]] = {
        "semantic": [1, 0.5, 0],
        "cluster": [1, 0, 0],
        "recency": [1, 0.26894142, 0],
        "importance": [0, 0.5, 1],
        "usage": [0, 0, 0],
        "quality": [1, 0, 0],
        "decay": [1, 0.25, 0],
    }
    assert ranking.factors.keys() == factors.keys()
    for name, expected in factors.items():
        np.testing.assert_allclose(ranking.factors[name], expected, rtol=1e-6, atol=1e-7, err_msg=name)
    # 0.45 + 0.025 + 0.0375 + 0.025 + 0.0125; 0.225 + 0.010085303 + 0.0125 + 0.003125; 0.025
    np.testing.assert_allclose(ranking.scores, [0.55, 0.250710303, 0.025], rtol=1e-6)


def test_a_signal_within_one_unit_of_log_odds_is_not_stretched(make_entry: MakeEntry) -> None:
    asked = scene("hybrid", episode_of(make_entry, 3), [0.5, 0.25, 0.0])
    ranking = rank(asked)
    np.testing.assert_allclose(ranking.factors["semantic"], [0.5, 0.25, 0])
    assert ranking.weights == pytest.approx(dict(HYBRID_WEIGHTS))
    np.testing.assert_allclose(ranking.scores, [0.225, 0.1125, 0])


def test_one_unit_of_log_odds_outweighs_the_same_weight_of_another_factor(make_entry: MakeEntry) -> None:
    # Importance 0 to 1 is worth 0.10/0.45 of a unit, whatever the span of the batch: 0.2 units behind it wins, 0.3 not.
    for span in (1.0, 10.0, 100.0):
        for behind, first in ((0.2, "m1"), (0.3, "m0")):
            entries = [make_entry(n, episode=0, created_ms=n, importance=i) for n, i in enumerate([0.0, 1.0, 0.0])]
            assert answer(scene("hybrid", entries, [span, span - behind, 0.0]))[0] == first


@pytest.mark.parametrize(("spread", "counts"), [(0.04, False), (0.06, True)])
def test_a_factor_that_hardly_varies_counts_as_constant(make_entry: MakeEntry, spread: float, counts: bool) -> None:
    entries = [make_entry(n, episode=0, importance=i) for n, i in enumerate([0.5, 0.5 + spread])]
    ranking = rank(asked := scene("hybrid", entries, [0.1, 0.0]))
    assert ids(asked, ranking) == (["m1", "m0"] if counts else ["m0", "m1"])
    assert ranking.factors["importance"].tolist() == ([1, 0] if counts else [0, 0])


def test_hybrid_looks_at_more_candidates_than_it_answers(make_entry: MakeEntry) -> None:
    # The 40 best by signal are looked at, or 4·k where that is more. One memory is the most important, trusted and
    # recent by far, worth 0.4 in all; a step of the signal costs 0.45/300.
    def first(rank_of_best: int, k: int) -> list[str]:
        entries = [
            make_entry(n, episode=0, created_ms=ago(1000), importance=0.0, confidence=0.0)
            if n != rank_of_best
            else make_entry(n, episode=n, created_ms=ago(0), importance=1.0, confidence=1.0)
            for n in range(300)
        ]
        order = sorted(entries, key=lambda entry: (entry.episode, entry.seq))
        return answer(scene("hybrid", order, [1 - entry.seq / 300 for entry in order], k=k))

    assert first(39, k=1) == ["m39"]
    assert first(40, k=1) == ["m0"]
    assert first(199, k=50)[0] == "m199"
    assert "m200" not in first(200, k=50)


# ── the tie-break chain ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_tie_break_is_by_signal_then_importance_then_recency_then_id(make_entry: MakeEntry) -> None:
    # Importance and age vary below the spread floor, and the signal by 0.02: all scores are about equal.
    facts: dict[str, tuple[float, float, float]] = {
        "a": (0.02, 0.50, 1.0),
        "b": (0.00, 0.52, 1.0),
        "c": (0.00, 0.51, 0.5),
        "d": (0.00, 0.51, 1.0),
        "e": (0.00, 0.51, 1.0),
    }
    expected = ["a", "b", "c", "e", "d"]
    for order in ("abcde", "edcba", "cadbe"):
        entries = [
            make_entry(n, id=name, importance=facts[name][1], created_ms=ago(facts[name][2]))
            for n, name in reversed(list(enumerate(order)))
        ]
        asked = scene("hybrid", entries, [facts[entry.id][0] for entry in entries])
        ranking = rank(asked)
        assert ranking.tiebreak_applied
        assert ids(asked, ranking) == expected


@pytest.mark.parametrize(("difference", "tied"), [(0.08, True), (0.09, False)])
def test_scores_are_tied_below_a_deviation_of_002(make_entry: MakeEntry, difference: float, tied: bool) -> None:
    # Two scores 0 and 0.45·d deviate by 0.225·d: 0.018 and 0.02025. The less similar one is the more important.
    entries = [make_entry(n, episode=0, importance=i) for n, i in enumerate([0.5, 0.54])]
    assert rank(scene("hybrid", entries, [difference, 0.0])).tiebreak_applied is tied


def test_a_tie_break_can_turn_the_order_of_the_scores_around(make_entry: MakeEntry) -> None:
    # Importance 0 and 0.3 would win by 0.10·1 over 0.45·0.1 of signal, were the scores of the batch not all so close:
    # eighteen others between them hold the deviation down.
    entries = [make_entry(n, episode=0, importance=0.3 if n == 19 else 0.0) for n in range(20)]
    semantic = [0.1] + [0.09] * 18 + [0.05]
    ranking = rank(asked := scene("hybrid", entries, semantic))
    assert ranking.tiebreak_applied
    assert ranking.scores[0] < 0.10
    assert ids(asked, ranking)[0] == "m0"


def test_a_single_memory_is_no_tie(make_entry: MakeEntry) -> None:
    ranking = rank(scene("hybrid", episode_of(make_entry, 1), [3.0]))
    assert not ranking.tiebreak_applied
    assert ranking.scores.tolist() == [0]


def test_equal_scores_without_a_tie_go_to_the_better_signal(make_entry: MakeEntry) -> None:
    # 0.45·(2/9) of signal against 0.10·1 of importance: 0.1 each, beside one far behind.
    entries = [make_entry(n, episode=0, importance=i) for n, i in enumerate([1.0, 0.0, 0.0, 0.0])]
    semantic = [0.5, 0.5 + 0.10 / 0.45, 0.0, 0.0]
    asked = scene("hybrid", entries, semantic)
    ranking = rank(asked)
    assert not ranking.tiebreak_applied
    np.testing.assert_allclose(ranking.scores, [0.325, 0.325, 0, 0], atol=1e-12)
    assert ids(asked, ranking)[2:] == ["m2", "m3"]


# ── episode ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_episode_mode_answers_whole_episodes_by_mentions(make_entry: MakeEntry) -> None:
    # Four episodes; by their best members, the ones opened by 6, 0 and 2 are in.
    words = {0: "tea", 1: "tea tea", 2: "", 3: "tea", 4: "tea tea tea", 5: "", 6: "tea", 7: ""}
    entries = [make_entry(n, episode=n - n % 2, created_ms=n, stems=text) for n, text in words.items()]
    asked = scene("episode", entries, [5, 0, 0, 4, 3, 3, 0, 6], question="tea", k=5)
    ranking = rank(asked)
    assert ids(asked, ranking) == ["m1", "m0", "m3", "m6", "m2"]
    np.testing.assert_allclose(ranking.scores, [1, 0.5, 0.5, 0.5, 0])
    np.testing.assert_allclose(ranking.factors["mentions"], [2, 1, 1, 1, 0])


def test_episode_mode_counts_each_word_of_the_question_once(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=n, stems=s) for n, s in enumerate(["bike", "tea tea", "tea bike"])]
    asked = scene("episode", entries, [0, 0, 1], question="tea, tea and a bike")
    assert rank(asked).factors["mentions"].tolist() == [2, 2, 1]
    assert answer(asked) == ["m1", "m2", "m0"]


def test_without_any_mention_an_episode_comes_as_it_was_said(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=n, stems="tea") for n in range(3)]
    for question in ("bike", "what?"):
        ranking = rank(asked := scene("episode", entries, [0, 2, 1], question=question))
        assert ids(asked, ranking) == ["m0", "m1", "m2"]
        assert ranking.scores.tolist() == [0, 0, 0]


def test_episode_mode_chooses_episodes_by_allowed_members_only(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=n, created_ms=n, stems="tea") for n in range(5)]
    asked = scene("episode", entries, [9, 5, 4, 3, 2], allowed=[1, 2, 3, 4], question="tea")
    assert answer(asked) == ["m1", "m2", "m3"]


# ── what all modes owe ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", list(MODES))
@given(data=st.data(), count=st.integers(1, 12), k=st.integers(1, 12))
def test_a_score_is_the_sum_of_its_explained_factors(
    make_entry: MakeEntry, mode: Mode, data: st.DataObject, count: int, k: int
) -> None:
    shares = st.floats(0, 1)
    entries = [
        make_entry(
            n,
            episode=0,
            created_ms=ago(count - n),
            importance=data.draw(shares),
            confidence=data.draw(shares),
            stems=data.draw(st.sampled_from(["tea", "tea tea", "bike", ""])),
        )
        for n in range(count)
    ]
    semantic = data.draw(st.lists(st.floats(-20, 20), min_size=count, max_size=count))
    asked = scene(mode, entries, semantic, k=k, question="tea", vectors={n: (1, n) for n in range(0, count, 2)})
    ranking = rank(asked)
    assert len(set(ranking.places.tolist())) == min(k, count)
    if not ranking.tiebreak_applied:
        assert (np.diff(ranking.scores) <= 0).all()
    for at, score in enumerate(ranking.scores):
        told = explained(ranking, at)
        total = sum(told["weights"][name] * factor for name, factor in told["factors"].items())
        assert total == pytest.approx(score, abs=1e-4)
        assert told["boosts"] == {}


def test_the_modes_of_the_contract_that_exist_are_answered_and_others_refused(
    make_event: MakeEvent, run_flow: RunFlow
) -> None:
    asked = [make_event("recall", id=mode, query="tea?", mode=mode) for mode in get_args(Mode)]
    processed = run_flow([make_event("message", content="tea"), *asked])
    refused = {r["query_id"] for r in processed.responses if r["status"] == "error"}
    assert refused == set(get_args(Mode)) - MODES.keys()
    assert {r["error"]["code"] for r in processed.responses if r["status"] == "error"} <= {"unsupported"}


def test_the_flow_answers_in_the_order_of_the_mode(make_event: MakeEvent, run_flow: RunFlow) -> None:
    said = [
        ("old", ago(20), "The red bike is in the garage"),
        ("new", ago(2), "We had tea"),
        ("last", ago(1), "Good night"),
    ]
    told = [make_event("message", at, id=name, session_id=name, content=text) for name, at, text in said]
    modes = ("relevance", "hybrid", "recency", "episode")
    asked = [make_event("recall", NOW_MS, query="Where is the red bike?", mode=mode) for mode in modes]
    answers = [[m["id"] for m in r["memories"]] for r in run_flow([*told, *asked]).responses]
    relevance, hybrid, recency, episode = answers
    assert relevance[0] == hybrid[0] == episode[0] == "old"
    assert recency == ["last", "new", "old"]
