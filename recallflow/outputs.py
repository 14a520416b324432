"""Outputs of the dataflow for a sink, identified by the `position` of their record and a `number` within the record."""

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
    """An encoded output. `key` is the owner's record key, with which the output is sent."""

    position: Position
    number: int
    key: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Answer(EncodedOutput):
    """A response, also in encoded form. `reply_to` replaces the response topic."""

    response: Response
    reply_to: ReplyTo | None = None


@dataclass(slots=True, frozen=True)
class ReceiptOutput(EncodedOutput):
    """Receipt of a memory event."""


@dataclass(slots=True, frozen=True)
class TaskRequest(EncodedOutput):
    """A request to the enrichment flow for these tasks."""

    tasks: tuple[Task, ...]


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A refused record, with the reason and the name of the step that refused it."""

    record: Record
    number: int
    error: InvalidRecord
    step: str

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(slots=True, frozen=True)
class Verdict:
    """Decision of a quality gate, valid from `at_ms` on: a control event for the control topic."""

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
    """Result of an enrichment request. `bare` is sent if the topic refuses the whole result for its size."""

    bare: bytes


@dataclass(slots=True, frozen=True)
class EventOutput(EncodedOutput):
    """Event from an enrichment result, for the memory topic."""


@dataclass(slots=True, frozen=True)
class AuditEntry(EncodedOutput):
    """Encoded entry of the access log."""


@dataclass(slots=True, frozen=True)
class Reroute:
    """A record to send to its owner's partition of the same topic."""

    record: Record
    key: bytes
    owning_partition: int
    number: int = 0

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(slots=True, frozen=True)
class OutputBarrier:
    """A barrier behind the outputs of a state partition, with its sequence number. `pending`: by source, the offsets
    of received records that still lack outputs, in order. `last`: the partition is revoked afterwards. `is_synced`
    returns whether all changes before the barrier survive a power failure."""

    partition: int
    number: int
    pending: dict[str, tuple[int, ...]]
    last: bool
    is_synced: Callable[[], bool]


@dataclass(slots=True, frozen=True)
class Ack:
    """Acknowledgement of one source's records, behind their outputs: they are applied, answered, refused or parked."""

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
    is the number of memories in the answer. It contains no text of memories or questions, and no credentials."""

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
