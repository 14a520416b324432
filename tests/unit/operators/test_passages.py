"""Passages of a text: all of it, in order, of bounded length and number, cut where sentences end."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.limits import READ_CHARACTERS
from recallflow.operators.passages import MOST, SHARED_WORDS, WORDS, own_texts, passages

SENTENCES = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([". ", "! ", "?\n", " ", "\n\n", ", "])), max_size=60
).map(lambda found: "".join(" ".join(["word"] * words) + end for words, end in found))
CHINESE = st.lists(st.tuples(st.integers(1, 50), st.sampled_from("。！？，"))).map(
    lambda found: "".join("猫" * size + mark for size, mark in found)
)
TEXTS = st.one_of(SENTENCES, CHINESE, st.text(max_size=2_000), st.text(alphabet="ab .\n国。", max_size=3_000))


@given(text=TEXTS)
@example("a" * 6_000)
@example("猫" * 2_000)
@example("word " * 3_000)
@example(" \n" * 500)
def test_passages_hold_all_of_a_text_in_order(text: str) -> None:
    found = passages(text)
    assert found == passages(text)
    assert 1 <= len(found) <= MOST
    if len(found) == 1:
        assert found == [(0, 0, len(text))]
        return
    for before, after in pairwise(found):
        assert before.start < after.start <= after.end
        assert before.end <= after.end
        assert not text[before.end : after.start].strip()
    assert not text[: found[0].start].strip()
    assert not text[found[-1].end :].strip()
    for passage in found:
        shown = text[passage.start : passage.end]
        assert shown
        assert shown == shown.strip()
    assert "".join(own_texts(text, found)) == text
    assert len(own_texts(text, found)) == len(found)


@given(text=SENTENCES)
def test_a_passage_has_about_eighty_words_and_what_it_shares(text: str) -> None:
    found = passages(text)
    if WORDS < len(text.split()) <= MOST * WORDS:
        assert len(found) == -(-len(text.split()) // WORDS)
    for passage, own in zip(found, own_texts(text, found), strict=True):
        # A sentence is not cut, so that one may be half a sentence longer.
        assert len(own.split()) <= WORDS + 40
        assert len(text[passage.start : passage.end].split()) <= len(own.split()) + SHARED_WORDS


@pytest.mark.parametrize("words", [0, 1, WORDS])
def test_a_short_text_is_one_passage_whole(words: int) -> None:
    text = " " + " ".join(["word"] * words) + "\n"
    assert passages(text) == [(0, 0, len(text))]


def test_passages_end_where_sentences_do_and_share_a_short_one() -> None:
    sentences = [f"Sentence {number} has seven words in it." for number in range(30)]
    text = " ".join(sentences)
    found = [text[passage.start : passage.end] for passage in passages(text)]
    assert len(found) == 3
    for passage in found:
        assert passage.startswith("Sentence ")
        assert passage.endswith(" it.")
    for before, after in pairwise(found):
        last = before.rsplit(". ", 1)[1]
        assert after.startswith(last)


def test_sentence_too_long_to_share_is_in_one_passage() -> None:
    long = "This one sentence has more words than two passages may share, " + "and " * 12 + "then it ends."
    text = " ".join([long] * 9)
    found = passages(text)
    assert [text[passage.start : passage.end] for passage in found] == [f"{long} {long} {long}"] * 3
    assert all(before.end < after.start for before, after in pairwise(found))


def test_chinese_sentences_end_at_their_marks_and_characters_count() -> None:
    text = "我妹妹对花生过敏。" * 40
    found = passages(text)
    assert len(found) == 3  # 360 characters: 160 of them are 80 words
    for passage in found:
        assert text[passage.start : passage.end].startswith("我妹妹")
        assert text[passage.end - 1] == "。"


def test_longest_text_has_longer_passages_not_more() -> None:
    text = ("One more sentence about nothing at all. " * 1_000)[:READ_CHARACTERS]
    found = passages(text)
    assert len(found) == MOST
    assert max(passage.end - passage.start for passage in found) < 1_300
