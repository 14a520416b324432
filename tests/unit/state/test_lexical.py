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
    """All slots."""
    return np.arange(len(index.lengths()))


def features(word: str) -> set[int]:
    marked = f"<{word}>"
    grams = {marked, *word} if word >= "日" else {marked} | {marked[at : at + 4] for at in range(len(marked) - 3)}
    return {zlib.crc32(gram.encode()) % FEATURES for gram in grams}


def similarity(one: str, other: str) -> float:
    a, b = features(one), features(other)
    return len(a & b) / math.sqrt(len(a) * len(b))


def occurs(word: str, held: str) -> bool:
    """A single character of a script without blanks occurs in each word that holds it."""
    return word in held if word in "日本" else word == held


@given(texts=TEXTS.filter(bool), asked=ASKED, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_counts_are_occurrences(texts: list[Text], asked: list[str], cuts: list[int]) -> None:
    index = filled(texts, cuts)
    assert index.counts(asked).tolist() == [
        [sum(occurs(word, held) for held in text) for text in texts] for word in asked
    ]
    assert index.lengths().tolist() == [len(text) for text in texts]


@given(texts=TEXTS.filter(bool), asked=ASKED, cut=st.integers(0, 12))
def test_the_closest_word_is_the_one_spelt_most_alike(texts: list[Text], asked: list[str], cut: int) -> None:
    index = filled(texts, [cut])
    expected = [[max((similarity(word, held) for held in text), default=0.0) for text in texts] for word in asked]
    np.testing.assert_allclose(index.closest(asked, every(index)), np.reshape(expected, (len(asked), -1)), rtol=1e-6)
    some = every(index)[::2]
    assert index.closest(asked, some).tolist() == index.closest(asked, every(index))[:, some].tolist()


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_what_was_looked_up_before_is_found_in_what_came_since(texts: list[Text], cuts: list[int]) -> None:
    index, whole = LexicalIndex(), filled(texts)
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]):
        index.add(texts[start:stop])
        for word in WORDS:
            index.occurrences(word)
    assert index.counts(WORDS).tolist() == whole.counts(WORDS).tolist()


def test_similarity_by_hand() -> None:
    # <cat> has the features <cat>, <cat and cat>; <catch> has <catch>, <cat, catc, atch and tch>. They share one.
    index = filled([["catch", "dog"], ["cat"], ["dog"], []])
    np.testing.assert_allclose(index.closest(["cat"], every(index)), [[1 / math.sqrt(3 * 5), 1, 0, 0]], rtol=1e-6)


def test_a_word_is_wholly_like_itself_whatever_its_length() -> None:
    words = ["a", "ab", "abc", "abcdefghijklmnopqrstuvwxyz", "aaaaaaaa", "日本語", "naïve"]
    index = filled([[word] for word in words])
    # Ranking takes a similarity above 0.9999 for the word itself.
    assert index.closest(words, every(index)).diagonal().min() > 0.9999
    assert [(row > 0.9999).sum() for row in index.closest(words, every(index))] == [1] * len(words)


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_texts_without_words_hold_nothing(texts: list[Text]) -> None:
    index = filled(texts)
    nothing = [[0.0] * len(texts)]
    assert index.closest(["cat"], every(index)).tolist() == nothing
    assert index.counts(["cat"]).tolist() == nothing
    assert index.lengths().tolist() == nothing[0]


def test_asking_for_no_words_gives_no_rows() -> None:
    index = filled([["cat"], ["dog"]])
    assert index.counts([]).shape == (0, 2)
    assert index.closest([], every(index)).shape == (0, 2)


def test_an_added_text_is_seen_by_the_next_question() -> None:
    index = filled([["cat"]])
    index.counts(["dog"])
    index.add([["dog", "cat"]])
    assert index.counts(["dog"]).tolist() == [[0, 1]]
    assert index.closest(["dog"], every(index)).tolist() == [[0, 1]]


def test_a_long_history_keeps_every_word() -> None:
    # Far beyond the arrays' first capacities, added one by one and all at once.
    texts: list[Text] = [[f"word{n}", f"word{n + 1}"] for n in range(2_000)]
    one_by_one, at_once = filled(texts, range(2_000)), filled(texts)
    for index in (one_by_one, at_once):
        assert index.counts(["word1500"]).nonzero()[1].tolist() == [1499, 1500]
        last = every(at_once)[-3:]
    assert one_by_one.closest(["word1999"], last).tolist() == at_once.closest(["word1999"], last).tolist()
