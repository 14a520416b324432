"""Strings by small numbers."""


class Interner:
    """Strings ↔ small numbers, so that filters compare integers. -1 is no string."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.strings: list[str] = []

    def number(self, text: str | None) -> int:
        """The string's number, given on first sight."""
        if text is None:
            return -1
        if text not in self._numbers:
            self._numbers[text] = len(self.strings)
            self.strings.append(text)
        return self._numbers[text]

    def known(self, text: str) -> int:
        """The string's number, or -2 where it was never seen (which no memory has)."""
        return self._numbers.get(text, -2)
