"""One Kafka partition that is read: what waits to be given to the dataflow, and from where another run goes on.

Memory and queries are two topics, which are fetched independently. For read-your-writes, a query is held back until the
memory records of its own key have been given that were in the memory partition when the query was read. Records of
other owners delay it only until they are fetched. The wait is bounded by WAIT_S and REACH; a query that could not wait
says so (`Record.unread`).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recallflow.connectors.kafka.messages import append_ms, size_bytes
from recallflow.connectors.kafka.turns import Turns

WAIT_S = 2.0  # as `wait_timeout_ms` of a query that names positions itself
KEYS_MOST = 10_000  # remembered, before those whose records were given are dropped
REACH = 2_000  # memory records: the queue of the consumer, about a second of work

Queue = Any  # a deque, or Turns, of confluent_kafka.Message, whose stubs make every field optional


@dataclass(slots=True, eq=False)
class Lane:
    """One Kafka partition that is read. Records wait in `queue` until the dataflow asks for them."""

    topic: str
    number: int
    next_offset: int  # of the next record to be given to the dataflow
    end: int  # the partition's end, as far as known
    answered_from: int = 0  # the offset from which on outputs count, but for those `given_before`
    since_ms: int = 0  # when the record before the next one was appended
    given_before: frozenset[int] = frozenset()  # by an earlier run, before their turn in the log
    open: frozenset[int] = frozenset()  # given by an earlier run, and not through: they are given again
    limit: int | None = None  # nothing from this offset on is given …
    paused: bool = False  # … and far beyond it nothing is read
    reached: int = -1  # the offset after the last record read
    last_of_key: dict[bytes | None, int] | None = None  # offset of the last record read of each key, where queries wait
    queue: Queue = field(default_factory=deque)
    barriers: "WriteBarriers | None" = None  # of queries, where they wait for memory records
    # Two counters that only grow: one thread reads, another gives.
    read_bytes: int = 0
    given_bytes: int = 0

    def __post_init__(self) -> None:
        self.reached = max(self.reached, self.next_offset)

    @property
    def source(self) -> str:
        return f"{self.topic}:{self.number}"

    def take(self) -> Any:
        """Gives the next record."""
        message = self.queue.popleft()
        self.given_bytes += size_bytes(message)
        if isinstance(self.queue, Turns):
            for passed in self.queue.passed():
                self._pass(passed.offset, passed.append_ms)
        else:
            self._pass(message.offset(), append_ms(message))
        return message

    def was_given(self, offset: int) -> bool:
        """Whether an earlier run was given a record."""
        return offset in self.given_before or (offset < self.answered_from and offset not in self.open)

    def given_ahead(self) -> tuple[int, ...]:
        """Return the offsets beyond the next one that were given before their turn in the log."""
        ahead = (*self.given_before, *self.queue.ahead) if isinstance(self.queue, Turns) else ()
        return tuple(sorted({offset for offset in ahead if offset >= self.next_offset}))

    def _pass(self, offset: int, appended_ms: int) -> None:
        """All records up to this offset were given; the one there was appended at that time."""
        self.next_offset, self.since_ms = offset + 1, appended_ms

    def wait_for_writes(self, memory: "Lane", clock_s: Callable[[], float]) -> None:
        """Hold back queries of this partition for the memory records before them. The queue is a `Turns`."""
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
        """Whether a record waits that may be given."""
        if isinstance(self.queue, Turns):
            return self.queue.has_ready()
        return bool(self.queue) and (self.limit is None or self.queue[0].offset() < self.limit)

    def held(self) -> int:
        """Records that are read and not given to the dataflow yet."""
        return len(self.queue)

    def held_bytes(self) -> int:
        """The size of those records."""
        return self.read_bytes - self.given_bytes


@dataclass(slots=True)
class _Barrier:
    end: int  # offset of the memory partition when the query was read
    deadline_s: float
    target: int | None = None  # the offset behind the last record of the query's key, once all up to `end` is fetched


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
        """Return whether a query waits for memory records: these should come at once."""
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
            # A query without a key may be anyone's. A later record of the key must not extend the wait.
            barrier.target = barrier.end if last is None or last >= barrier.end else last + 1
            if not memory.queue:  # the rest up to the end are markers of transactions
                barrier.target = 0
        return max(0, barrier.target - memory.next_offset)
