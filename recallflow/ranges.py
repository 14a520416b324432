"""Whole numbers as people write them: `0-7,9`."""

from collections.abc import Collection

NUMBER_MAX = 65_535  # more partitions no topic has; `0-9999999999` is a slip


def parse_ranges(text: str) -> frozenset[int]:
    """The numbers of `0-7,9`. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{text!r} names no numbers as in 0-7,9")
        low, high = int(first), int(last or first)
        if not low <= high <= NUMBER_MAX:
            raise ValueError(f"{text!r}: {part.strip()} ends before it begins, or beyond {NUMBER_MAX:,}")
        found.update(range(low, high + 1))
    return frozenset(found)


def ranges_of(numbers: Collection[int]) -> str:
    """The same as text, the shortest way."""
    words: list[str] = []
    first = last = -2
    for number in [*sorted(numbers), None]:
        if number is not None and number == last + 1:
            last = number
            continue
        if last >= 0:
            words.append(str(first) if first == last else f"{first}-{last}")
        first = last = -2 if number is None else number
    return ",".join(words)
