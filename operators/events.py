"""Items of the dataflow before the state step: records decoded into events or refusals, and batches by partition."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from recallflow.embedder import Matrix
from recallflow.errors import InvalidRecord
from recallflow.events import MemoryEvent
from recallflow.operators.graph.names import TextNames
from recallflow.operators.guard import retry_once
from recallflow.owner import Owner, partition_of, state_partition
from recallflow.parsing import QUERY_TYPES, parse, raw_event
from recallflow.queries import ID_NAMES, QueryEvent
from recallflow.records import Position, Record, Refusal
from recallflow.state.arrays import Bytes
from recallflow.state.tokens import NO_TOKENS

_DECODE = "decode"  # the step in reports of internal errors


class Analysis(NamedTuple):
    """The analysis of a memory's text, computed before the state step."""

    stems: str
    flags: int
    # (passages, dimension) float32, or (1, dimension) for a vector in the event; None without text.
    vectors: Matrix | None
    tokens: Bytes = NO_TOKENS  # token vectors in bytes, if the model has them
    names: TextNames = TextNames()  # the names in the text, for the graph
    sketch: bytes = b""  # the sketch of the vector, for the graph
    is_truncated: bool = False  # only the beginning of the text was read
    is_language_certain: bool = False
    sizes: tuple[int, ...] = ()  # the number of tokens per passage
    embedding_failure: str | None = None  # the error code of the embedding service


class Write(NamedTuple):
    """A valid memory event. `prepare` adds the analysis of its text; None for an event without text."""

    record: Record
    event: MemoryEvent
    owner: Owner
    analysis: Analysis | None = None

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories the sender may change; None for all."""
        return None if self.record.principal is None else self.record.principal.projects


def event_time(write: Write) -> tuple[int, bool]:
    """Return the event time (epoch ms), and whether a replay of the log gives the same time."""
    if write.event.timestamp is not None:
        return write.event.timestamp, True
    return write.record.first_append_ms, write.record.append_logged


class Ask(NamedTuple):
    """A valid query event."""

    record: Record
    query: QueryEvent
    owner: Owner

    @property
    def query_id(self) -> str:
        """The id of the answer: the query's own, or else its position."""
        return self.query.id or str(self.record.original_position)

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects whose memories the sender may read; None for all."""
        return None if self.record.principal is None else self.record.principal.projects

    @property
    def asked_ms(self) -> int:
        """The time of the query: its own, or else its append time."""
        return self.record.first_append_ms if self.query.timestamp is None else self.query.timestamp


class Refused(NamedTuple):
    """A record that cannot be applied or answered. It stays in the dataflow, so that the applied position of its log
    advances in order. `query_id` is the id of a refused query, which also gets an error response; None for events."""

    record: Record
    error: InvalidRecord
    step: str
    query_id: str | None = None


class Misrouted(NamedTuple):
    """A valid record outside of its owner's partition. It is forwarded to that partition, and applied there."""

    record: Record
    owner: Owner
    owning_partition: int


Decoded = Write | Ask | Refused
Item = Decoded | Misrouted


class Batch(NamedTuple):
    """Items of one state partition, in order."""

    partition: int
    items: list[Item]


def key_of(item: Decoded) -> bytes:
    """Return the Kafka key of an item's outputs: the key of its record, or else the owner's."""
    key = item.record.key
    if key is not None or isinstance(item, Refused):
        return key or b""
    return item.owner.record_key


def decode(record: Record, skips: Container[Position] = ()) -> Decoded:
    """Return a record's event or query; `Refused` if it is invalid, causes internal errors, or is among `skips`."""
    if skips and record.position in skips:
        skipped = InvalidRecord.of("skipped", "skipped without decoding, as requested by run --skip")
        return Refused(record, skipped, _DECODE)
    if record.refusal is not None:
        return refused(record, record.refusal)
    try:
        return retry_once(_DECODE, record.position, _event_of, record)
    except InvalidRecord as error:
        return Refused(record, error, _DECODE, _query_id(record))


def refused(record: Record, refusal: Refusal) -> Refused:
    """Return a record as refused. The refusal is attached to the record, which may be stored and read again."""
    error = InvalidRecord.of(refusal.code, refusal.problem, refusal.field)
    return Refused(record._replace(refusal=refusal), error, refusal.step, _query_id(record))


def _event_of(record: Record) -> Write | Ask:
    event = parse(record.value)
    if event.type in QUERY_TYPES:  # type: ignore[attr-defined]
        return Ask(record, event, event.owner)  # type: ignore[arg-type]
    return Write(record, event, event.owner)  # type: ignore[arg-type]


def _query_id(record: Record) -> str | None:
    """Return the id of a refused query; None for records that are not recognisable as a query."""
    raw = raw_event(record.value, QUERY_TYPES)
    if raw is None:
        return None
    query_id = next((raw[name] for name in ID_NAMES if name in raw), None)
    return query_id[:128] if isinstance(query_id, str) and query_id else str(record.position)


def by_partition(items: Iterable[Item], partition_of: Callable[[Item], int]) -> list[tuple[str, Batch]]:
    """Group items into one batch per state partition, under its key."""
    batches: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        batches[partition_of(item)].append(item)
    return [(key_of_partition(number), Batch(number, found)) for number, found in batches.items()]


def key_of_partition(number: int) -> str:
    """Return the key of a state partition. It is zero-padded, so that keys sort as numbers."""
    return f"{number:03d}"


def partition_by_owner(item: Item, partitions: int) -> int:
    """Return the state partition of a record's owner; of a refused record's key, because its owner is unknown."""
    if isinstance(item, Refused):
        return partition_of(item.record.key or b"", partitions)
    return state_partition(item.owner.tenant_id, item.owner.user_id, partitions)
