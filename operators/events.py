"""Items of the dataflow up to the state."""

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
    """The analysis of a memory's text, made before the state.

    Attributes:
        vectors: (passages, dimension) float32, or (1, dimension) for a vector given with the event; None without text.
        tokens: Token vectors in bytes, if the model has them.
        named: The names in the text, for the graph.
        sketch: The sketch of the vector, for the graph.
        cut: Only the beginning of the text was read.
        sure: The language of the text is certain.
        sizes: The number of tokens per passage.
        unembedded: The code of the failure of an embedding service.
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
    """A valid memory event. Once prepared, it has the analysis of its text, if it has any."""

    record: Record
    event: MemoryEvent
    owner: Owner
    analysis: Analysis | None = None

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories its sender may change; None for all."""
        return None if self.record.principal is None else self.record.principal.projects


def event_time(write: Write) -> tuple[int, bool]:
    """Return the event time, and whether it is from the log rather than from a producer's clock."""
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
        """The id of the answer: the query's own, or else its position."""
        return self.query.id or str(self.record.known_as)

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories its sender may read; None for all."""
        return None if self.record.principal is None else self.record.principal.projects

    @property
    def asked_ms(self) -> int:
        """The time of the query: its own, or else its append time."""
        return self.record.append_ms if self.query.timestamp is None else self.query.timestamp


class QueryContext(NamedTuple):
    """The context of a query: owner, log position, id of the answer, append time (epoch ms), and the projects that its
    sender may read (None: all)."""

    owner: Owner
    position: Position
    query_id: str
    at_ms: int
    projects: tuple[str, ...] | None = None


class Refused(NamedTuple):
    """A record that cannot be applied or answered. It stays in the dataflow, so that its position advances in order.
    `query_id` is set for a query, which also gets an error response."""

    record: Record
    error: InvalidRecord
    step: str
    query_id: str | None = None


class Misrouted(NamedTuple):
    """A valid record outside of its owner's partition. It is forwarded to partition `home` of the same topic, and
    counts there."""

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
    """Return the Kafka key of an item's outputs: its record's own, or else the owner's."""
    key = item.record.key
    if key is not None or isinstance(item, Refused):
        return key or b""
    return item.owner.record_key
