"""Words by Unicode's rules; in scripts without spaces, pairs of characters between function words.

Stems are Snowball's, without accents; a language without a Snowball algorithm has a list of endings to remove."""

import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import regex
import Stemmer

from recallflow.caching import BoundedCache
from recallflow.language.scripts import BEYOND_LATIN, KANA, UNSPACED, folded, plain, script_of, without_accents
from recallflow.language.tables import BY_SCRIPT, CHINESE, ENGLISH, JAPANESE, LATIN, Table

LATIN_WORD = re.compile(r"\w\w+")
ANY_WORD = re.compile(r"\w+")
_ASCII_WORD = re.compile(r"\w", re.ASCII)
# Translation by byte: word characters to lower case, all others to a space.
_ASCII_FORMS = bytes(ord(chr(at).lower()) if _ASCII_WORD.match(chr(at)) else ord(" ") for at in range(256))
# Marks belong to the preceding letter. A run in a script without spaces ends where another script starts.
_RUNS = regex.compile(rf"(?V1)(?P<unspaced>[{UNSPACED}][{UNSPACED}\p{{M}}]*)|(?P<spaced>[[\w\p{{M}}]--[{UNSPACED}]]+)")
# A Japanese run is split where the kind of character changes, because endings are written in hiragana after the stem.
# In `other` scripts, grapheme clusters count as characters.
_KINDS = regex.compile(
    r"(?V1)(?P<han>\p{Han}+)|(?P<hiragana>[\p{Hiragana}ー]+)|(?P<katakana>[\p{Katakana}ー]+)"
    r"|(?P<other>[^\p{Han}\p{Hiragana}\p{Katakana}ー]+)"
)
_HANGUL = re.compile("[\uac00-\ud7a3]")
_ENGLISH_BYTES = 16 * 1024 * 1024
_OTHER_BYTES = 4 * 1024 * 1024
_ALGORITHM_OF_SCRIPT = {"greek": "greek", "armenian": "armenian", "tamil": "tamil"}  # languages without a table
_ENDINGS_MOST = 3  # removed endings: a word may have several in sequence


def ascii_blanked(text: str) -> str:
    """Return an ASCII text in lower case, with a space for each character outside words."""
    return text.encode().translate(_ASCII_FORMS).decode()


def ascii_words(text: str) -> list[str]:
    """Return the lower-case words of an ASCII text, in a third of the time of a pattern."""
    return ascii_blanked(text).split()


def runs(text: str) -> Iterator[tuple[str, bool, int]]:
    """Yield runs of letters, digits and marks in a normalised text: run, whether its script has no spaces, start."""
    for match in _RUNS.finditer(text):
        yield match[0], match.lastgroup == "unspaced", match.start()


def pairs(run: str, table: Table) -> Iterator[tuple[str, int]]:
    """Yield the words of a run without spaces, with their starts: pairs of adjacent characters of one kind between
    function words, and characters without a neighbour."""
    begin = 0
    separators = [match.span() for match in _SEPARATORS[table.code].finditer(run)]
    for end, next_begin in [*separators, (len(run), len(run))]:
        for match in _KINDS.finditer(run, begin, end):
            characters = regex.findall(r"\X", match[0]) if match["other"] else match[0]
            at = match.start()
            for first, second in pairwise(characters):
                yield first + second, at
                at += len(first)
            if len(characters) == 1 and not (match["hiragana"] or match[0] in table.alone):
                yield match[0], at
        begin = next_begin


def _separator(table: Table) -> regex.Pattern[str]:
    """Return the pattern of function words and particles, which separate words. It skips the `whole_words`."""
    whole, function_words = (
        "|".join(map(regex.escape, sorted(words, key=lambda word: (-len(word), word))))
        for words in (table.whole_words, table.function_words)
    )
    skipped = f"(?:{whole})(*SKIP)(*FAIL)|" if whole else ""
    # A particle must follow a stem or precede the next one, because words in hiragana may contain the same letters.
    near = r"[\p{Han}\p{Katakana}ー]"
    particles = f"|(?<={near})[{table.particles}]|(?<=.)[{table.particles}](?={near})" if table.particles else ""
    return regex.compile(skipped + function_words + particles)


_SEPARATORS = {table.code: _separator(table) for table in (CHINESE, JAPANESE)}


def unspaced_table(text: str) -> Table:
    """Return Japanese if the text contains kana, otherwise Chinese."""
    return JAPANESE if KANA.search(text) else CHINESE


def has_meaning(word: str) -> bool:
    """Return whether a space-separated word has a meaning: a single letter has none, a Korean syllable has one."""
    return len(word) > 1 or bool(_HANGUL.match(word))


def words(text: str) -> list[str]:
    """Return all words of a text in order, normalised by `plain`. Unlike stems they include function words."""
    if text.isascii():
        return ascii_words(text)
    text = plain(text)
    if not BEYOND_LATIN.search(text):
        return ANY_WORD.findall(text)
    table = unspaced_table(text)
    split = ([pair for pair, _ in pairs(run, table)] if unspaced else [run] for run, unspaced, _ in runs(text))
    return [*chain.from_iterable(split)]


def _snowball(algorithm: str) -> Callable[[str], str]:
    stem: Callable[[str], str] = Stemmer.Stemmer(algorithm, 0).stemWord  # without Snowball's unbounded cache
    return stem


def _stemmed(table: Table) -> Callable[[str], str]:
    """Return the stemmer of a language in Latin script. A function word or a single letter has an empty stem. English
    stems keep accents, which occur in names."""
    snowball = _snowball(table.stemmer or "english")

    def english(word: str) -> str:
        return "" if len(word) < 2 or word in table.function_words else snowball(word)

    def stem(word: str) -> str:
        if len(word) < 2 or word in table.function_words or folded(word) in table.function_words:
            return ""
        return without_accents(snowball(word))

    return english if table is ENGLISH else stem


latin_stems: tuple[BoundedCache[str, str], ...] = tuple(
    BoundedCache(_stemmed(table), _ENGLISH_BYTES if table is ENGLISH else _OTHER_BYTES) for table in LATIN
)
_snowballs = {table.code: _snowball(table.stemmer) for table in BY_SCRIPT.values() if table.stemmer}
_snowballs |= {script: _snowball(algorithm) for script, algorithm in _ALGORITHM_OF_SCRIPT.items()}


def _stem_of_script(word: str) -> str:
    """Return the stem of a word in a script other than Latin; an empty string for a function word."""
    script = script_of(word)
    table = BY_SCRIPT.get(script)
    word = folded(word)
    if table is None or not table.has_spaces:
        return _snowballs[script](word) if script in _snowballs else word
    if word in table.function_words:
        return ""
    return _without_endings(word, table) if table.endings else _snowballs[table.code](word)


def _without_endings(word: str, table: Table) -> str:
    for _ in range(_ENDINGS_MOST):
        strong = (end for end in table.endings if word.endswith(end) and len(word) > len(end))
        weak = (end for end in table.weak_endings if word.endswith(end) and len(word) > len(end) + 1)
        if (ending := next(chain(strong, weak), None)) is None:
            break
        word = word[: -len(ending)]
    return "" if word in table.function_words else word


script_stems: BoundedCache[str, str] = BoundedCache(_stem_of_script, _OTHER_BYTES)


def stemmer(table: Table) -> Callable[[str], str]:
    """Return the function from a word to its stem in a language; the stem of a function word is empty."""
    return (latin_stems[LATIN.index(table)] if table in LATIN else script_stems).__getitem__
