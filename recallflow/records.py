"""Records of a log with their positions and senders, and signals of a source to the dataflow."""

from typing import NamedTuple, Self

from recallflow.errors import ErrorCode
from recallflow.fields import EPOCH_MS_MAX

MOVED_HEADER = "recallflow-moved-from"
TIME_HEADER = "recallflow-time"  # in a replayed dead letter: the time of its first append, in epoch milliseconds


class Position(NamedTuple):
    """Position of a record in its log: `topic:partition:offset`, the read-your-writes token."""

    topic: str
    partition: int
    offset: int

    @property
    def source(self) -> str:
        """Return the ordered log of this position: `topic:partition`."""
        return f"{self.topic}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `topic:partition:offset`. Raise ValueError for other text."""
        topic, partition, offset = text.rsplit(":", 2)
        position = cls(topic, int(partition), int(offset))
        if not topic or position.partition < 0 or position.offset < 0:
            raise ValueError(f"not a position: {text!r}")
        return position


class Principal(NamedTuple):
    """Sender of a record, according to its credentials. `name` is readable and not secret. The sender may read and
    change `projects`; None means all. Its right to tenant, environment and end user was checked with the record."""

    name: str
    projects: tuple[str, ...] | None = None


class Refusal(NamedTuple):
    """Refusal of a record of any type: the refusing step, the error's code, and the wrong field with its problem."""

    step: str
    code: ErrorCode
    field: str
    problem: str


class Record(NamedTuple):
    """One record of a log.

    `append_ms` is the append time in epoch milliseconds. `append_logged`: the log contains this time, and a replay
    reads it again. An embedded source stamps lines without a time by its own clock; values that depend on that time are
    not part of the state hash. A `silent` record is read again to rebuild state; its outputs are not sent again. A
    `tombstone` had no value. `headers` are None if they cannot be decoded; they contain no credentials once the sender
    is checked. `principal` is the checked sender; None without authentication. `refusal` is the result of a failed
    check, which a later reading repeats. `unapplied` (of a query) is the number of memory records before the query that
    are not applied. `encoded` is the original value if `value` was decoded from another format than JSON."""

    position: Position
    value: bytes
    append_ms: int
    key: bytes | None = None
    append_logged: bool = True
    headers: tuple[tuple[str, bytes | None], ...] | None = ()
    silent: bool = False
    tombstone: bool = False
    principal: Principal | None = None
    refusal: Refusal | None = None
    unapplied: int = 0
    encoded: bytes | None = None

    @property
    def original(self) -> bytes:
        return self.value if self.encoded is None else self.encoded

    @property
    def moved_from(self) -> Position | None:
        """Return the original position of a record that was moved to its owner's partition of the same topic."""
        if not self.headers:
            return None
        try:
            position = Position.parse(self._header(MOVED_HEADER).decode())
        except ValueError:  # producers may write any header
            return None
        is_plausible = position.topic == self.position.topic and position.partition != self.position.partition
        return position if is_plausible else None

    @property
    def first_append_ms(self) -> int:
        """Return the append time; for a replayed dead letter, the time of its first append. Credentials and quotas
        ignore the first append, because producers may write any header."""
        text = self._header(TIME_HEADER) if self.headers else b""
        return min(int(text), EPOCH_MS_MAX) if text.isdigit() and len(text) < 20 else self.append_ms

    @property
    def original_position(self) -> Position:
        """Return the position at which the producer stored the record."""
        return self.moved_from or self.position

    def _header(self, header: str) -> bytes:
        return next((value or b"" for name, value in self.headers or () if name == header), b"")


class PartitionStart(NamedTuple):
    """Start of a state partition that this process owns from now on. The partition's records follow."""

    partition: int


class Barrier(NamedTuple):
    """Barrier behind the emitted records of a state partition: its step stores the progress. `number` counts the
    barriers of a partition; `progress` is encoded, None if unchanged; `last`: the partition is released here."""

    partition: int
    number: int
    progress: bytes | None = None
    last: bool = False


Signal = PartitionStart | Barrier
