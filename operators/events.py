"""What flows between the steps: one stream of items up to the state."""

from typing import NamedTuple

from recallflow.embedder import Matrix
from recallflow.errors import InvalidRecord
from recallflow.events import MemoryEvent
from recallflow.operators.graph.names import TextNames
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position, Record
from recallflow.state.arrays import Bytes
from recallflow.state.tokens import NO_TOKENS


class Analysis(NamedTuple):
    """What was read from a memory's text, before the state and away from it.

    `vectors`: (passages, dimension) float32, or (1, dimension) of the whole where it came with the event; None where
    there is no text. `tokens`: vectors of its tokens in bytes, where the model gives them; `sizes`: how many each row
    of several has. `named`: what it names, and the sketch of its vector, for the graph. `cut`:
    only the beginning of the text was read. `sure`: the text tells its language. `unembedded`: why a service that was
    waited for gave no vector.
    """

    stems: str
    flags: int
    vectors: Matrix | None
    tokens: Bytes = NO_TOKENS
    named: TextNames = TextNames()
    sketch: bytes = b""
    cut: bool = False
    sure: bool = False
    sizes: tuple[int, ...] = ()
    unembedded: str | None = None


class Write(NamedTuple):
    """A valid memory event. Once prepared, it has the analysis of the text it brings, if it brings one."""

    record: Record
    event: MemoryEvent
    owner: Owner
    analysis: Analysis | None = None

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories its sender may change; None for all."""
        return None if self.record.principal is None else self.record.principal.projects


def event_time(write: Write) -> tuple[int, bool]:
    """The event time, and whether it comes from the log rather than from a clock at the edge."""
    if write.event.timestamp is not None:
        return write.event.timestamp, True
    return write.record.append_ms, write.record.append_logged


class Ask(NamedTuple):
    """A valid query event."""

    record: Record
    query: QueryEvent
    owner: Owner

    @property
    def query_id(self) -> str:
        """The id that the answer names: the query's own, or else its position."""
        return self.query.id or str(self.record.known_as)

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories its sender may read; None for all."""
        return None if self.record.principal is None else self.record.principal.projects

    @property
    def asked_ms(self) -> int:
        """The time that the query is asked at: its own, or when the log took it in."""
        return self.record.append_ms if self.query.timestamp is None else self.query.timestamp


class Request(NamedTuple):
    """A query on its way to its answer: whose memory it asks, its position in the log, the id of its answer, when it
    was appended to the log (epoch ms), and the projects that its sender may read (None: all)."""

    owner: Owner
    position: Position
    query_id: str
    at_ms: int
    projects: tuple[str, ...] | None = None


class Refused(NamedTuple):
    """A record that cannot be applied or answered. It travels on, so that its position moves in its place in line.

    `query_id` is set where the record was a query: it gets an error response as well.
    """

    record: Record
    error: InvalidRecord
    step: str
    query_id: str | None = None


class Misrouted(NamedTuple):
    """A valid record in another partition than its owner's: it is sent on to `home`, its owner's partition of the same
    topic, and counts there."""

    record: Record
    owner: Owner
    home: int


Decoded = Write | Ask | Refused
Item = Decoded | Misrouted


class Batch(NamedTuple):
    """Items of one state partition, in order."""

    partition: int
    items: list[Item]


def key_of(item: Decoded) -> bytes:
    """The Kafka key of what comes out for an item: its record's own; where that has none, the owner's."""
    key = item.record.key
    if key is not None or isinstance(item, Refused):
        return key or b""
    return item.owner.record_key
