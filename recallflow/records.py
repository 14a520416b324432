"""A record as it comes from a log, before anything about its content is known."""

from typing import NamedTuple, Self

from recallflow.errors import ErrorCode


class Position(NamedTuple):
    """Where a record stands in its log: `topic:partition:offset`, the read-your-writes token."""

    topic: str
    partition: int
    offset: int

    @property
    def source(self) -> str:
        """The ordered log this position is in: `topic:partition`."""
        return f"{self.topic}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `topic:partition:offset`; raises ValueError for anything else."""
        topic, partition, offset = text.rsplit(":", 2)
        position = cls(topic, int(partition), int(offset))
        if not topic or position.partition < 0 or position.offset < 0:
            raise ValueError(f"not a position: {text!r}")
        return position


MOVED_HEADER = "recallflow-moved-from"


class Principal(NamedTuple):
    """Who sent a record, as its credentials said. `name`: as an operator knows it, no secret; `projects`: those it may
    read and change, None for all. Tenant, environment and end user were judged with the record."""

    name: str
    projects: tuple[str, ...] | None = None


class Refusal(NamedTuple):
    """Why a record does not count, whatever event it holds: in which step it was refused, the error's code, and what is
    wrong with which field."""

    step: str
    code: ErrorCode
    field: str
    problem: str


class Record(NamedTuple):
    """One record of a log.

    `append_ms` is when the record was appended to its log, in epoch milliseconds. It is a fact of the log
    (`append_logged`) on Kafka; an embedded source stamps lines that carry no time with its own clock, and
    whatever rests on such a stamp stays out of the state hash. A `silent` record is read again to rebuild state: its
    outputs were sent long ago, and are not sent again. A `tombstone` had no value at all. `headers` are None where they
    cannot be read. `principal`: who sent it, once that was judged; None where nobody asks. From then on no credentials
    are among the headers. `refusal`: where the verdict was that it does not count; that holds also where it is read
    again from what was kept. `unread`: of a query, how many memory records were appended before it and are not applied.
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

    @property
    def moved_from(self) -> Position | None:
        """Where its producer put a record that was sent on to its owner's partition of the same topic."""
        if not self.headers:
            return None
        said = next((value for name, value in self.headers if name == MOVED_HEADER), None)
        try:
            position = Position.parse((said or b"").decode())
        except ValueError:  # anybody may write any header
            return None
        elsewhere = position.topic == self.position.topic and position.partition != self.position.partition
        return position if elsewhere else None

    @property
    def known_as(self) -> Position:
        """The position that its producer knows."""
        return self.moved_from or self.position
