"""The order in which memory records of different partitions are given to the dataflow: that of their append times.

A topic that grows sends owners to other partitions, and within a partition alone their order would be lost. So records
that were read are released merged by append time, over all partitions and workers of the process; a partition that is
read to its end holds nobody up, and one that is behind is waited for. In what is released, each partition goes on by
itself, in batches. Only where an owner changes partition does the merge stop, until all that was released has gone
through the state: two partitions are two streams, and what is given first need not arrive first.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from recallflow.connectors.kafka.messages import append_ms, size_bytes
from recallflow.connectors.kafka.turns import Turns

KEYS_MAX = 20_000  # owners whose partition is remembered; then everything is let through, and they are forgotten

Queue = Any  # a deque, or Turns, of confluent_kafka.Message, whose stubs make every field optional


class Place(NamedTuple):
    """Where a partition is read on: the next offset to be given; the offset from which on outputs count; when the
    record before the next one was appended, 0 where nobody knows; and offsets behind that which were given before their
    turn in the log."""

    next_offset: int
    answered_from: int = 0
    since_ms: int = 0
    ahead: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Lane:
    """One Kafka partition that is read. Records wait in `read` until their order lets them, then in `queue` until the
    dataflow asks for them; where no order is kept, both are one queue."""

    topic: str
    number: int
    next_offset: int  # of the next record to be given to the dataflow
    end: int  # the partition's end, as far as known
    answered_from: int = 0  # the offset from which on outputs count, but for those `given_before`
    since_ms: int = 0  # when the record before the next one was appended
    given_before: frozenset[int] = frozenset()  # by an earlier run, before their turn in the log
    open: frozenset[int] = frozenset()  # given by an earlier run, and not through: they are given again
    limit: int | None = None  # nothing from this offset on is given
    reached: int = -1  # the offset after the last record read
    read: Queue = field(default_factory=deque)
    queue: Queue = field(default_factory=deque)
    # Two counters that only grow: one thread reads, another gives.
    read_bytes: int = 0
    given_bytes: int = 0
    paused: bool = False
    ended: int = -1  # the reported end of what can be read: what is beyond belongs to an open transaction
    noted: int = -1  # the end known before the last read …
    passed: int = -1  # … and the one of which it is known that nothing can be read up to it

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

    def place(self) -> Place:
        """From where another run goes on."""
        ahead = (*self.given_before, *self.queue.ahead) if isinstance(self.queue, Turns) else ()
        beyond = tuple(sorted({offset for offset in ahead if offset >= self.next_offset}))
        return Place(self.next_offset, self.answered_from, self.since_ms, beyond)

    def _pass(self, offset: int, appended_ms: int) -> None:
        """All records up to this offset were given; the one there was appended at that time."""
        self.next_offset, self.since_ms = offset + 1, appended_ms

    def note(self, end: int) -> None:
        self.noted, self.end = self.end, max(self.end, end)

    def pass_markers(self) -> None:
        """All that Kafka had sent was read, and so what is still missing up to the end known before cannot be
        read: without this, a producer that hangs in a transaction would hold up everybody."""
        if self.ended == self.reached:
            self.passed = self.noted

    def behind(self) -> bool:
        """Whether records are known to be there that were not read yet."""
        return self.reached < self.end and self.passed < self.end

    def givable(self) -> bool:
        """Whether a record waits that may be given."""
        return bool(self.queue) and (self.limit is None or self.queue[0].offset() < self.limit)

    def held(self) -> int:
        """Records that are read and not given to the dataflow yet."""
        return len(self.queue) if self.read is self.queue else len(self.read) + len(self.queue)

    def held_bytes(self) -> int:
        """The size of those records."""
        return self.read_bytes - self.given_bytes


class Order:
    """Releases what the lanes of a process have read. `through` says how many of the records released have gone
    through the state."""

    def __init__(self, through: Callable[[], int]) -> None:
        self.draining = False  # nothing is released until all that was has gone through
        self._begun = False
        self._through = through
        self._released = 0
        self._lanes: list[Lane] = []
        self._places: dict[bytes, int] = {}  # key → the lane that its latest records came by
        self._working = threading.Lock()

    def add(self, lane: Lane) -> None:
        with self._working:
            self._lanes.append(lane)

    def begin(self) -> None:
        """All lanes of the start are there; without one of them, what comes next would be unknown."""
        self._begun = True

    def emptied(self, lane: Lane) -> int | None:
        """The offset that a lane is read to, once all that was read of it was given; asked by whoever gives it."""
        reached = lane.reached  # asked first: the reader may be bringing more
        with self._working:  # what is being released is in no queue
            return None if lane.held() else reached

    def release(self) -> None:
        """Releases what is in order. Called by every worker; one of them at a time does it for all."""
        if self._working.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._working.release()

    def _release(self) -> None:
        if self._released == self._through():
            self._places.clear()
            self.draining = False
        if self.draining or not self._begun or (heads := self._heads()) is None:
            return
        while heads:
            number = heads[0][1]
            lane = self._lanes[number]
            message = lane.read[0]
            if heads[0][0] and not self._keeps_order(message.key(), number):
                return
            behind = lane.behind()  # before the look at what is read: the reader may just bring the rest
            lane.queue.append(lane.read.popleft())
            self._released += 1
            if lane.read:
                heapreplace(heads, (append_ms(lane.read[0]), number))
            elif behind:
                return
            else:
                heappop(heads)

    def _heads(self) -> list[tuple[int, int]] | None:
        """The append time of each lane's first record, as a heap; None while one of them is unknown."""
        heads = []
        for number, lane in enumerate(self._lanes):
            behind = lane.behind()
            if lane.read:
                heads.append((append_ms(lane.read[0]), number))
            elif behind:
                return None
        heapify(heads)
        return heads

    def _keeps_order(self, key: bytes | None, number: int) -> bool:
        """Whether an owner's record can be released behind what was released before it."""
        if key is None:  # of an owner that its producer did not name: nobody promises it an order
            return True
        self.draining = self._places.setdefault(key, number) != number or len(self._places) > KEYS_MAX
        if self.draining and self._released == self._through():
            self._places = {key: number}
            self.draining = False
        return not self.draining
