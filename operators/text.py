"""Text as the index keeps it: stems, and what it does, as flags."""

from typing import NamedTuple

from recallflow import language
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, LANGUAGE_SHIFT, TELLS_TIME


class Reading(NamedTuple):
    """What the lexical index keeps of a text: stems of its content words in order, and the flags of an index entry.
    `sure`: the text tells its language."""

    stems: list[str]
    flags: int
    sure: bool


def read(text: str, assumed: int = 0) -> Reading:
    """Reads a text; where it does not tell its language, in the one that is `assumed`."""
    stems, asks, ends_asking, tells_time, number, sure = language.read(text, assumed)
    flags = (HAS_QUESTION if asks else 0) | (ENDS_ASKING if ends_asking else 0) | (TELLS_TIME if tells_time else 0)
    return Reading(stems, flags | number << LANGUAGE_SHIFT, sure)
