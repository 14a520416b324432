"""What a question says, by rules: whom it names, which dates, what it asks for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from recallflow.function_words import FUNCTION_WORDS
from recallflow.operators.text import stems

_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_SHORT_MONTHS = {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_AMBIGUOUS = {"march", "may"}  # ordinary words too
_LETTERS = re.compile(r"[A-Za-z]+")
_DAY_BEFORE = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)?(?: of)? $")
_DAY_AFTER = re.compile(r"^\.? (?:the )?(\d{1,2})(?:st|nd|rd|th)?\b(?![:\d])")
_ISO_DATE = re.compile(r"\b((?:19|20)\d\d)-(\d\d)-(\d\d)\b")
_YEAR = re.compile(r"\b((?:19|20)\d\d)\b")
_ASKS_WHEN = re.compile(
    r"^\W*(?:when|(?:what|which) (?:date|day|month|year|time)|(?:in|on) (?:what|which) (?:date|day|month|year)"
    r"|how long)\b"
    r"|\bwhen (?:did|does|do|was|were|is|are|will|has|have|had)\b",
    re.IGNORECASE,
)
_FIRST_PERSON = re.compile(r"\b(?:I|my|me|mine|myself)\b|\bI'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DateMention:
    """A date as far as the question gives it. `month` and `day` count from 1."""

    year: int | None
    month: int | None
    day: int | None


@dataclass(frozen=True, slots=True)
class Question:
    """A question, understood. `own_words` is what to embed: participants' names in it stand as I and my, since a
    model fixates on a name, and their messages say I. `named`: participants, in the order in which it names them."""

    text: str
    own_words: str
    named: tuple[str, ...]
    first_person: bool
    stems: tuple[str, ...]
    bare_stems: tuple[str, ...]
    dates: tuple[DateMention, ...]
    asks_when: bool


def understand(text: str, participants: Iterable[str]) -> Question:
    """Reads a question about conversations between `participants`."""
    named = _named(text, participants)
    own_words = bare = text
    for spelling in named.values():
        own_words = _whole(spelling).sub("I", _whole(spelling, r"['’]s\b").sub("my", own_words))
        bare = _whole(spelling, r"(?:['’]s\b)?").sub(" ", bare)
    return Question(
        text=text,
        own_words=" ".join(own_words.split()),
        named=tuple(named),
        first_person=bool(_FIRST_PERSON.search(text)),
        stems=tuple(stems(text)),
        bare_stems=tuple(stems(bare)),
        dates=tuple(_dates(text)),
        asks_when=bool(_ASKS_WHEN.search(text)),
    )


def _named(text: str, participants: Iterable[str]) -> dict[str, str]:
    """Participant → the spelling found in the text: the full name, or the first one where only one bears it. In the
    order in which they are named."""
    spellings: dict[str, list[str]] = {}
    first_names: dict[str, int] = {}
    for participant in participants:
        first, *rest = participant.split() or [participant]
        spellings[participant] = [participant, first] if rest else [participant]
        first_names[first.lower()] = first_names.get(first.lower(), 0) + 1
    found: dict[str, tuple[int, str]] = {}
    # Longest first, and what was found is taken out: "Ann Smith" does not name Ann as well.
    for participant in sorted(spellings, key=lambda name: (-len(name), name)):
        for form in spellings[participant]:
            shared = form != participant and first_names[form.lower()] > 1
            if not shared and (spelling := _spelled(form, text)):
                matches = [*_whole(spelling).finditer(text)]
                found[participant] = matches[0].start(), spelling
                for match in matches:
                    text = text[: match.start()] + " " * len(spelling) + text[match.end() :]
                break
    return {participant: spelling for participant, (_, spelling) in sorted(found.items(), key=lambda one: one[1])}


def _spelled(name: str, text: str) -> str | None:
    """The name as the text writes it. An ordinary word is a name only with a capital (a Will is not every will)."""
    if name.lower() not in text.lower():
        return None
    ordinary = name.lower() in FUNCTION_WORDS or name.lower() in _MONTHS
    found = [match[0] for match in _whole(name, flags=re.IGNORECASE).finditer(text)]
    if ordinary:
        found = [spelling for spelling in found if spelling[0].isupper()]
    return name if name in found else next(iter(found), None)


@lru_cache(maxsize=10_000)  # the same names are asked about over and over
def _whole(name: str, behind: str = "", flags: int = 0) -> re.Pattern[str]:
    """A pattern for the name as a word of its own, whatever characters it begins and ends with, and what is behind."""
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w){behind}", flags)


def _dates(text: str) -> list[DateMention]:
    exact = [DateMention(int(y), int(m), int(d)) for y, m, d in _ISO_DATE.findall(text)]
    rest = _ISO_DATE.sub(" ", text)
    years: list[int | None] = [int(year) for year in _YEAR.findall(rest)]
    months = [
        DateMention(year, month, _day(rest, match))
        for match in _LETTERS.finditer(rest)
        if (month := _month(rest, match)) is not None
        for year in years or [None]
    ]
    return exact + months or [DateMention(year, None, None) for year in years]


def _month(text: str, word: re.Match[str]) -> int | None:
    """The month a word names. Short forms need a capital. May and March are ordinary words too: they need a day or "in"
    beside them, or a capital that no sentence's start explains."""
    lowered, capital = word[0].lower(), word[0][0].isupper()
    if lowered in _AMBIGUOUS:
        before = text[: word.start()].rstrip()
        within = capital and before[-1:].isalnum()
        dated = _day(text, word) if capital else _DAY_BEFORE.search(text[: word.start()])
        if not (within or before.lower().endswith((" in", " of")) or dated):
            return None
    return _MONTHS.get(lowered) or (_SHORT_MONTHS.get(lowered) if capital else None)


def _day(text: str, month: re.Match[str]) -> int | None:
    """The day of the month beside a month's name: 8 May, May 8th, the 8th of May."""
    found = _DAY_BEFORE.search(text[: month.start()]) or _DAY_AFTER.search(text[month.end() :])
    return int(found[1]) if found and 1 <= int(found[1]) <= 31 else None
