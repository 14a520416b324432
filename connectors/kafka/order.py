"""One Kafka partition that is read: what waits to be given to the dataflow, and from where another run goes on.

Recovery stores hold a `Place` under this module's name.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recallflow.connectors.kafka.messages import append_ms, size_bytes
from recallflow.connectors.kafka.turns import Turns

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
    queue: Queue = field(default_factory=deque)
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

    def place(self) -> Place:
        """From where another run goes on."""
        ahead = (*self.given_before, *self.queue.ahead) if isinstance(self.queue, Turns) else ()
        beyond = tuple(sorted({offset for offset in ahead if offset >= self.next_offset}))
        return Place(self.next_offset, self.answered_from, self.since_ms, beyond)

    def _pass(self, offset: int, appended_ms: int) -> None:
        """All records up to this offset were given; the one there was appended at that time."""
        self.next_offset, self.since_ms = offset + 1, appended_ms

    def note(self, end: int) -> None:
        self.end = max(self.end, end)

    def givable(self) -> bool:
        """Whether a record waits that may be given."""
        return bool(self.queue) and (self.limit is None or self.queue[0].offset() < self.limit)

    def held(self) -> int:
        """Records that are read and not given to the dataflow yet."""
        return len(self.queue)

    def held_bytes(self) -> int:
        """The size of those records."""
        return self.read_bytes - self.given_bytes
