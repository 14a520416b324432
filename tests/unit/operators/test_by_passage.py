"""BM25 of the best passage, against the formula for one passage after the other."""

import math
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.bm25 import K1
from recallflow.operators.recall.by_passage import best_passages
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import PASSAGE_END, Entry

WORDS = st.sampled_from(["key", "cabin", "tea", "rose"])
MEMORIES = st.lists(st.lists(st.lists(WORDS, max_size=4), min_size=1, max_size=3), min_size=1, max_size=6)
B = 0.75


@given(memories=MEMORIES, asked=st.lists(WORDS, max_size=3, unique=True), removed=st.booleans())
def test_the_best_passage_of_each_memory_counts(
    make_entry: Callable[..., Entry], memories: list[list[list[str]]], asked: list[str], removed: bool
) -> None:
    index = OwnerIndex("model", 2)
    index.add(
        [
            make_entry(seq, episode=seq, stems=PASSAGE_END.join(" ".join(passage) for passage in memory))
            for seq, memory in enumerate(memories)
        ],
        {},
    )
    if removed:
        index.remove(0)
        memories = memories[1:]
    lengths = [len(passage) for memory in memories for passage in memory]
    mean = max(sum(lengths) / max(len(lengths), 1), 1e-9)

    def bm25(passage: list[str]) -> float:
        score = 0.0
        for word in asked:
            holding = sum(any(word in one for one in memory) for memory in memories)
            rarity = math.log1p((len(memories) - holding + 0.5) / (holding + 0.5))
            count = passage.count(word)
            score += rarity * count / (count + K1 * (1 - B + B * len(passage) / mean)) if count else 0.0
        return score

    scores, which = best_passages(index, asked, B)
    assert len(scores) == len(which) == len(memories)
    for memory, score, at in zip(memories, scores, which, strict=True):
        expected = [bm25(passage) for passage in memory]
        np.testing.assert_allclose(score, max(expected), rtol=1e-9)
        np.testing.assert_allclose(expected[at], max(expected), rtol=1e-9)
