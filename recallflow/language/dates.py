"""Dates in questions, in the wording of each language."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import islice, product

import regex

from recallflow.language.scripts import plain
from recallflow.language.stemming import of_script
from recallflow.language.tables import ENGLISH, Table

_BESIDE = 32  # characters before and after a month's name, enough for any form of the day
_DIGIT = regex.compile(r"\d")
_ISO_DATE = regex.compile(r"\b((?:19|20)\d\d)-(\d\d)-(\d\d)\b", regex.ASCII)
# If the order of a date's numbers is ambiguous, the year alone would be too broad, so it does not match.
_YEAR = regex.compile(r"(?<!\b\d{1,2}[./-] ?)\b((?:19|20)\d\d)\b(?![./-]\d{1,2}[./-]\d)", regex.ASCII)
_NUMERIC = {
    "dmy": regex.compile(r"\b(?P<day>\d{1,2})[./-] ?(?P<month>\d{1,2})[./-] ?(?P<year>(?:19|20)\d\d)\b", regex.ASCII),
    "ymd": regex.compile(r"\b(?P<year>(?:19|20)\d\d)[./-] ?(?P<month>\d{1,2})[./-] ?(?P<day>\d{1,2})\b", regex.ASCII),
}


@dataclass(frozen=True, slots=True)
class DateMention:
    """A date in a question; absent parts are None. `month` and `day` count from 1."""

    year: int | None
    month: int | None
    day: int | None

    def holds(self, day: date) -> bool:
        """Return whether the day matches this date."""
        parts = (self.year, day.year), (self.month, day.month), (self.day, day.day)
        return all(asked is None or asked == own for asked, own in parts)


def find_dates(text: str, table: Table, at_most: int) -> tuple[DateMention, ...]:
    """Return the distinct dates of a text, at most `at_most`, because each date costs a scan of all memories."""
    if table is not ENGLISH:
        text = plain(text)
    if not table.month.search(text) and not _DIGIT.search(text):
        return ()
    exact = [DateMention(int(y), int(m), int(d)) for y, m, d in _ISO_DATE.findall(text)]
    rest = _ISO_DATE.sub(" ", text)
    if table.numeric:
        numeric = _NUMERIC[table.numeric]
        exact += [DateMention(int(f["year"]), int(f["month"]), int(f["day"])) for f in numeric.finditer(rest)]
        rest = numeric.sub(" ", rest)
    years = dict.fromkeys(int(year) for year in _YEAR.findall(rest))
    months = dict.fromkeys(_months(rest, table))
    paired = (DateMention(year, *month) for month, year in product(months, years or [None]))
    found = paired if months else (DateMention(year, None, None) for year in years)
    return tuple(islice(dict.fromkeys([*exact, *islice(found, at_most)]), at_most))


def _months(text: str, table: Table) -> Iterator[tuple[int, int | None]]:
    """Yield each named month, and the day next to it."""
    for word in table.month.finditer(text):
        if (month := _month(text, word, table)) is not None:
            yield month, _day(text, word, table)


def _month(text: str, word: regex.Match[str], table: Table) -> int | None:
    """Return the month of a word. Short forms need a capital. An ambiguous one needs an adjacent day, a preceding
    word for months, or a capital inside a sentence."""
    lowered, capital = word[0].lower(), word[0][0].isupper()
    if lowered in table.doubtful_months:
        beside = text[max(word.start() - _BESIDE, 0) : word.start()]
        before = beside.rstrip()
        within = capital and before[-1:].isalnum()
        dated = _day(text, word, table) if capital else table.day_before.search(beside)
        if not (within or before.lower().endswith(table.before_months) or dated):
            return None
    if (number := regex.match(r"\d+", lowered)) is not None:
        return int(number[0]) if 1 <= int(number[0]) <= 12 else None
    found = table.months.get(lowered) or (table.short_months.get(lowered) if capital else None)
    return found or (table.months.get(of_script[lowered]) if table.endings else None)


def _day(text: str, month: regex.Match[str], table: Table) -> int | None:
    """Return the day next to a month's name: 8 May, May 8th, the 8th of May."""
    before, after = text[max(month.start() - _BESIDE, 0) : month.start()], text[month.end() : month.end() + _BESIDE]
    found = table.day_before.search(before) or table.day_after.search(after)
    return int(found[1]) if found and 1 <= int(found[1]) <= 31 else None
