"""Occurrences and spelling similarities, against reading the texts one by one."""

import math
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.state.arrays import Ints
from recallflow.state.lexical import FEATURES, LexicalIndex

Text = list[str]

# Few words, some spelt alike, one too short for a 4-gram, one outside ASCII: hits, misses and repeats are all common.
WORDS = ["cat", "cats", "catch", "dog", "hotdog", "x", "straße", "日本", "日"]
STEMS = st.sampled_from(WORDS)
TEXTS = st.lists(st.lists(STEMS, max_size=7), max_size=12)
ASKED = st.lists(st.sampled_from([*WORDS, "never", "said", "本"]), min_size=1, max_size=5)


def filled(texts: Sequence[Text], cuts: Sequence[int] = ()) -> LexicalIndex:
    """An index to which the texts were added in several calls, cut at the given places."""
    index = LexicalIndex()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]
    for start, stop in pairwise(bounds):
        index.add(texts[start:stop])
    return index


def every(index: LexicalIndex) -> npt.NDArray[np.int64]:
    return np.arange(len(index.lengths()))


def closest(index: LexicalIndex, stems: Sequence[str], slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return index.closest(stems, slots, np.ones(len(stems)))


def features(word: str) -> set[int]:
    marked = f"<{word}>"
    grams = {marked, *word} if word >= "日" else {marked} | {marked[at : at + 4] for at in range(len(marked) - 3)}
    return {zlib.crc32(gram.encode()) % FEATURES for gram in grams}


def similarity(one: str, other: str) -> float:
    a, b = features(one), features(other)
    return len(a & b) / math.sqrt(len(a) * len(b))


def counts(index: LexicalIndex, stems: Sequence[str]) -> Ints:
    slots = len(index.lengths())
    found = [np.bincount(index.occurrences(stem), minlength=slots) for stem in stems]
    return np.array(found, np.int64).reshape(len(stems), slots)


def occurs(word: str, held: str) -> bool:
    """A single character of a script without blanks occurs in each word that holds it."""
    return word in held if word in "日本" else word == held


@given(texts=TEXTS.filter(bool), asked=ASKED, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_counts_are_occurrences(texts: list[Text], asked: list[str], cuts: list[int]) -> None:
    index = filled(texts, cuts)
    assert counts(index, asked).tolist() == [
        [sum(occurs(word, held) for held in text) for text in texts] for word in asked
    ]
    assert index.lengths().tolist() == [len(text) for text in texts]


@given(texts=TEXTS.filter(bool), asked=ASKED, cut=st.integers(0, 12))
def test_the_closest_word_is_the_one_spelt_most_alike(texts: list[Text], asked: list[str], cut: int) -> None:
    index = filled(texts, [cut])
    expected = [[max((similarity(word, held) for held in text), default=0.0) for text in texts] for word in asked]
    np.testing.assert_allclose(closest(index, asked, every(index)), np.reshape(expected, (len(asked), -1)), rtol=1e-6)
    some = every(index)[::2]
    assert closest(index, asked, some).tolist() == closest(index, asked, every(index))[:, some].tolist()


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_repeated_lookup_finds_later_additions(texts: list[Text], cuts: list[int]) -> None:
    index, whole = LexicalIndex(), filled(texts)
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]):
        index.add(texts[start:stop])
        for word in WORDS:
            index.occurrences(word)
    assert counts(index, WORDS).tolist() == counts(whole, WORDS).tolist()


def test_word_has_similarity_one_to_itself() -> None:
    words = ["a", "ab", "abc", "abcdefghijklmnopqrstuvwxyz", "aaaaaaaa", "日本語", "naïve"]
    index = filled([[word] for word in words])
    # Ranking takes a similarity above 0.9999 for the word itself.
    assert closest(index, words, every(index)).diagonal().min() > 0.9999
    assert [(row > 0.9999).sum() for row in closest(index, words, every(index))] == [1] * len(words)


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_texts_without_words_hold_nothing(texts: list[Text]) -> None:
    index = filled(texts)
    nothing = [[0.0] * len(texts)]
    assert closest(index, ["cat"], every(index)).tolist() == nothing
    assert counts(index, ["cat"]).tolist() == nothing
    assert index.lengths().tolist() == nothing[0]


