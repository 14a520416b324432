"""Whose turn it is among the tenants whose records wait in one partition: each gives one, then the next one does.

A tenant that has two thousand waiting does not keep others from being heard. Those of one tenant stay in the order of
the log; a record's key says whose it is, which is a hint only, and good enough for that.

What was given before its turn in the log is remembered, in places too, until all before it was given. Where that is
too much, as when very many tenants ask behind one that waits with very much, the log's first is given next.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from recallflow.connectors.kafka.messages import append_ms
from recallflow.owner import key_tenant

AHEAD_MAX = 20_000  # records given before their turn in the log: 5 MB


class Passed(NamedTuple):
    """What stays known of a record until all before it were given."""

    offset: int
    append_ms: int
    tenant: bytes


class Turns:
    """Records of one partition that were read and not given. One thread appends, another takes."""

    def __init__(self, given: Iterable[int] = ()) -> None:
        """`given`: offsets that were given before their turn in the log."""
        self.is_ready: Callable[[Any], bool] | None = None  # whether a record may be given; all may where it is None
        self.ahead = set(given)
        self._read: deque[Any] = deque()
        self._log: deque[Passed] = deque()  # in the order of the log, from the first on that was not given
        self._lines: dict[bytes, deque[Any]] = {}  # by tenant, whose turn it is first
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._read) + self._waiting

    def append(self, message: Any) -> None:
        self._read.append(message)

    def popleft(self) -> Any:
        """The record whose turn it is. Raises IndexError where there is none."""
        if (tenant := self._next_tenant()) is None:
            raise IndexError("no record is ready")
        line = self._lines.pop(tenant)
        message = line.popleft()
        if line:
            self._lines[tenant] = line
        self._waiting -= 1
        self.ahead.add(message.offset())
        return message

    def has_ready(self) -> bool:
        """Return whether `popleft` has a record to give."""
        return self._next_tenant() is not None

    def _next_tenant(self) -> bytes | None:
        """Return the tenant whose first record is given next: the first in turn whose record is ready."""
        self._sort()
        # A record that an earlier run was given may wait, and be in the log no more.
        is_full = self._log and len(self._log) - self._waiting >= AHEAD_MAX
        tenants = [self._log[0].tenant] if is_full else self._lines
        is_ready = self.is_ready
        return next((one for one in tenants if is_ready is None or is_ready(self._lines[one][0])), None)

    def passed(self) -> Iterator[Passed]:
        """The next records, in the order of the log, that were given, as all before them were."""
        while self._log and self._log[0].offset in self.ahead:
            self.ahead.discard(self._log[0].offset)
            yield self._log.popleft()

    def _sort(self) -> None:
        """Sorts what was read by tenants."""
        while self._read:
            message = self._read.popleft()
            tenant = key_tenant(message.key())
            self._log.append(Passed(message.offset(), append_ms(message), tenant))
            self._lines.setdefault(tenant, deque()).append(message)
            self._waiting += 1
