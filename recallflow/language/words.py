"""Words by Unicode's rules; of a script without blanks, each two characters of what stands between function words."""

import re
from collections.abc import Iterator
from itertools import pairwise

import regex

from recallflow.language.scripts import BEYOND_LATIN, KANA, UNSPACED, normalised
from recallflow.language.tables import CHINESE, JAPANESE, Table

LATIN_WORD = re.compile(r"\w\w+")
_ANY_WORD = re.compile(r"\w+")
# Marks belong to the letter before them, and a run without blanks ends where another script begins.
_RUNS = regex.compile(rf"(?V1)(?P<unspaced>[{UNSPACED}][{UNSPACED}\p{{M}}]*)|(?P<spaced>[[\w\p{{M}}]--[{UNSPACED}]]+)")
# Letters that carry others above, below or before them; Chinese and Japanese have none.
_CLUSTERS = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3099\u309a\ufe00-\ufe0f]")
_HANGUL = re.compile("[\uac00-\ud7a3]")


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """Runs of letters, digits and marks, and whether one is of a script without blanks. The text is normalised."""
    for found in _RUNS.finditer(text):
        yield found[0], found.lastgroup == "unspaced"


def pairs(run: str, table: Table) -> Iterator[str]:
    """What stands between the function words of a run without blanks: each two neighbouring characters, and a character
    that stands alone."""
    for part in _SEPARATORS[table.code].split(run):
        characters = regex.findall(r"\X", part) if _CLUSTERS.search(part) else part
        if len(characters) > 1:
            yield from map("".join, pairwise(characters))
        else:
            yield from characters


def _separator(table: Table) -> re.Pattern[str]:
    longest_first = sorted(table.function_words, key=lambda word: (-len(word), word))
    particles = f"|(?<=.)[{table.particles}]" if table.particles else ""
    return re.compile("|".join(map(re.escape, longest_first)) + particles)


_SEPARATORS = {table.code: _separator(table) for table in (CHINESE, JAPANESE)}


def unspaced_table(text: str) -> Table:
    """Chinese, or Japanese where there is kana."""
    return JAPANESE if KANA.search(text) else CHINESE


def counts(word: str) -> bool:
    """Whether a word with blanks around it is kept: a single letter tells nothing, a Korean syllable does."""
    return len(word) > 1 or bool(_HANGUL.match(word))


def words(text: str) -> list[str]:
    """All words of a text in lower case, in order, function words included: what the spelling of a text is."""
    text = text.lower()
    if text.isascii() or not BEYOND_LATIN.search(text):
        return _ANY_WORD.findall(text)
    text = normalised(text)
    table = unspaced_table(text)
    found: list[str] = []
    for run, unspaced in runs(text):
        found += pairs(run, table) if unspaced else [run]
    return found
