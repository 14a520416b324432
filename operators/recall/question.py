"""What a question says, by rules: whom it names, which dates, what it asks for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, product

from recallflow import limits
from recallflow.caching import Kept
from recallflow.function_words import FUNCTION_WORDS
from recallflow.operators.text import stems

_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_SHORT_MONTHS = {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_AMBIGUOUS = {"march", "may"}  # ordinary words too
_MONTH = re.compile(rf"(?<![A-Za-z])(?i:{'|'.join([*_MONTHS, *_SHORT_MONTHS])})(?![A-Za-z])")
_DAY_BEFORE = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)?(?: of)? $")
_DAY_AFTER = re.compile(r"^\.? (?:the )?(\d{1,2})(?:st|nd|rd|th)?\b(?![:\d])")
_BESIDE = 32  # characters before and behind a month's name: more than any day there has
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
        stems=tuple(_looked_up(text)),
        bare_stems=tuple(_looked_up(bare)),
        dates=_dates(text),
        asks_when=bool(_ASKS_WHEN.search(text)),
    )


def _looked_up(text: str) -> list[str]:
    """The stems of a text's first content words. Each one costs a look through all memories."""
    found = stems(text)
    wanted = set(islice(dict.fromkeys(found), limits.QUERY_WORDS))
    return [stem for stem in found if stem in wanted]


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
    lowered = text.lower()
    # Longest first, and what was found is blanked out: "Ann Smith" does not name Ann as well.
    for participant in sorted(spellings, key=lambda name: (-len(name), name)):
        for form in spellings[participant]:
            shared = form != participant and first_names[form.lower()] > 1
            if not shared and _stands_in(form.lower(), lowered) and (spelling := _spelled(form, text)):
                places = [match.start() for match in _whole(spelling).finditer(text)]
                found[participant] = places[0], spelling
                text = _whole(spelling).sub(" " * len(spelling), text)
                lowered = text.lower()
                break
        if len(found) == limits.NAMED_MAX:
            break
    return {participant: spelling for participant, (_, spelling) in sorted(found.items(), key=lambda one: one[1])}


def _stands_in(name: str, text: str) -> bool:
    """Whether the name is in the text as a word of its own. For most participants it is not, and to find that out
    without a pattern is a thousand times faster than to make one."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_is_of_word(text[at - 1 : at]) or _is_of_word(text[end : end + 1])):
            return True
        at = text.find(name, at + 1)
    return False


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _spelled(name: str, text: str) -> str | None:
    """The name as the text writes it. An ordinary word is a name only with a capital (a Will is not every will)."""
    ordinary = name.lower() in FUNCTION_WORDS or name.lower() in _MONTHS
    found = [match[0] for match in _whole(name, flags=re.IGNORECASE).finditer(text)]
    if ordinary:
        found = [spelling for spelling in found if spelling[0].isupper()]
    return name if name in found else next(iter(found), None)


def _whole(name: str, behind: str = "", flags: int = 0) -> re.Pattern[str]:
    """A pattern for the name as a word of its own, whatever characters it begins and ends with, and what is behind."""
    return _patterns[name, behind, flags]


def _pattern(wanted: tuple[str, str, int]) -> re.Pattern[str]:
    name, behind, flags = wanted
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w){behind}", flags)


_patterns = Kept(_pattern, 4 * 1024 * 1024)  # the same names are asked about over and over


def _dates(text: str) -> tuple[DateMention, ...]:
    """The dates a text mentions, each once and not too many: each one costs a look at all memories."""
    exact = [DateMention(int(y), int(m), int(d)) for y, m, d in _ISO_DATE.findall(text)]
    rest = _ISO_DATE.sub(" ", text)
    years = dict.fromkeys(int(year) for year in _YEAR.findall(rest))
    months = dict.fromkeys(
        (month, _day(rest, match)) for match in _MONTH.finditer(rest) if (month := _month(rest, match)) is not None
    )
    paired = (DateMention(year, *month) for month, year in product(months, years or [None]))
    found = paired if months else (DateMention(year, None, None) for year in years)
    return tuple(islice(dict.fromkeys([*exact, *islice(found, limits.QUERY_DATES)]), limits.QUERY_DATES))


def _month(text: str, word: re.Match[str]) -> int | None:
    """The month a word names. Short forms need a capital. May and March are ordinary words too: they need a day or "in"
    beside them, or a capital that no sentence's start explains."""
    lowered, capital = word[0].lower(), word[0][0].isupper()
    if lowered in _AMBIGUOUS:
        beside = text[max(word.start() - _BESIDE, 0) : word.start()]
        before = beside.rstrip()
        within = capital and before[-1:].isalnum()
        dated = _day(text, word) if capital else _DAY_BEFORE.search(beside)
        if not (within or before.lower().endswith((" in", " of")) or dated):
            return None
    return _MONTHS.get(lowered) or (_SHORT_MONTHS.get(lowered) if capital else None)


def _day(text: str, month: re.Match[str]) -> int | None:
    """The day of the month beside a month's name: 8 May, May 8th, the 8th of May."""
    before, after = text[max(month.start() - _BESIDE, 0) : month.start()], text[month.end() : month.end() + _BESIDE]
    found = _DAY_BEFORE.search(before) or _DAY_AFTER.search(after)
    return int(found[1]) if found and 1 <= int(found[1]) <= 31 else None
