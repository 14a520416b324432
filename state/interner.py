"""Strings by small numbers."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count, islice


class Interner:
    """Strings ↔ small numbers, so that filters compare integers. -1 is no string."""

    def __init__(self) -> None:
        self._numbers: dict[str | None, int] = defaultdict(count().__next__, {None: -1})
        self.strings: list[str] = []

    def numbers(self, texts: Iterable[str | None]) -> list[int]:
        """Return the strings' numbers. A new string gets the next number."""
        found = [*map(self._numbers.__getitem__, texts)]
        self.strings += (text for text in islice(self._numbers, 1 + len(self.strings), None) if text is not None)
        return found

    def known(self, text: str) -> int:
        """Return the string's number, or -2, which no memory has, for an unknown string."""
        return self._numbers.get(text, -2)
