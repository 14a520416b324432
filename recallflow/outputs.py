"""Outputs of the dataflow, on their way to a sink. `position` and `number` together identify an output: the record
that caused it, and its index among that record's outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from recallflow.control import GateVerdict
from recallflow.errors import InvalidRecord
from recallflow.fields import Model
from recallflow.llm import Task
from recallflow.queries import ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Response


@dataclass(slots=True, frozen=True)
class EncodedOutput:
    """An encoded output. `key` is the key of its record, which is the owner's record key."""

    position: Position
    number: int
    key: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Answer(EncodedOutput):
    """A response with its encoding. `reply_to` replaces the response topic."""

    response: Response
    reply_to: ReplyTo | None = None


@dataclass(slots=True, frozen=True)
class ReceiptOutput(EncodedOutput):
    """A receipt."""


@dataclass(slots=True, frozen=True)
class TaskRequest(EncodedOutput):
    """A request to the enrichment flow for these tasks."""

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
    """A quality gate's decision from `at_ms` on: a control event, on its way to the control topic."""

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
class ResultOutput(EncodedOutput):
    """The result of an enrichment request. `bare` replaces it where the topic refuses the result."""

    bare: bytes


@dataclass(slots=True, frozen=True)
class EventOutput(EncodedOutput):
    """An event from a result of enrichment, on its way to the memory topic."""


@dataclass(slots=True, frozen=True)
class AuditEntry(EncodedOutput):
    """An entry of the access log."""


@dataclass(slots=True, frozen=True)
class Reroute:
    """A record on its way to its owner's partition of the same topic."""

    record: Record
    key: bytes
    owning_partition: int
    number: int = 0

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(slots=True, frozen=True)
class OutputBarrier:
    """A barrier behind the outputs of a state partition, with its sequence number. `open` holds the offsets of
    received and unfinished records by source, in order; `last` precedes the partition's revocation. `is_synced` tells
    whether everything applied before it survives a power failure."""

    partition: int
    number: int
    open: dict[str, tuple[int, ...]]
    last: bool
    is_synced: Callable[[], bool]


@dataclass(slots=True, frozen=True)
class Ack:
    """Finished records of one source: applied, answered, refused or parked. It follows their outputs."""

    source: str
    offsets: tuple[int, ...]


RoutedOutput = Answer | ReceiptOutput | TaskRequest | DeadLetter | Verdict | AuditEntry | Reroute
Output = RoutedOutput | Ack
EnrichmentOutput = ResultOutput | EventOutput | ReceiptOutput | DeadLetter | Ack


class AuditRecord(Model):
    """An entry of the access log: one query that was answered or refused, one event whose sender was not authorised, or
    one `user.erase`.

    `time` is the append time. `principal` is the name of the credentials, null without valid ones. `type`, `tenant_id`,
    `user_id`, `environment` and `id` are those of the record, null where it cannot be read; a `user.erase` without an
    environment is for all. `status` is that of the response, or `error` for a refusal; `code` is the reason. `memories`
    is the number of memories in the answer. It contains no text of memories or questions, and no credentials.
    """

    type: str | None
    time: str
    principal: str | None
    tenant_id: str | None
    user_id: str | None
    environment: str | None
    id: str | None
    position: str
    status: Literal["ok", "degraded", "error"]
    code: str | None
    memories: int | None
