"""Words by Unicode's rules; in scripts without spaces, pairs of characters between function words."""

import re
from collections.abc import Iterator
from itertools import pairwise

import regex

from recallflow.language.scripts import BEYOND_LATIN, KANA, UNSPACED, plain
from recallflow.language.tables import CHINESE, JAPANESE, Table

LATIN_WORD = re.compile(r"\w\w+")
_ANY_WORD = re.compile(r"\w+")
_ASCII_WORD = re.compile(r"\w", re.ASCII)
# Translation by byte: word characters to lower case, all others to a space.
_ASCII_FORMS = bytes(ord(chr(at).lower()) if _ASCII_WORD.match(chr(at)) else ord(" ") for at in range(256))
# Marks belong to the preceding letter. A run without spaces ends where another script starts.
_RUNS = regex.compile(rf"(?V1)(?P<unspaced>[{UNSPACED}][{UNSPACED}\p{{M}}]*)|(?P<spaced>[[\w\p{{M}}]--[{UNSPACED}]]+)")
# A run is split where the kind of Japanese character changes, because endings are written in hiragana after the stem.
# In other scripts letters form clusters with their neighbours.
_KINDS = regex.compile(
    r"(?V1)(?P<han>\p{Han}+)|(?P<hiragana>[\p{Hiragana}ー]+)|(?P<katakana>[\p{Katakana}ー]+)"
    r"|(?P<other>[^\p{Han}\p{Hiragana}\p{Katakana}ー]+)"
)
_HANGUL = re.compile("[\uac00-\ud7a3]")


def ascii_blanked(text: str) -> str:
    """Return an ASCII text in lower case, with a space for each character outside words."""
    return text.encode().translate(_ASCII_FORMS).decode()


def ascii_words(text: str) -> list[str]:
    """Return the lower-case words of an ASCII text, single letters included. The result equals the pattern's, in a
    third of its time."""
    return ascii_blanked(text).split()


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each run of letters, digits and marks of a normalised text, and whether its script has no spaces."""
    for found in _RUNS.finditer(text):
        yield found[0], found.lastgroup == "unspaced"


def pairs(run: str, table: Table) -> Iterator[str]:
    """Yield each two adjacent characters of one kind between the function words of a run without spaces, and single
    characters that carry no grammar."""
    for part in _SEPARATORS[table.code].split(run):
        for found in _KINDS.finditer(part):
            characters = regex.findall(r"\X", found[0]) if found["other"] else found[0]
            if len(characters) > 1:
                yield from map("".join, pairwise(characters))
            elif not (found["hiragana"] or found[0] in table.alone):
                yield found[0]


def placed_runs(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the same as `runs`, with the start of each run."""
    for found in _RUNS.finditer(text):
        yield found[0], found.start(), found.lastgroup == "unspaced"


def placed_pairs(run: str, table: Table) -> Iterator[tuple[str, int]]:
    """Yield the same as `pairs`, with the start of each pair in the run."""
    begin = 0
    separators = [found.span() for found in _SEPARATORS[table.code].finditer(run)]
    for end, next_begin in [*separators, (len(run), len(run))]:
        for found in _KINDS.finditer(run, begin, end):
            characters = regex.findall(r"\X", found[0]) if found["other"] else found[0]
            at = found.start()
            for first, second in pairwise(characters):
                yield first + second, at
                at += len(first)
            if len(characters) == 1 and not (found["hiragana"] or found[0] in table.alone):
                yield found[0], at
        begin = next_begin


def _separator(table: Table) -> regex.Pattern[str]:
    """Return the pattern that separates function words, except inside longer words."""
    whole, parting = (
        "|".join(map(regex.escape, sorted(words, key=lambda word: (-len(word), word))))
        for words in (table.whole_words, table.function_words)
    )
    kept = f"(?:{whole})(*SKIP)(*FAIL)|" if whole else ""
    # A particle must follow a stem or precede the next one, because words in hiragana may contain the same letters.
    beside = r"[\p{Han}\p{Katakana}ー]"
    particles = f"|(?<={beside})[{table.particles}]|(?<=.)[{table.particles}](?={beside})" if table.particles else ""
    return regex.compile(kept + parting + particles)


_SEPARATORS = {table.code: _separator(table) for table in (CHINESE, JAPANESE)}


def unspaced_table(text: str) -> Table:
    """Return Japanese if the text contains kana, otherwise Chinese."""
    return JAPANESE if KANA.search(text) else CHINESE


def counts(word: str) -> bool:
    """Return whether a space-separated word is kept. A single letter has no meaning; a Korean syllable has one."""
    return len(word) > 1 or bool(_HANGUL.match(word))


def words(text: str) -> list[str]:
    """Return all words of a text in order, normalised by `plain`, for the comparison of spellings. Function words of
    scripts with spaces are included."""
    if text.isascii():
        return ascii_words(text)
    text = plain(text)
    if not BEYOND_LATIN.search(text):
        return _ANY_WORD.findall(text)
    table = unspaced_table(text)
    found: list[str] = []
    for run, unspaced in runs(text):
        found += pairs(run, table) if unspaced else [run]
    return found
