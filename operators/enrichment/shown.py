"""Memories as a prompt shows them, under short numbers, and whether what a model says of them stands in their texts."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import regex

from recallflow.enrichment import ShownMemory
from recallflow.fields import format_time
from recallflow.language import plain
from recallflow.operators.graph.names import read_names

CHARACTERS = 8_000  # of the memory that a prompt is about
BESIDE_CHARACTERS = 1_500  # of one shown beside it
EVIDENCE_CHARACTERS = 3  # that are letters or digits: shorter quotes stand in any text

TEXTS_KEPT = 256  # in the form in which they are compared: each claim of an answer is held against the same few

_NUMBER = regex.compile(r"\p{Nd}+")
_WORD = regex.compile(r"[\p{L}\p{M}\p{Nd}]+")
_CASELESS = regex.compile(r"\p{Lo}")
_BENT = 3  # characters of a name that its ending may have
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def cut(memory: ShownMemory, characters: int) -> ShownMemory:
    """A memory with so much of its text as is shown."""
    return memory.model_copy(update={"content": memory.content[:characters]})


def numbered(memories: Iterable[ShownMemory], prefix: str = "m", begin: int = 1) -> dict[str, ShownMemory]:
    """Number → memory."""
    return {f"{prefix}{number}": one for number, one in enumerate(memories, begin)}


def as_data(number: str, memory: ShownMemory) -> dict[str, Any]:
    """A memory as a prompt shows it."""
    day = datetime.fromtimestamp(memory.created_at / 1000, UTC).weekday()
    said = f"{format_time(memory.created_at)} {_DAYS[day]}"
    return {"number": number, "by": author(memory), "time": said, "text": memory.content}


def author(memory: ShownMemory) -> str:
    """Who said a memory, as far as is known."""
    return memory.name or memory.role or "unknown"


def stands_in(quote: str, text: str) -> bool:
    """Whether a quote is part of a text, word for word: blanks, capitals, accents and punctuation may differ, which
    models straighten."""
    if len(quote) > 2 * len(text) + EVIDENCE_CHARACTERS:
        return False
    words, flat = _flat(quote), _flat(text)
    long_enough = sum(character.isalnum() for character in words) >= EVIDENCE_CHARACTERS
    return (long_enough or words == flat) and bool(words) and words in flat


def names_it(text: str, name: str) -> bool:
    """Whether a text has a name: as whole words, but in scripts that write words without blanks or with particles."""
    found, flat = _flat(name), _flat(text)
    if _CASELESS.search(found):
        return found in flat
    return bool(found) and f" {found} " in f" {flat} "


def sources_of(text: str, own: Sequence[str], others: Sequence[str]) -> list[int] | None:
    """The numbers of those other texts that a text has a name or a number from, which its own texts do not have; None
    if one stands in none of them."""
    used: list[int] = []
    words, known = [_words(one) for one in others], frozenset[str]().union(*map(_words, own))
    for wanted in _telling(text):
        if not _has(known, wanted):
            found = next((number for number, one in enumerate(words) if _has(one, wanted)), None)
            if found is None:
                return None
            used.append(found)
    return sorted({*used})


def date_words(times_ms: Iterable[int | None]) -> str:
    """The numbers that a text may have because times were worked out for it."""
    moments = [datetime.fromtimestamp(one / 1000, UTC) for one in times_ms if one is not None]
    return " ".join(
        f"{m.year} {m.month} {m.month:02} {m.day} {m.day:02} {m.hour} {m.hour:02} {m.minute:02}" for m in moments
    )


def _telling(text: str) -> list[str]:
    """The words of a text that must have a source: those of names, and numbers."""
    named = " ".join(read_names(text).entities)
    return [*_WORD.findall(plain(named)), *_NUMBER.findall(plain(text))]


@lru_cache(TEXTS_KEPT)
def _words(text: str) -> frozenset[str]:
    flat = plain(text)
    return frozenset([*_WORD.findall(flat), *_NUMBER.findall(flat)])


def _has(words: frozenset[str], wanted: str) -> bool:
    """Whether a word is among others, if only with another ending."""
    if wanted in words or wanted.isdecimal():
        return wanted in words
    return any(_same_but_bent(wanted, one) for one in words)


def _same_but_bent(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    stem = max(shorter - 1, _BENT)
    return shorter >= _BENT and abs(len(one) - len(other)) <= _BENT and one[:stem] == other[:stem]


@lru_cache(TEXTS_KEPT)
def _flat(text: str) -> str:
    return " ".join(_WORD.findall(plain(text)))
