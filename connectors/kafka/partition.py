"""One Kafka partition: its progress, and the records that wait for the dataflow.

The next owner continues from the progress, which is committed as metadata of the group's offsets in a compact encoding.
It is stored in the partition's folder too, because Kafka expires the offsets of an inactive group.

Memory events and queries are in two topics, which are fetched independently. For read-your-writes, a query waits until
the dataflow has received all memory records with its key that were in the partition when the query was read. Records
with other keys delay it only until they are fetched. WAIT_MAX_S and WAIT_RECORDS_MAX limit the wait;
`Record.unapplied` marks a query that did not wait to the end.

Queries are delivered in round robin over their tenants, so one tenant's backlog does not delay the others. Records of
one tenant stay in the order of the log; the record's key contains the tenant. Offsets of records that are delivered
ahead of the log order are kept until the records before them are delivered, at most AHEAD_MAX."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import orjson

from recallflow.connectors.kafka.messages import append_ms, size_bytes
from recallflow.owner import key_tenant

METADATA_CHARACTERS_MAX = 4_000  # characters: brokers accept 4,096 by default
LISTED_OFFSETS_MAX = 200  # limit of each list of offsets in commit metadata

TopicOffsets = Mapping[str, Mapping[int, int]]  # output topic → partition → an offset


class LogProgress(NamedTuple):
    """Progress of one log.

    Records below `next_offset` are done (their outputs are delivered), except those in `open`; so are the later ones in
    `ahead`. `since_ms` is the append time of the record before `next_offset`; 0 if it is unknown."""

    next_offset: int
    since_ms: int = 0
    open: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Return the offset of the first record that is not done."""
        return min((self.next_offset, *self.open))

    def is_done(self, offset: int) -> bool:
        """Return whether the outputs of a record are known to be delivered."""
        return offset in self.ahead or (offset < self.next_offset and offset not in self.open)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress of a partition in both of its logs. The memory log has no open records.

    `tails` are output offsets: outputs of unfinished records have these or higher ones. An output partition that is
    absent must be searched whole. `at_ms` is the time of `tails` by the writer's clock. `clean`: no output was sent for
    unfinished records. `deployment` and `partitions` identify the state. `began` is the first offset of the memory log
    when the deployment began. `generation` counts the owners of the partition."""

    memory: LogProgress
    queries: LogProgress
    partitions: int
    tails: TopicOffsets = field(default_factory=dict)
    at_ms: int = 0
    clean: bool = False
    deployment: str = ""
    began: int = 0
    generation: int = 0

    def encode(self) -> bytes:
        """Return the encoding for a partition's folder, of any length."""
        stored = {one.name: getattr(self, one.name) for one in fields(self)}
        tails = {topic: _by_partition(offsets) for topic, offsets in self.tails.items()}
        encoded = {"memory": _compact(self.memory), "queries": _compact(self.queries), "tails": tails}
        return orjson.dumps(stored | encoded)

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        """Return the progress that `encode` encoded. Raise ValueError for other data."""
        try:
            stored = orjson.loads(data)
            memory, queries = (_decoded(*stored.pop(name)) for name in ("memory", "queries"))
            tails = {
                topic: {number: offset for number, offset in enumerate(offsets) if offset >= 0}
                for topic, offsets in stored.pop("tails").items()
            }
            return cls(memory, queries, tails=tails, **stored)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no progress of a partition: {str(data)[:200]!r}") from error

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Parse commit metadata. Return None if it is empty or of another version; a search of outputs replaces it."""
        try:
            return cls.decode(text) if text else None
        except ValueError:
            return None

    def text(self) -> str:
        """Return the commit metadata. If it is too long, omit first the tails, which `at_ms` replaces, and then records
        done ahead, which the next owner reads again. It must find their outputs, so such progress is not clean."""
        for one in (self, replace(self, tails={}), self._smallest()):
            if len(text := one.encode().decode()) <= METADATA_CHARACTERS_MAX:
                return text
        raise ValueError("the progress of a partition is longer than its limit")

    def _smallest(self) -> "PartitionProgress":
        """Return the smallest correct progress: with many open records, reading continues at the first unlisted one."""
        queries, still_open = self.queries._replace(ahead=()), sorted(self.queries.open)
        if len(still_open) > LISTED_OFFSETS_MAX:
            queries = LogProgress(still_open[LISTED_OFFSETS_MAX], 0, tuple(still_open[:LISTED_OFFSETS_MAX]))
        return replace(self, queries=queries, tails={}, clean=False)


def progress_of(stored: bytes) -> tuple[str, tuple[int, int, int]]:
    """Return the deployment of a stored progress; and its generation, next memory offset and first open query, which
    never decrease. Return an empty text and zeros for the encoding of another version."""
    progress = PartitionProgress.parse(stored.decode())
    if progress is None:
        return "", (0, 0, 0)
    return progress.deployment, (progress.generation, progress.memory.next_offset, progress.queries.first)


def _compact(progress: LogProgress) -> tuple[Any, ...]:
    """Return a progress with its offsets as differences, which are shorter."""
    lists = (sorted(offsets) for offsets in (progress.open, progress.ahead))
    return (progress.next_offset, progress.since_ms, *([b - a for a, b in pairwise([0, *one])] for one in lists))


def _decoded(next_offset: int, since_ms: int, still_open: list[int], ahead: list[int]) -> LogProgress:
    return LogProgress(int(next_offset), int(since_ms), tuple(accumulate(still_open)), tuple(accumulate(ahead)))


def _by_partition(offsets: Mapping[int, int]) -> list[int]:
    """Return offsets by partition number; -1 for an unknown one."""
    return [offsets.get(number, -1) for number in range(max(offsets, default=-1) + 1)]


AHEAD_MAX = 20_000  # records delivered ahead of the log order: 5 MB
WAIT_MAX_S = 2.0  # equals the default `wait_timeout_ms` of a query with positions
KEYS_MAX = 10_000  # stored keys, above which keys without undelivered records are dropped
WAIT_RECORDS_MAX = 2_000  # memory records that a query waits for: at most a reader's queue, about a second of work
Queue = Any  # a deque, or RoundRobinQueue, of confluent_kafka.Message, whose stubs make every field optional


class LoggedRecord(NamedTuple):
    offset: int
    append_ms: int
    tenant: bytes


class RoundRobinQueue:
    """Records of one partition that were read and not delivered. One thread appends, another takes."""

    def __init__(self, ahead: Iterable[int] = ()) -> None:
        """`ahead` are the offsets that were delivered ahead of the log order."""
        self.is_ready: Callable[[Any], bool] | None = None  # whether a record may be delivered; None: always
        self.ahead = set(ahead)
        self._read: deque[Any] = deque()  # records that another thread appended, and that are not in `_queues` yet
        self._log: deque[LoggedRecord] = deque()  # in log order, from the first undelivered record
        self._queues: dict[bytes, deque[Any]] = {}  # by tenant, in the order of the round robin
        self._waiting = 0  # number of records in `_queues`

    def __len__(self) -> int:
        return len(self._read) + self._waiting

    def append(self, message: Any) -> None:
        self._read.append(message)

    def popleft(self) -> Any:
        """Remove and return the next record. Raise IndexError if there is none."""
        if (tenant := self.next_tenant()) is None:
            raise IndexError("no record is ready")
        queue = self._queues.pop(tenant)
        message = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        self._waiting -= 1
        self.ahead.add(message.offset())
        return message

    def next_tenant(self) -> bytes | None:
        """Return the tenant of the next record: the first in turn whose oldest record is ready; None without one."""
        self._distribute()
        # Not the length of `ahead`: its records of an earlier run may still wait here, or be deleted from the log.
        is_full = self._log and len(self._log) - self._waiting >= AHEAD_MAX
        tenants = [self._log[0].tenant] if is_full else self._queues
        is_ready = self.is_ready
        return next((one for one in tenants if is_ready is None or is_ready(self._queues[one][0])), None)

    def passed(self) -> Iterator[LoggedRecord]:
        """Remove and yield delivered records in log order, up to the first undelivered one."""
        while self._log and self._log[0].offset in self.ahead:
            self.ahead.discard(self._log[0].offset)
            yield self._log.popleft()

    def _distribute(self) -> None:
        """Move records that were read into the queues of their tenants."""
        while self._read:
            message = self._read.popleft()
            tenant = key_tenant(message.key())
            self._log.append(LoggedRecord(message.offset(), append_ms(message), tenant))
            self._queues.setdefault(tenant, deque()).append(message)
            self._waiting += 1


@dataclass(slots=True, eq=False)
class Lane:
    """One Kafka partition. Records wait in `queue` until the dataflow asks for them."""

    topic: str
    number: int
    next_offset: int  # offset of the next record to deliver to the dataflow
    end: int  # last known end offset of the partition
    outputs_from: int = 0  # first offset whose outputs this run sends, except those of `done_before`
    since_ms: int = 0  # append time of the record before the next one
    done_before: frozenset[int] = frozenset()  # later records of which an earlier run delivered the outputs
    open: frozenset[int] = frozenset()  # earlier records whose outputs this run sends too
    stop_offset: int | None = None  # records from this offset on are not delivered
    paused: bool = False  # whether reading is paused, because many records are queued
    reached: int = -1  # the offset after the last record read
    last_of_key: dict[bytes | None, int] | None = None  # last read offset of each key; None if no queries wait
    queue: Queue = field(default_factory=deque)
    barriers: "WriteBarriers | None" = None  # barriers of queries that wait for memory records
    waiting_queries: set[int] = field(default_factory=set)  # offsets of queries that wait for records of this partition
    # Two counters, so that each has one writer: the reader thread, the dataflow thread.
    read_bytes: int = 0
    delivered_bytes: int = 0

    def __post_init__(self) -> None:
        self.reached = max(self.reached, self.next_offset)

    @property
    def source(self) -> str:
        return f"{self.topic}:{self.number}"

    def take(self) -> Any:
        message = self.queue.popleft()
        self.delivered_bytes += size_bytes(message)
        if isinstance(self.queue, RoundRobinQueue):
            for passed in self.queue.passed():
                self._pass(passed.offset, passed.append_ms)
        else:
            self._pass(message.offset(), append_ms(message))
        return message

    def was_done(self, offset: int) -> bool:
        """Return whether an earlier run delivered the outputs of a record."""
        return offset in self.done_before or (offset < self.outputs_from and offset not in self.open)

    def delivered_ahead(self) -> tuple[int, ...]:
        """Return the offsets beyond the next one of records that were delivered or done ahead of the log order."""
        ahead = (*self.done_before, *self.queue.ahead) if isinstance(self.queue, RoundRobinQueue) else ()
        return tuple(sorted({offset for offset in ahead if offset >= self.next_offset}))

    def _pass(self, offset: int, appended_ms: int) -> None:
        """Note that all records up to this offset were delivered; the last one has this append time."""
        self.next_offset, self.since_ms = offset + 1, appended_ms

    def wait_for_writes(self, memory: "Lane", clock_s: Callable[[], float]) -> None:
        """Let queries of this partition wait for earlier memory records. The queue must be a `RoundRobinQueue`."""
        self.barriers = WriteBarriers(memory, clock_s)
        self.queue.is_ready = self.barriers.is_passed

    def note_key(self, key: bytes | None, offset: int) -> None:
        """Store the offset of the last record read of a key. Only the reader thread calls this."""
        last = self.last_of_key or {}
        if len(last) > KEYS_MAX:
            last = {key: at for key, at in last.items() if at >= self.next_offset}
        last[key] = offset
        self.last_of_key = last

    def has_ready(self) -> bool:
        """Return whether a record may be delivered."""
        if not self.queue:  # the fast path: most lanes are empty at most calls
            return False
        if isinstance(self.queue, RoundRobinQueue):
            return self.queue.next_tenant() is not None
        return self.stop_offset is None or self.queue[0].offset() < self.stop_offset

    def queued_bytes(self) -> int:
        return self.read_bytes - self.delivered_bytes


@dataclass(slots=True)
class _Barrier:
    end: int  # end offset of the memory partition when the query was read
    deadline_s: float
    target: int | None = None  # offset after the key's last record; None until records up to `end` are fetched


class WriteBarriers:
    """Barriers at which queries of one partition wait for earlier memory records. The reader thread calls `add`, the
    dataflow thread the rest."""

    def __init__(self, memory: Lane, clock_s: Callable[[], float]) -> None:
        self._memory, self._clock_s = memory, clock_s
        self._barriers: dict[int, _Barrier] = {}
        memory.last_of_key = {}

    def add(self, offset: int, end: int) -> None:
        """Let the query at `offset` wait until the memory records of its key below `end` are delivered."""
        self._barriers[offset] = _Barrier(end, self._clock_s() + WAIT_MAX_S)

    def is_passed(self, query: Any) -> bool:
        """Return whether a query may be delivered now. Note in `waiting_queries` whether it waits."""
        barrier = self._barriers.get(query.offset())
        if barrier is not None and self._missing(query, barrier) > 0:
            is_near = barrier.end - self._memory.next_offset <= WAIT_RECORDS_MAX
            if is_near and self._clock_s() < barrier.deadline_s:
                self._memory.waiting_queries.add(query.offset())
                return False
        self._memory.waiting_queries.discard(query.offset())
        return True

    def take(self, query: Any) -> int:
        """Remove the barrier of a query that is delivered. Return how many memory records it did not wait for."""
        self._memory.waiting_queries.discard(query.offset())
        barrier = self._barriers.pop(query.offset(), None)
        return 0 if barrier is None else self._missing(query, barrier)

    def _missing(self, query: Any, barrier: _Barrier) -> int:
        """Return how many memory records must be delivered before the query; 0 if it need not wait."""
        memory = self._memory
        if memory.next_offset >= barrier.end:
            return 0
        if memory.reached < barrier.end:
            return barrier.end - memory.next_offset
        if barrier.target is None:
            # A query without a key may belong to any owner. A later record of the key must not extend the wait.
            last = None if query.key() is None else (memory.last_of_key or {}).get(query.key(), -1)
            barrier.target = barrier.end if last is None or last >= barrier.end else last + 1
            if not memory.queue:  # only transaction markers remain before the end
                barrier.target = 0
        return max(0, barrier.target - memory.next_offset)
