"""Places of words: at every stem of the text, and nowhere else."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.language import LATIN, PlacedStems, find_stems, read
from recallflow.language.places import CHARACTERS_MOST, WORDS_MOST
from recallflow.language.scripts import BEYOND_LATIN, KANA, UNSPACED_LETTER, normalised

FACTS = sorted((Path(__file__).parent / "facts").glob("*.txt"))
NUMBER = {table.code: number for number, table in enumerate(LATIN)}
TEXTS = [line.strip() for path in FACTS for line in path.read_text("utf-8").splitlines() if line.strip()]
WORDS = sorted({word for text in TEXTS for word in text.split()})
PIECES = st.sampled_from(
    [*WORDS, " ", "\n", "‐", "ﬁne", "ＣＡＦＥ", "İzmir", "I", "e\u0301te", "\u00ad", "©", "™", "½"]
)


def spelled(text: str, wanted: set[str], language: int) -> list[tuple[str, str]]:
    return [(text[start:end], kind) for kind, start, end in find_stems([text], [wanted], language)[0]]


def test_a_bent_word_is_shown_where_it_stands() -> None:
    text = "I moved from Leeds; moving was hard."
    assert find_stems([text], [{"move", "leed"}], 0)[0] == [("move", 2, 7), ("leed", 13, 18), ("move", 20, 26)]


def test_function_word_with_a_foreign_stem_is_no_match() -> None:
    assert spelled("What does a doe eat?", {"doe"}, 0) == [("doe", "doe")]


def test_characters_without_blanks_that_follow_each_other_are_one_word() -> None:
    assert spelled("我妹妹对花生过敏。", {"妹妹", "过敏", "花生"}, 0) == [
        ("妹妹", "妹妹"), ("花生", "花生"), ("过敏", "过敏"),
    ]  # fmt: skip
    assert spelled("她住在波尔图市。", {"波尔", "尔图"}, 0) == [("波尔图", "波尔图")]


def test_variant_spelling_is_shown_as_written() -> None:
    assert spelled("\u00a0ＰＯＲＴＯ, ﬁnally!", {"porto", "final"}, 0) == [("ＰＯＲＴＯ", "porto"), ("ﬁnally", "final")]
    assert spelled("Cafe\u0301 au lait", {*read("café", NUMBER["fr"]).stems}, NUMBER["fr"]) == [("Cafe\u0301", "caf")]


def test_a_turkish_capital_is_its_own_letter() -> None:
    (word,) = [word for word, _ in spelled("ILIK bir gün", {*read("ILIK", NUMBER["tr"]).stems}, NUMBER["tr"])]
    assert word == "ILIK"


@given(st.lists(PIECES, max_size=12).map(" ".join), st.integers(0, len(LATIN) - 1))
@example("İİİ Porto", 0)
@example("40. 40. 40. 40. 攒钱是为了去哪儿旅行？", 0)
def test_places_equal_the_stems_of_the_text(text: str, assumed: int) -> None:
    reading = read(text, assumed)
    beside = " щ" * bool(BEYOND_LATIN.search(text)) + " の" * bool(KANA.search(text))  # what decides how words are read
    for wanted in ({*reading.stems}, {*reading.stems[::3]}):
        found = find_stems([text], [wanted], reading.language)[0]
        ends = [0, *(one.end for one in found)]
        assert all(end <= one.start < one.end <= len(text) for end, one in zip(ends, found, strict=False))
        for _, start, end in found:
            if UNSPACED_LETTER.search(text[start:end]):  # what stands beside decides where its words begin
                assert any(stem in normalised(text[start:end]) for stem in wanted)
                continue
            alone = find_stems([text[start:end] + beside], [wanted], reading.language)[0]
            assert (alone[0].start, alone[-1].end) == (0, end - start)
        assert bool(found) == bool(wanted)


@pytest.mark.parametrize("text", TEXTS[::7])
def test_all_words_of_a_fact_are_found(text: str) -> None:
    reading = read(text)
    kinds = "".join(kind for kind, _, _ in find_stems([text], [{*reading.stems}], reading.language)[0])
    assert all(stem in kinds for stem in reading.stems)


@given(st.lists(st.lists(PIECES, max_size=6).map(" ".join), max_size=4), st.sampled_from([0, NUMBER["de"]]))
def test_texts_are_searched_together_as_each_alone(texts: list[str], language: int) -> None:
    wanted = [{*read(text, language).stems} for text in texts[1:] + texts[:1]]
    alone = [find_stems([text], [stems], language)[0] for text, stems in zip(texts, wanted, strict=True)]
    assert find_stems(texts, wanted, language) == alone


@given(st.lists(PIECES, max_size=12).map(" ".join), st.integers(0, len(LATIN) - 1))
def test_kept_stems_have_the_spans_that_a_search_finds(text: str, language: int) -> None:
    ascii_text = text.encode("ascii", "ignore").decode()
    numbers = {stem: at for at, stem in enumerate(dict.fromkeys(read(ascii_text, language).stems))}
    placed = PlacedStems.of(ascii_text, language, numbers.get)
    assert (placed is None) == (language == NUMBER["tr"])
    if placed is not None:
        found = defaultdict(list)
        for stem, start, end in find_stems([ascii_text], [{*numbers}], language)[0]:
            found[stem].append((start, end))
        assert placed.find({chr(number): stem for stem, number in numbers.items()}) == found


def test_single_character_query_matches_every_containing_word() -> None:
    assert spelled("她每天喝咖啡。", {"喝"}, 0) == [("喝", "喝")]


@pytest.mark.parametrize("beside", ["", " é"])
def test_many_different_words_are_looked_up_to_a_limit(beside: str) -> None:
    words = [f"w{number}" for number in range(2 * WORDS_MOST)]
    text = " ".join(words) + beside
    assert [text[start:end] for _, start, end in find_stems([text], [{words[1], words[-1]}], 0)[0]] == [words[1]]


@pytest.mark.parametrize("word", ["чай", "茶"])
def test_long_text_in_another_script_is_read_from_its_beginning(word: str) -> None:
    text = f"{word} да " * CHARACTERS_MOST
    (found,) = find_stems([text], [{*read(word).stems}], 0)
    assert found[0].start == 0
    assert CHARACTERS_MOST - len(text) / CHARACTERS_MOST < found[-1].end <= CHARACTERS_MOST
