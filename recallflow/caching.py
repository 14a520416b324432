"""Caches of function results within a budget of bytes."""

from collections.abc import Callable
from sys import getsizeof
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_ENTRY_BYTES = 100  # of a dictionary entry without key and value
_SHARE = 64  # a value that takes more than 1/64 of the budget is not cached


class BoundedCache(dict[K, V]):
    """Results of a function: `cache[argument]` returns `compute(argument)`. A full cache is emptied, because a plain
    dict has the fastest lookup, and keeping an eviction order would slow down each lookup."""

    def __init__(self, compute: Callable[[K], V], budget_bytes: int, share: int = _SHARE) -> None:
        self._compute = compute
        self._budget_bytes, self._largest_bytes = budget_bytes, budget_bytes // share
        self.size_bytes = 0

    def __missing__(self, argument: K) -> V:
        value = self._compute(argument)
        size_bytes = _ENTRY_BYTES + _size_bytes(argument) + _size_bytes(value)
        if size_bytes > self._largest_bytes:
            return value
        if self.size_bytes + size_bytes > self._budget_bytes:
            self.clear()
            self.size_bytes = 0
        self[argument] = value
        self.size_bytes += size_bytes
        return value


def _size_bytes(value: Any) -> int:
    items_bytes = sum(map(_size_bytes, value)) if isinstance(value, tuple | list) else 0
    return getsizeof(value) + items_bytes
