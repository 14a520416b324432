"""The order of day, month and year in dates that are numbers alone, out of all dates of a file."""

from datetime import date
from typing import get_args

from recallflow.connectors.logs.model import DateOrder
from recallflow.errors import UsageError

_ORDERS: tuple[DateOrder, ...] = get_args(DateOrder)


class Dates:
    """Dates as they come in a file, which is in the order of time. An order fits where each date is one, and none lies
    more than a day before the one that came earlier; where several fit, or none, somebody has to say which it is."""

    def __init__(self, name: str, order: DateOrder | None) -> None:
        self._name = name
        self._order = order
        self._latest: dict[DateOrder, date] = dict.fromkeys(_ORDERS, date.min)
        self._seen: tuple[str, str, str] | None = None

    def note(self, a: str, separator: str, b: str, c: str) -> None:
        """One more date of the file."""
        if self._order is not None or (a, b, c) == self._seen:
            return
        self._seen = a, b, c
        for order in [*self._latest]:
            found = _date(order, a, b, c) if separator != "." or order != "mdy" else None  # nobody writes 12.31.2025
            if found is None or (self._latest[order] - found).days > 1:
                del self._latest[order]
            else:
                self._latest[order] = max(found, self._latest[order])

    def decide(self) -> None:
        """Raises UsageError where the dates do not tell their order."""
        if self._order is not None or self._seen is None:
            return
        if len(self._latest) != 1:
            shown = "/".join(self._seen)
            why = "could be day or month first" if self._latest else "are in no order that fits all of them"
            raise UsageError(f"{self._name}: its dates ({shown}) {why}; give --date-order dmy, mdy or ymd")
        (self._order,) = self._latest

    def read(self, a: str, b: str, c: str) -> tuple[int, int, int]:
        """Year, month and day, whether or not there is such a day."""
        return _parts(self._order or "dmy", a, b, c)


def _date(order: DateOrder, a: str, b: str, c: str) -> date | None:
    try:
        return date(*_parts(order, a, b, c)) if _fits(order, a, c) else None
    except ValueError:
        return None


def _fits(order: DateOrder, a: str, c: str) -> bool:
    """A year of four digits tells its place; one of two comes last."""
    return len(a) == 4 if order == "ymd" else len(a) <= 2 and len(c) in (2, 4)


def _parts(order: DateOrder, a: str, b: str, c: str) -> tuple[int, int, int]:
    year, month, day = {"dmy": (c, b, a), "mdy": (c, a, b), "ymd": (a, b, c)}[order]
    return int(year) + (2000 if len(year) <= 2 else 0), int(month), int(day)
