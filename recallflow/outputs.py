"""What leaves the dataflow, on its way to a sink. `position` and `number` together are an output's identity: the record
it comes from, and which of that record's outputs it is."""

from collections.abc import Callable
from dataclasses import dataclass

from recallflow.control import GateVerdict
from recallflow.errors import InvalidRecord
from recallflow.llm import Task
from recallflow.queries import ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Response


@dataclass(slots=True, frozen=True)
class Answer:
    """A response, and how it is written. `key` is the owner's record key; `reply_to` another place than the response
    topic."""

    position: Position
    number: int
    key: bytes
    body: bytes
    response: Response
    reply_to: ReplyTo | None = None


@dataclass(slots=True, frozen=True)
class Receipted:
    """A receipt, encoded."""

    position: Position
    number: int
    key: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Requested:
    """A request to the enrichment flow, encoded. `key`: the owner's record key; `tasks`: what it asks for."""

    position: Position
    number: int
    key: bytes
    body: bytes
    tasks: tuple[Task, ...]


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A refused record with the reason and the step that refused it; the record keeps the original bytes."""

    record: Record
    number: int
    error: InvalidRecord
    step: str

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(slots=True, frozen=True)
class Verdict:
    """A quality gate's decision from `at_ms` on: a control event, on its way to where those come from."""

    position: Position
    number: int
    at_ms: int
    event: GateVerdict

    @property
    def key(self) -> bytes:
        return self.event.record_key

    @property
    def body(self) -> bytes:
        return self.event.model_dump_json(exclude_none=True).encode()


@dataclass(slots=True, frozen=True)
class Enriched:
    """What came of a request for enrichment, whose position it has, encoded. `bare`: what stands in for a result that
    its topic does not take."""

    position: Position
    number: int
    key: bytes
    body: bytes
    bare: bytes


@dataclass(slots=True, frozen=True)
class Derived:
    """An event out of a result of enrichment, encoded: on its way to the memory topic."""

    position: Position
    number: int
    key: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Audited:
    """Who asked for whose memory, and what came of it, encoded: for the access record. `key`: the owner's record
    key."""

    position: Position
    number: int
    key: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Moved:
    """A record on its way to its owner's partition of the topic that it lies in."""

    record: Record
    key: bytes
    home: int
    number: int = 0

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(slots=True, frozen=True)
class Marked:
    """A barrier behind the outputs of a state partition up to its mark of this number. `open`: by source, the offsets
    of records that were received and are not through, in order; `last`: the partition is closed. `is_synced` tells
    whether all that was applied before it survives a power cut."""

    partition: int
    number: int
    open: dict[str, tuple[int, ...]]
    last: bool
    is_synced: Callable[[], bool]


@dataclass(slots=True, frozen=True)
class Done:
    """Records of one source that are through, in whatever way: applied, answered, refused or waiting. Comes after their
    outputs."""

    source: str
    offsets: tuple[int, ...]


Routed = Answer | Receipted | Requested | DeadLetter | Verdict | Audited | Moved
Output = Routed | Done
EnrichmentOutput = Enriched | Derived | Receipted | DeadLetter | Done