def test_asking_for_no_words_gives_no_rows() -> None:
    index = filled([["cat"], ["dog"]])
    assert counts(index, []).shape == (0, 2)
    assert closest(index, [], every(index)).shape == (0, 2)


def test_a_long_history_keeps_every_word() -> None:
    # Far beyond the arrays' first capacities, added one by one and all at once.
    texts: list[Text] = [[f"word{n}", f"word{n + 1}"] for n in range(2_000)]
    one_by_one, at_once = filled(texts, range(2_000)), filled(texts)
    for index in (one_by_one, at_once):
        assert counts(index, ["word1500"]).nonzero()[1].tolist() == [1499, 1500]
        last = every(at_once)[-3:]
    assert closest(one_by_one, ["word1999"], last).tolist() == closest(at_once, ["word1999"], last).tolist()


PASSAGES = st.lists(st.lists(st.lists(STEMS, max_size=3), min_size=1, max_size=4), min_size=1, max_size=8)
Passages = list[list[Text]]


def divided(memories: Passages, cuts: Sequence[int] = (), packed: bool = False) -> LexicalIndex:
    """An index of memories in passages, added in several calls, or packed in between."""
    index = LexicalIndex()
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(memories)), len(memories)]):
        some = memories[start:stop]
        sizes = {at: [*map(len, memory)] for at, memory in enumerate(some) if len(memory) > 1}
        part = LexicalIndex() if packed else index
        part.add([[stem for passage in memory for stem in passage] for memory in some], sizes)
        if packed:
            index.append(part.packed())
    return index


@given(memories=PASSAGES, cuts=st.lists(st.integers(0, 8), max_size=3), packed=st.booleans())
def test_part_scores_are_of_one_passage(memories: Passages, cuts: list[int], packed: bool) -> None:
    index = divided(memories, cuts, packed)
    flat = [(slot, passage) for slot, memory in enumerate(memories) for passage in memory]
    parts = index.parts()
    assert parts.slots.tolist() == [slot for slot, _ in flat]
    assert parts.lengths.tolist() == [len(passage) for _, passage in flat]
    assert parts.counts(every(index)).tolist() == [*map(len, memories)]
    assert [parts.slots[first] for first in parts.firsts] == [*range(len(memories))]
    assert index.divided == any(len(memory) > 1 for memory in memories)
    for word in WORDS:
        expected = [at for at, (_, passage) in enumerate(flat) for held in passage if occurs(word, held)]
        assert index.part_occurrences(word).tolist() == expected
    assert counts(index, WORDS).tolist() == [
        [sum(occurs(word, held) for passage in memory for held in passage) for memory in memories] for word in WORDS
    ]


@given(memories=PASSAGES, asked=ASKED, data=st.data())
def test_closest_words_are_of_the_best_weighted_passage(
    memories: Passages, asked: list[str], data: st.DataObject
) -> None:
    index, weights = divided(memories), np.arange(1.0, len(asked) + 1)
    slots = np.array(data.draw(st.lists(st.sampled_from(range(len(memories))), unique=True)), np.int64)

    def by_hand(passage: Text) -> list[float]:
        return [max((similarity(word, held) for held in passage), default=0.0) for word in asked]

    found = index.closest(asked, slots, weights)
    for slot, column in zip(slots, found.T, strict=True):
        passages = [by_hand(passage) for passage in memories[slot]]
        assert weights @ column == pytest.approx(max(weights @ one for one in passages), rel=1e-5)
        assert any(np.allclose(column, one, atol=1e-6) for one in passages)
