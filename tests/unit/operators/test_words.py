"""Word statistics of memories: BM25, phrases and rare units, against counting text by text."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import NO_FLOATS, TextVectors
from recallflow.operators.recall import columns, words
from recallflow.operators.recall.columns import Cut
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.weights import WEIGHTS
from recallflow.operators.recall.words import BEFORE, K1, LENIENT_B, LENT, NAMES, B, Units, bm25_scores, phrase_column
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Vectors
from recallflow.state.tokens import to_bytes
from tests.unit.operators.harness import make_entry

MODEL = "model"
NOWHERE = TextVectors(np.zeros(2, np.float32), NO_FLOATS)

Floats = npt.NDArray[np.float64]


def indexed(said: Sequence[tuple[int, str]]) -> OwnerIndex:
    index = OwnerIndex(MODEL, 2)
    index.add([make_entry(n, episode=e, created_ms=n, stems=s) for n, (e, s) in enumerate(said)], {})
    return index


def z(values: Floats, sample: Floats | None = None) -> Floats:
    typical = values if sample is None else sample
    scores: Floats = (values - typical.mean()) / (typical.std() + 1e-6)
    return scores


def every(index: OwnerIndex) -> npt.NDArray[np.int64]:
    return np.arange(index.conversation.size)


def test_the_columns_by_hand() -> None:
    # The word asked for stands in the first of four messages; the last is of another episode.
    # word: 1, 0, 0, 0; lent to those behind it at 0.95: word_before 1, 0.95, 0.95, 0.
    index = indexed([(0, "bike"), (0, "x"), (0, "x"), (1, "x")])
    found = words.columns(index, Units(np.ones(1), ("bike",)), every(index))
    np.testing.assert_allclose(found["word"].scores, z(np.array([1.0, 0, 0, 0])), rtol=1e-4)
    np.testing.assert_allclose(found["word_before"].scores, z(np.array([1.0, 0.95, 0.95, 0])), rtol=1e-4)


def test_units_weigh_by_rarity_and_leave_names_out() -> None:
    # Of three memories two hold "bike", one "tour": ln(1 + 1.5/2.5) = 0.470003629, ln(1 + 2.5/1.5) = 0.980829253.
    index = indexed([(0, "bike"), (0, "bike tour"), (0, "x")])
    found = words.units(index, understand("Ann's bike tour?", ["Ann"]), NOWHERE)
    assert found.stems == ("bike", "tour")
    np.testing.assert_allclose(found.weights, np.array([0.470003629, 0.980829253]) / 1.450832882, rtol=1e-6)


def test_units_are_tokens_where_memories_have_some() -> None:
    index = OwnerIndex(MODEL, 2)
    tokens = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0, 3]], np.float32)]
    stored = {(n, 0): Vectors(MODEL, np.eye(2, dtype=np.float32)[:1], to_bytes(one)) for n, one in enumerate(tokens)}
    index.add([make_entry(n, episode=n) for n in range(2)], stored)
    # Lengths 3, 0, 1: shares 0.75 and 0.25; the one without direction says nothing.
    query = TextVectors(np.zeros(2, np.float32), np.array([[3, 0], [0, 0], [0, 1]], np.float32))
    found = words.units(index, understand("?", []), query)
    assert found.weights.tolist() == [0.75, 0.25]
    np.testing.assert_allclose(
        words.columns(index, found, every(index))["word"].scores, z(np.array([0.75, 0.25])), rtol=1e-3
    )


SAID_TEXTS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(["bike", "biker", "tea", "teapot", "x"]), max_size=3)),
    min_size=1,
    max_size=14,
)


def by_one(index: OwnerIndex, stems: Sequence[str], weights: Floats) -> dict[str, Floats]:
    """The columns before the z-score, place by place."""
    conversation = index.conversation
    size, segment = conversation.size, conversation.segment
    closest = index.words.closest(stems, conversation.slots, weights)

    def lent(place: int, before: int) -> Any:
        own = closest[:, place]
        near = [q for q in range(max(place - before, 0), place) if segment[q] == segment[place]]
        return weights @ np.max([own, *(LENT * closest[:, q] for q in near)], axis=0)

    reach = {"word": 0, "word_before": BEFORE}
    return {name: np.array([lent(place, reach[name]) for place in range(size)]) for name in NAMES}


@given(
    said=SAID_TEXTS,
    stems=st.lists(st.sampled_from(["bike", "teapot", "never"]), min_size=1, unique=True),
    data=st.data(),
)
def test_columns_agree_with_single_places(
    said: list[tuple[int, list[str]]], stems: list[str], data: st.DataObject
) -> None:
    index = indexed([(episode, " ".join(stems)) for episode, stems in said])
    weights = np.full(len(stems), 1 / len(stems))
    units = Units(weights, tuple(stems))
    expected = {name: z(values) for name, values in by_one(index, stems, weights).items()}
    whole = words.columns(index, units, every(index))
    some = np.array(sorted(data.draw(st.sets(st.sampled_from(every(index).tolist()), min_size=1))))
    part = words.columns(index, units, some)
    for name in NAMES:
        # Values that are all but equal have deviations of rounding errors; they tell nothing apart.
        np.testing.assert_allclose(whole[name].scores, expected[name], rtol=1e-3, atol=0.2)
        scores = np.asarray(part[name].scores)
        np.testing.assert_allclose(scores[some], whole[name].scores.take(some), rtol=1e-3, atol=0.2)
        assert not np.delete(scores, some).any()


def test_best_of_large_and_small_owners_score_alike() -> None:
    texts = ["bike tour", "tea", "x", "bike", "cake", "x y", "tea cake", "y"] * 4
    said = [(n // 6, text) for n, text in enumerate(texts)]
    index, question = indexed(said), understand("Which bike tour?", [])
    whole = columns.compute(index, question, NOWHERE, WEIGHTS["spelling"]["people"])
    cut = columns.compute(index, question, NOWHERE, WEIGHTS["spelling"]["people"], cut=Cut(above=8, best=12))
    assert (whole.complete, cut.complete) == (True, False)
    (looked_at,) = np.asarray(cut.values["word"]).nonzero()
    assert 0 < len(looked_at) <= 12
    assert int(np.argmax(whole.score())) in looked_at
    np.testing.assert_allclose(cut.score()[looked_at], whole.score()[looked_at], rtol=1e-5)


WORDS = ["red", "bike", "tea", "x"]
SAID = st.lists(st.tuples(st.integers(-1, 2), st.lists(st.sampled_from(WORDS), max_size=4)), min_size=1, max_size=14)


def idf(held: int, texts: int) -> float:
    return math.log(1 + (texts - held + 0.5) / (held + 0.5))


def expected(texts: list[list[str]], asked: list[str], b: float = B) -> list[float]:
    mean = max(sum(map(len, texts)) / len(texts), 1e-9)
    scores = []
    for text in texts:
        score = 0.0
        for word in asked:
            count = text.count(word)
            worth = idf(sum(word in other for other in texts), len(texts))
            score += worth * count / (count + K1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


@given(
    said=SAID, asked=st.lists(st.sampled_from([*WORDS, "never"]), max_size=5), bare=st.sets(st.sampled_from(WORDS)),
    data=st.data(),
)  # fmt: skip
def test_scores_are_those_of_single_texts(
    said: list[tuple[int, list[str]]], asked: list[str], bare: set[str], data: st.DataObject
) -> None:
    index = OwnerIndex("model", 2)
    index.add([make_entry(n, episode=e, created_ms=n, stems=" ".join(s)) for n, (e, s) in enumerate(said)], {})
    for seq in data.draw(st.sets(st.integers(0, len(said) - 1), max_size=3)):
        index.remove(seq)
    conversation, segment = index.conversation, index.conversation.segment
    own = [said[slot][1] for slot in conversation.slots]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_AT_ONCE", data.draw(st.sampled_from([1, 1 << 20])))
        found = bm25_scores(index, asked, bare)
    once = [*dict.fromkeys(asked)]
    places = range(len(own))
    windows = [
        [word for q in places if abs(p - q) <= 2 and segment[q] == segment[p] for word in own[q]] for p in places
    ]
    episodes = [[word for q in places if segment[q] == number for word in own[q]] for number in sorted(set(segment))]
    worth = [idf(sum(word in text for text in own), len(own)) for word in once]
    assert found.worth == pytest.approx(sum(worth))
    if own:
        for values, by_hand in (
            (found.own, expected(own, once)),
            (found.window, expected(windows, asked, LENIENT_B)),
            (found.near, expected(windows, [word for word in once if word in bare])),
        ):
            column = np.zeros(len(own))
            column[found.places] = values
            np.testing.assert_allclose(column, by_hand, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.episode, expected(episodes, once), rtol=1e-9, atol=1e-12)
    together = np.zeros(len(own))
    for pair in dict.fromkeys(itertools.pairwise(asked)):
        holding = [pair in set(itertools.pairwise(text)) for text in own]
        if any(holding):
            together += np.array(holding) * math.log(1 + len(own) / sum(holding))
    np.testing.assert_allclose(np.asarray(phrase_column(index, asked)), together, rtol=1e-9, atol=1e-12)
