"""BM25 over memories and their neighbours, against counting words text by text."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall import bm25
from recallflow.operators.recall.bm25 import K1, SQUASH, B, bm25_columns
from recallflow.state.index import WINDOWS, OwnerIndex
from recallflow.state.rows import Entry

MakeEntry = Callable[..., Entry]

WORDS = ["red", "bike", "tea", "x"]
SAID = st.lists(st.tuples(st.integers(-1, 2), st.lists(st.sampled_from(WORDS), max_size=4)), min_size=1, max_size=14)


def expected(texts: list[list[str]], asked: list[str]) -> list[float]:
    lengths = [len(text) for text in texts]
    mean = max(sum(lengths) / len(texts), 1e-9)
    scores = []
    for text in texts:
        score = 0.0
        for word in asked:
            held = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - held + 0.5) / (held + 0.5))
            count = text.count(word)
            score += idf * count / (count + K1 * (1 - B + B * len(text) / mean))
        scores.append(score / (score + SQUASH))
    return scores


@given(said=SAID, asked=st.lists(st.sampled_from([*WORDS, "never"]), max_size=5), data=st.data())
def test_each_reach_s_texts_are_scored_as_one_by_one(
    make_entry: MakeEntry, said: list[tuple[int, list[str]]], asked: list[str], data: st.DataObject
) -> None:
    index = OwnerIndex("model", 2)
    index.add([make_entry(n, episode=e, created_ms=n, stems=" ".join(s)) for n, (e, s) in enumerate(said)], {})
    for seq in data.draw(st.sets(st.integers(0, len(said) - 1), max_size=3)):
        index.remove(seq)
    conversation, segment = index.conversation, index.conversation.segment
    own = [said[slot][1] for slot in conversation.slots]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "_AT_ONCE", data.draw(st.sampled_from([1, 1 << 20])))
        found = bm25_columns(index, asked)
    assert found.keys() == set(WINDOWS)
    for reach in WINDOWS:
        texts = [
            [word for q, other in enumerate(own) if abs(p - q) <= reach and segment[q] == segment[p] for word in other]
            for p in range(len(own))
        ]
        np.testing.assert_allclose(found[reach], expected(texts, asked) if texts else [], rtol=1e-9, atol=1e-12)
