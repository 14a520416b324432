"""Names in scripts without case: in a text nothing tells one, so an owner's first ones are kept and looked for.

In scripts without blanks a name may stand anywhere, in Korean particles follow it, elsewhere it is a whole word.
"""

import unicodedata
from collections.abc import Iterable, Iterator

import orjson
import regex

from recallflow.language import UNSPACED

NAMES_MAX = 256  # of an owner: each text is searched for each of them
_LEAST_CHARACTERS = 2  # a single one is part of many words

_CASELESS = regex.compile(r"\p{Lo}")
_ANYWHERE = regex.compile(rf"[{UNSPACED}]")
_HANGUL = regex.compile(r"\p{Hangul}")
_WITHIN = regex.compile(r"[\p{L}\p{M}\p{N}]")


def is_caseless(name: str) -> bool:
    """Return whether a name must be searched in texts literally."""
    return not name.isascii() and len(name) >= _LEAST_CHARACTERS and _CASELESS.search(name) is not None


def encode_names(names: list[str]) -> bytes:
    """Encode an owner's stored names."""
    return orjson.dumps(names)


def decode_names(data: bytes) -> list[str]:
    """Decode an owner's stored names."""
    names: list[str] = orjson.loads(data)
    return names


def names_in(text: str, names: Iterable[str]) -> Iterator[str]:
    """Return the names that occur in a text."""
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    text = text.casefold()
    return (name for name in names if name in text and _stands(text, name))


def _stands(text: str, name: str) -> bool:
    """Return whether a text contains a name as a separate word."""
    if _ANYWHERE.search(name):
        return True
    may_go_on = _HANGUL.search(name) is not None
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        begins = not _WITHIN.match(text[start - 1 : start])
        if begins and (may_go_on or not _WITHIN.match(text[end : end + 1])):
            return True
        start = text.find(name, start + 1)
    return False
