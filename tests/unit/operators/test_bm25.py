"""BM25 of memories, their neighbourhoods and their episodes, against counting words text by text."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall import bm25
from recallflow.operators.recall.bm25 import K1, LENIENT_B, B, bm25_scores, phrase_column
from recallflow.state.index import OwnerIndex
from tests.unit.operators.harness import make_entry

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
        patch.setattr(bm25, "_AT_ONCE", data.draw(st.sampled_from([1, 1 << 20])))
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
