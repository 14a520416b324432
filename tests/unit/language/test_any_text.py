"""Laws of the analysis for any text in any script."""

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.language import LATIN, find_dates, grams, plain, read, read_question, sentences, table_of, words
from recallflow.language.tables import EVERY
from recallflow.language.words import ascii_words
from recallflow.limits import QUERY_CHARACTERS, READ_CHARACTERS
from recallflow.operators.recall.intent import intent_of
from recallflow.operators.recall.question import Vocabulary, understand

# Of every script that has a table, those without blanks, marks that stack up, joined emoji, and what is not seen.
PIECES = (
    "The cat's", "Straße", "İstanbul'da", "ÇAĞRI", "où", "Ёлка", "مُعَلِّمَة", "क़िताबें", "我了解成都的", "茶", "食べました",
    "カレー", "ｶﾚｰ", "한국어를", "แพ้กุ้ง", "ខ្មែរ", "မြန်မာ", "ພາສາລາວ", "ΑΣ", "Հայերեն", "தமிழ்", "ßﬁ²™", "２０２３年",
    "\u0301\u0323", "\u0301\u200d\u0323", "\u200d", "👨\u200d👩\u200d👧", "🇩🇪", "\u202e", "\x00", "\ufeff",
    "_", "1.000,5", "?", "。", "؟", "\n", " ",
)  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=15).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=15).map(" ".join),
)


def analysed(text: str) -> object:
    every = range(len(LATIN))
    found = [read(text, assumed) for assumed in every]
    asked = [read_question(text, table, every) for table in EVERY]
    dates = [find_dates(text, table, 8) for table in EVERY]
    question = understand(text, ["Ann", "小明", "Ёжик"], Vocabulary(every))
    parts = [grams(word) for word in words(text)]
    return found, asked, dates, question, intent_of(question), parts, sentences(text), plain(text), table_of(text).code


@given(TEXTS)
def test_any_text_is_analysed_the_same_each_time(text: str) -> None:
    assert analysed(text) == analysed(text)


@given(TEXTS)
def test_stems_are_words_without_blanks_around_them(text: str) -> None:
    # They are stored with blanks between them.
    for assumed in range(len(LATIN)):
        stems = read(text, assumed).stems
        assert " ".join(stems).split(" ") == (stems or [""])


@given(TEXTS)
def test_plain_text_is_plain(text: str) -> None:
    assert plain(plain(text)) == plain(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_words_equal_those_of_the_pattern(text: str) -> None:
    assert ascii_words(text) == re.findall(r"\w+", text.lower())


@pytest.mark.processes
@pytest.mark.parametrize("seed", ["1", "2"])
def test_analysis_does_not_depend_on_the_hash_seed(seed: str) -> None:
    texts = ["Der Hund und die Katze sind müde.", "我了解成都的茶", "Anna è a Roma con me"]
    program = "import sys; from recallflow.language import read; print([read(text) for text in sys.argv[1:]], end='')"
    command = [sys.executable, "-c", program, *texts]
    run = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True)
    assert run.stdout.decode() == str([read(text) for text in texts])


@pytest.mark.parametrize("piece", PIECES, ids=ascii)
def test_analysis_size_is_linear_in_the_text(piece: str) -> None:
    """The longest text of one repeated piece, which a backtracking pattern would never finish: n characters give at
    most n words, and five parts each."""
    text = (piece * READ_CHARACTERS)[:READ_CHARACTERS]
    every = range(len(LATIN))
    stems = read(text).stems
    spelt = words(text)
    assert len(stems) <= len(text)
    assert sum(len(grams(word)) for word in spelt) <= 5 * len(text)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    understand(text[:QUERY_CHARACTERS], ["Ann", "小明"], Vocabulary(every))
