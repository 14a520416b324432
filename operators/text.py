"""Text as the lexical index sees it: words without function words, stemmed; sentences; what a text does."""

import re
from typing import NamedTuple

import Stemmer

from recallflow.caching import Kept
from recallflow.function_words import FUNCTION_WORDS
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME

_WORD = re.compile(r"\w\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])\s+|\n+")
_STEMMER = Stemmer.Stemmer("english", 0)  # no cache of its own: `_stems` is one that is bounded

_TIME_WORDS = frozenset(
    word
    for line in (
        "yesterday today tonight tomorrow ago last next recently lately since weekend weekends week weeks",
        "month months year years monday tuesday wednesday thursday friday saturday sunday",
        "january february march april may june july august september october november december",
    )
    for word in line.split()
)
_THIS_TIME = re.compile(r"\bthis (?:morning|afternoon|evening|spring|summer|autumn|fall|winter)\b")
_YEAR = re.compile(r"(?:19|20)\d\d")


class Reading(NamedTuple):
    """What the lexical index keeps of a text: stems of its content words in order, and the flags of an index entry."""

    stems: list[str]
    flags: int


def read(text: str) -> Reading:
    """One pass over a text, for writing it down."""
    lowered = text.lower()
    words = _WORD.findall(lowered)
    asks = HAS_QUESTION if "?" in text else 0
    ends = ENDS_ASKING if asks and text.rstrip().endswith("?") else 0
    return Reading(_content_stems(words), asks | ends | (TELLS_TIME if _tells_time(lowered, words) else 0))


_stems: Kept[str, str] = Kept(_STEMMER.stemWord, 16 * 1024 * 1024)


def stems(text: str) -> list[str]:
    """The stems of a text's content words, in order, repeats included. Snowball's English stemmer (Porter2)."""
    return _content_stems(_WORD.findall(text.lower()))


def _content_stems(words: list[str]) -> list[str]:
    return [_stems[word] for word in words if word not in FUNCTION_WORDS]


def _tells_time(lowered: str, words: list[str]) -> bool:
    return (
        not _TIME_WORDS.isdisjoint(words)
        or any(map(_YEAR.fullmatch, filter(str.isdigit, words)))
        or ("this" in words and _THIS_TIME.search(lowered) is not None)
    )


def sentences(text: str) -> list[str]:
    """The text's sentences, without blanks around them; none for a blank text."""
    return [part for part in map(str.strip, _SENTENCE_END.split(text)) if part]
