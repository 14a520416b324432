"""Records of a log with their positions and senders, and signals of the source."""

from typing import NamedTuple, Self

from recallflow.errors import ErrorCode
from recallflow.fields import EPOCH_MS_MAX


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


MOVED_HEADER = "recallflow-moved-from"
TIME_HEADER = "recallflow-time"  # of a replayed dead letter: the time of its first append, in epoch ms


class Principal(NamedTuple):
    """Sender of a record, according to its credentials. `name` is readable and not secret; `projects` are those it
    may read and change, None for all. Tenant, environment and end user were checked with the record."""

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

    `append_ms` is the append time in epoch milliseconds. On Kafka it is a fact of the log (`append_logged`); an
    embedded source stamps lines without a time by its own clock, and values that depend on it are not part of the state
    hash. A `silent` record is read again to rebuild state, without sending its outputs again. A `tombstone` had no
    value. `headers` are None where they cannot be read, and contain no credentials once the sender is checked.
    `principal` is the checked sender; None without authentication. `refusal` is the result of a failed check, also on a
    later reading. `unread` of a query is the number of earlier memory records that are not applied. `wire` is the value
    in the log where `value` was decoded from another format than JSON.
    """

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
    unread: int = 0
    wire: bytes | None = None

    @property
    def original(self) -> bytes:
        return self.value if self.wire is None else self.wire

    @property
    def moved_from(self) -> Position | None:
        """Return the original position of a record that was moved to its owner's partition of the same topic."""
        if not self.headers:
            return None
        try:
            position = Position.parse(self._header(MOVED_HEADER).decode())
        except ValueError:  # anybody may write any header
            return None
        elsewhere = position.topic == self.position.topic and position.partition != self.position.partition
        return position if elsewhere else None

    @property
    def first_ms(self) -> int:
        """Return the append time; of a replayed dead letter, that of its first append. Credentials and quotas are not
        judged by it, because producers may write any header."""
        text = self._header(TIME_HEADER) if self.headers else b""
        return min(int(text), EPOCH_MS_MAX) if text.isdigit() and len(text) < 20 else self.append_ms

    def _header(self, wanted: str) -> bytes:
        return next((value or b"" for name, value in self.headers or () if name == wanted), b"")

    @property
    def original_position(self) -> Position:
        """Return the position that its producer knows."""
        return self.moved_from or self.position


class PartitionStart(NamedTuple):
    """A state partition is owned by this process from here on; its records follow."""

    partition: int


class Barrier(NamedTuple):
    """A barrier: all emitted records of a state partition are before it, and its progress is to be kept. `number`
    counts the barriers of a partition; `progress` is the encoded known progress, None if unchanged; `last` means that
    the partition is released here."""

    partition: int
    number: int
    progress: bytes | None = None
    last: bool = False


Signal = PartitionStart | Barrier
