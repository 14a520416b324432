"""One Kafka partition: records that wait for the dataflow, and the offset from which another run continues.

Memory and queries are two topics, which are fetched independently. For read-your-writes, a query is held back until the
memory records of its key have been delivered that were in the memory partition when the query was read. Records of
other owners delay it only until they are fetched. The wait is bounded by WAIT_S and REACH; `Record.unread` marks a
query that could not wait.

Queries are delivered in round robin over their tenants, so one tenant's backlog does not delay the others. Records of
one tenant stay in the order of the log; the record's key names the tenant. Offsets that were delivered ahead of the log
order are stored until all earlier ones are delivered, up to AHEAD_MAX.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recallflow.connectors.kafka.messages import append_ms, size_bytes
from recallflow.owner import key_tenant

AHEAD_MAX = 20_000  # records delivered ahead of the log order: 5 MB
WAIT_S = 2.0  # as the `wait_timeout_ms` of a query with positions
KEYS_MOST = 10_000  # stored keys, above which keys without undelivered records are dropped
REACH = 2_000  # memory records: the queue of the consumer, about a second of work
Queue = Any  # a deque, or RoundRobinQueue, of confluent_kafka.Message, whose stubs make every field optional


class Passed(NamedTuple):
    """Offset and append time of a record that was given."""

    offset: int
    append_ms: int
    tenant: bytes


class RoundRobinQueue:
    """Records of one partition that were read and not given. One thread appends, another takes."""

    def __init__(self, given: Iterable[int] = ()) -> None:
        """`given` are the offsets that were given ahead of the log order."""
        self.is_ready: Callable[[Any], bool] | None = None  # whether a record may be delivered; None: always
        self.ahead = set(given)
        self._read: deque[Any] = deque()
        self._log: deque[Passed] = deque()  # in log order, from the first undelivered record
        self._lines: dict[bytes, deque[Any]] = {}  # by tenant, in the order of the round robin
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._read) + self._waiting

    def append(self, message: Any) -> None:
        self._read.append(message)

    def popleft(self) -> Any:
        """Remove and return the next record. Raise IndexError if there is none."""
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
        # A record that an earlier run gave may still wait here, and be deleted from the log.
        is_full = self._log and len(self._log) - self._waiting >= AHEAD_MAX
        tenants = [self._log[0].tenant] if is_full else self._lines
        is_ready = self.is_ready
        return next((one for one in tenants if is_ready is None or is_ready(self._lines[one][0])), None)

    def passed(self) -> Iterator[Passed]:
        """Yield given records in log order, up to the first record that was not given."""
        while self._log and self._log[0].offset in self.ahead:
            self.ahead.discard(self._log[0].offset)
            yield self._log.popleft()

    def _sort(self) -> None:
        while self._read:
            message = self._read.popleft()
            tenant = key_tenant(message.key())
            self._log.append(Passed(message.offset(), append_ms(message), tenant))
            self._lines.setdefault(tenant, deque()).append(message)
            self._waiting += 1


@dataclass(slots=True, eq=False)
class Lane:
    """One Kafka partition. Records wait in `queue` until the dataflow asks for them."""

    topic: str
    number: int
    next_offset: int  # of the next record to deliver to the dataflow
    end: int  # last known end offset of the partition
    answered_from: int = 0  # first offset whose outputs count, except `given_before`
    since_ms: int = 0  # append time of the record before the next one
    given_before: frozenset[int] = frozenset()  # delivered by an earlier run, ahead of the log order
    open: frozenset[int] = frozenset()  # delivered by an earlier run but unfinished: delivered again
    limit: int | None = None  # nothing from this offset on is given …
    paused: bool = False  # … and far beyond it nothing is read
    reached: int = -1  # the offset after the last record read
    last_of_key: dict[bytes | None, int] | None = None  # last read offset of each key, if queries wait
    queue: Queue = field(default_factory=deque)
    barriers: "WriteBarriers | None" = None  # of queries that wait for memory records
    # Two counters that only grow: one thread reads, another gives.
    read_bytes: int = 0
    given_bytes: int = 0

    def __post_init__(self) -> None:
        self.reached = max(self.reached, self.next_offset)

    @property
    def source(self) -> str:
        return f"{self.topic}:{self.number}"

    def take(self) -> Any:
        message = self.queue.popleft()
        self.given_bytes += size_bytes(message)
        if isinstance(self.queue, RoundRobinQueue):
            for passed in self.queue.passed():
                self._pass(passed.offset, passed.append_ms)
        else:
            self._pass(message.offset(), append_ms(message))
        return message

    def was_given(self, offset: int) -> bool:
        """Return whether an earlier run gave a record."""
        return offset in self.given_before or (offset < self.answered_from and offset not in self.open)

    def given_ahead(self) -> tuple[int, ...]:
        """Return the offsets beyond the next one that were given ahead of the log order."""
        ahead = (*self.given_before, *self.queue.ahead) if isinstance(self.queue, RoundRobinQueue) else ()
        return tuple(sorted({offset for offset in ahead if offset >= self.next_offset}))

    def _pass(self, offset: int, appended_ms: int) -> None:
        """Note that all records up to this offset were given, the last with this append time."""
        self.next_offset, self.since_ms = offset + 1, appended_ms

    def wait_for_writes(self, memory: "Lane", clock_s: Callable[[], float]) -> None:
        """Hold back queries of this partition for the memory records before them. The queue is a `RoundRobinQueue`."""
        self.barriers = WriteBarriers(memory, clock_s)
        self.queue.is_ready = self.barriers.is_passed

    def note_key(self, key: bytes | None, offset: int) -> None:
        """Remember the last record read of a key. Only the reader thread calls it."""
        last = self.last_of_key or {}
        if len(last) > KEYS_MOST:
            last = {key: at for key, at in last.items() if at >= self.next_offset}
        last[key] = offset
        self.last_of_key = last

    def note(self, end: int) -> None:
        self.end = max(self.end, end)

    def givable(self) -> bool:
        """Return whether a record may be given."""
        if isinstance(self.queue, RoundRobinQueue):
            return self.queue.has_ready()
        return bool(self.queue) and (self.limit is None or self.queue[0].offset() < self.limit)

    def held(self) -> int:
        """Return the number of records that are read and not given."""
        return len(self.queue)

    def held_bytes(self) -> int:
        return self.read_bytes - self.given_bytes


@dataclass(slots=True)
class _Barrier:
    end: int  # offset of the memory partition when the query was read
    deadline_s: float
    target: int | None = None  # offset after the last record of the query's key, once records up to `end` are fetched


class WriteBarriers:
    """Barriers of the queries of one partition. The reader thread calls `add`, the dataflow thread the rest."""

    def __init__(self, memory: "Lane", clock_s: Callable[[], float] = time.monotonic) -> None:
        self._memory = memory
        self._clock_s = clock_s
        self._barriers: dict[int, _Barrier] = {}
        self._blocked: set[int] = set()
        memory.last_of_key = {}

    def add(self, offset: int, end: int) -> None:
        """Hold back the query at `offset` until the memory records of its key below `end` are given."""
        self._barriers[offset] = _Barrier(end, self._clock_s() + WAIT_S)

    def is_passed(self, query: Any) -> bool:
        """Return whether a query may be given now."""
        barrier = self._barriers.get(query.offset())
        if barrier is None or self._missing(query, barrier) == 0 or self._is_hopeless(barrier):
            self._blocked.discard(query.offset())
            return True
        self._blocked.add(query.offset())
        return False

    def take(self, query: Any) -> int:
        """Remove the barrier of a query that is given. Return how many memory records before it may be missing."""
        self._blocked.discard(query.offset())
        barrier = self._barriers.pop(query.offset(), None)
        return 0 if barrier is None else self._missing(query, barrier)

    def is_blocking(self) -> bool:
        """Return whether a query waits for memory records, which should then be fetched at once."""
        return bool(self._blocked)

    def _is_hopeless(self, barrier: _Barrier) -> bool:
        return barrier.end - self._memory.next_offset > REACH or self._clock_s() >= barrier.deadline_s

    def _missing(self, query: Any, barrier: _Barrier) -> int:
        memory = self._memory
        if memory.next_offset >= barrier.end:
            return 0
        if memory.reached < barrier.end:
            return barrier.end - memory.next_offset
        if barrier.target is None:
            last = None if query.key() is None else (memory.last_of_key or {}).get(query.key(), -1)
            # A query without a key may belong to any owner. A later record of the key must not extend the wait.
            barrier.target = barrier.end if last is None or last >= barrier.end else last + 1
            if not memory.queue:  # the rest up to the end are markers of transactions
                barrier.target = 0
        return max(0, barrier.target - memory.next_offset)
