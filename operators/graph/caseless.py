"""What may be a name where capitals do not tell: in scripts without case, and in texts without capitals or with nothing
else. It is one only if the owner's graph has it already."""

from collections.abc import Iterable, Iterator
from itertools import islice

import regex

from recallflow.language import parts, runs, stem_of_script, unspaced_table
from recallflow.operators.graph.name_words import NameWords

LOWERED_MAX = 16  # words of a text without capitals
CHARACTERS_READ = 200  # of a text in a script without case
CHARACTERS = (4, 3, 2)  # of a name without blanks; the longest goes first

_CASELESS = regex.compile(r"\p{Lo}")
_CASELESS_RUN = regex.compile(r"(?V1)[\p{Lo}\p{M}]+")
_HANGUL = regex.compile(r"\p{Hangul}")
_WORD = regex.compile(r"[\w'’-]*\w")


def lowered_names(text: str, words: NameWords) -> Iterator[str]:
    """What may be names in a text whose words are all written alike: words that are no ordinary ones, and each two of
    them side by side."""
    found = islice(_WORD.finditer(text), 4 * LOWERED_MAX)
    plain = (match[0].lower().removesuffix("'s").removesuffix("’s") for match in found)
    telling = [word if word not in words.no_names and len(word) > 2 else "" for word in plain]
    return _with_pairs(telling, LOWERED_MAX)


def caseless_names(text: str) -> Iterator[str]:
    """What may be names in the beginning of a text in a script without case."""
    first = _CASELESS.search(text)
    if first is None:
        return
    text = text[first.start() : first.start() + CHARACTERS_READ]
    table = unspaced_table(text)
    spaced: list[str] = []
    for run, unspaced in runs(text):
        if unspaced:
            for part, han in parts(run, table):
                yield from _cut_out(part) if han else (part,)
        elif _CASELESS_RUN.fullmatch(run):
            spaced.append(stem_of_script(run) if _HANGUL.match(run) else run)
    yield from _with_pairs(spaced, len(spaced))


def _cut_out(part: str) -> Iterator[str]:
    for size in CHARACTERS:
        for begin in range(len(part) - size + 1):
            yield part[begin : begin + size]


def _with_pairs(words: list[str], at_most: int) -> Iterator[str]:
    """Words, after each the pair that begins with it. An empty one parts them."""
    left: Iterable[tuple[str, str]] = zip(words, [*words[1:], ""], strict=True)
    for word, after in islice((pair for pair in left if pair[0]), at_most):
        if after:
            yield f"{word} {after}"
        yield word
