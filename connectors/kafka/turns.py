"""Whose turn it is among the tenants whose records wait in one partition: each gives one, then the next one does.

A tenant that has two thousand waiting does not keep others from being heard. Those of one tenant stay in the order of
the log; a record's key says whose it is, which is a hint only, and good enough for that.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from recallflow.owner import key_tenant


class Turns:
    """Records of one partition that were read and not given. One thread appends, another takes."""

    def __init__(self, given: Iterable[int] = ()) -> None:
        """`given`: offsets that were given before their turn in the log."""
        self.ahead = set(given)
        self._read: deque[Any] = deque()
        self._log: deque[Any] = deque()  # in the order of the log, from the first on that was not given
        self._lines: dict[bytes, deque[Any]] = {}  # by tenant, whose turn it is first
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._read) + self._waiting

    def append(self, message: Any) -> None:
        self._read.append(message)

    def popleft(self) -> Any:
        """The record whose turn it is. Raises IndexError where there is none."""
        self._sort()
        if not self._lines:
            raise IndexError("nobody waits")
        tenant, line = next(iter(self._lines.items()))
        message = line.popleft()
        del self._lines[tenant]
        if line:
            self._lines[tenant] = line
        self._waiting -= 1
        self.ahead.add(message.offset())
        return message

    def passed(self) -> Iterator[Any]:
        """The next records, in the order of the log, that were given, as all before them were."""
        while self._log and self._log[0].offset() in self.ahead:
            message = self._log.popleft()
            self.ahead.discard(message.offset())
            yield message

    def _sort(self) -> None:
        """Sorts what was read by tenants."""
        while self._read:
            message = self._read.popleft()
            self._log.append(message)
            self._lines.setdefault(key_tenant(message.key()), deque()).append(message)
            self._waiting += 1
