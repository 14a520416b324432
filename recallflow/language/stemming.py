"""Stems of words: Snowball's where it supports the language, without accents."""

from collections.abc import Callable

import Stemmer

from recallflow.caching import Kept
from recallflow.language.scripts import folded, script_of, without_accents
from recallflow.language.tables import BY_SCRIPT, ENGLISH, LATIN, Table

_ENGLISH_BYTES = 16 * 1024 * 1024
_OTHER_BYTES = 4 * 1024 * 1024
_BY_SCRIPT = {"greek": "greek", "armenian": "armenian", "tamil": "tamil"}  # languages without a table
_LOOKS = 3  # a word may have several endings in sequence


def _snowball(algorithm: str) -> Callable[[str], str]:
    stem: Callable[[str], str] = Stemmer.Stemmer(algorithm, 0).stemWord  # without Snowball's unbounded cache
    return stem


def _stemmed(table: Table) -> Callable[[str], str]:
    """Return the stemmer of a language in Latin script. It returns an empty string for a function word or a single
    letter. English stems keep accents, which occur in names."""
    snowball = _snowball(table.stemmer or "english")

    def english(word: str) -> str:
        return "" if len(word) < 2 or word in table.function_words else snowball(word)

    def stem(word: str) -> str:
        if len(word) < 2 or word in table.function_words or folded(word) in table.function_words:
            return ""
        return without_accents(snowball(word))

    return english if table is ENGLISH else stem


latin: tuple[Kept[str, str], ...] = tuple(
    Kept(_stemmed(table), _ENGLISH_BYTES if table is ENGLISH else _OTHER_BYTES) for table in LATIN
)
_snowballs = {table.code: _snowball(table.stemmer) for table in BY_SCRIPT.values() if table.stemmer}
_snowballs |= {script: _snowball(algorithm) for script, algorithm in _BY_SCRIPT.items()}


def _of_script(word: str) -> str:
    """Return the stem of a word in a script other than Latin; an empty string for a function word."""
    script = script_of(word)
    table = BY_SCRIPT.get(script)
    word = folded(word)
    if table is None or not table.blanks:
        return _snowballs[script](word) if script in _snowballs else word
    if word in table.function_words:
        return ""
    return _without_endings(word, table) if table.endings else _snowballs[table.code](word)


def _without_endings(word: str, table: Table) -> str:
    for _ in range(_LOOKS):
        rest = next((word[: -len(end)] for end in table.endings if word.endswith(end) and len(word) > len(end)), None)
        if rest is None:
            weak = (end for end in table.weak_endings if word.endswith(end) and len(word) > len(end) + 1)
            rest = next((word[: -len(end)] for end in weak), None)
        if rest is None:
            break
        word = rest
    return "" if word in table.function_words else word


of_script: Kept[str, str] = Kept(_of_script, _OTHER_BYTES)
