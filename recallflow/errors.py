"""Every error recallflow raises, as one tree.

    RecallflowError
    ├── InvalidRecord        one record is wrong, or we fail at it: it becomes a dead letter, the flow goes on
    │   └── OverQuota            a limit that the tenant's operator set is reached
    ├── UsageError           a command or a setting is wrong: correct the call (exit code 2)
    │   └── MasterKeyError       the master key is missing, another one, or cannot be asked: give the right one
    ├── SourceError          a log cannot be read on: removed records, missing topic or right, changed file
    │   ├── DeploymentLost       another process joined under our instance id: let one of them run
    │   └── MembershipLost       our partitions may be another's by now: the flow begins anew, with others
    ├── SinkError            an output could not be delivered: the flow stops before it would be lost
    ├── EmbedderError        a model cannot be loaded or used: check its name and path
    ├── RerankerError        a reranker cannot be loaded or used: answers go without it
    ├── ModelError           a model behind an API gave no answer that can be used: its step is left out
    ├── DecryptionFailed     a stored value cannot be opened: an answer shows it redacted
    ├── StateError           the state directory cannot be used
    │   ├── StateFormatError     written by another version: use that version, or a new directory
    │   ├── SettingsMismatch     created with other settings: use those, or a new one
    │   ├── StateInUse           another process holds it: stop that process
    │   ├── OutputsGone          outputs would be sent again: restore a newer checkpoint, or accept it
    │   ├── PartitionMissing     the folder of a state partition is lost: restore a checkpoint
    │   └── StorageError         disk full or corrupt: nothing was acknowledged that is not stored
    │       └── DiskFull             nothing is wrong but that there is no room: free some
    ├── DeliveryFailed       the client: Kafka did not acknowledge a record in time: it may still be stored
    ├── QueryFailed          the client: the engine answered with an error
    │   └── CatchingUp           it found nothing, and has not read all memories yet: ask again
    └── QueryTimeout         the client: no response in time (a TimeoutError too)

A message says what is wrong and what to do. `InvalidRecord` alone never stops a flow; a `StateError` always does.
"""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from recallflow.limits import PROBLEM_CHARACTERS, PROBLEMS_MAX

if TYPE_CHECKING:
    from recallflow.responses import ErrorBody  # which is made from our errors

ErrorCode = Literal[
    "invalid_json",  # the record is not JSON, not UTF-8, or nested too deeply
    "invalid_event",  # one or more fields are wrong
    "unknown_type",  # `type` is missing or unknown
    "too_large",  # the record, or the response, exceeds the maximum size
    "wrong_dimension",  # the embedding does not have the size of the configured model's vectors
    "id_conflict",  # the id was used before for other content
    "not_found",  # the memory does not exist or was forgotten
    "catching_up",  # nothing was found, and the engine has not applied all memory events yet
    "unauthenticated",  # no credentials that were valid at the record's append time
    "forbidden",  # the credentials are valid, but not for this record
    "over_quota",  # a quota of the tenant or the user is reached
    "unreadable",  # the user's data cannot be decrypted, because its key is lost
    "skipped",  # an operator skipped the record
    "internal_error",  # a defect of recallflow: the record failed twice
]


class FieldProblem(NamedTuple):
    """One wrong field. `field` is a dotted path (`entities.0.name`), or empty for the record as a whole."""

    field: str
    problem: str


def _short(text: str) -> str:
    """What a sender wrote may be in it, and be long."""
    return text if len(text) <= PROBLEM_CHARACTERS else text[: PROBLEM_CHARACTERS - 1] + "…"


class RecallflowError(Exception):
    """Base of all errors raised by recallflow."""


class InvalidRecord(RecallflowError):
    """A record that cannot be applied or answered. Carries every wrong field at once; of very many, the first."""

    def __init__(self, code: ErrorCode, fields: Sequence[FieldProblem], hidden: int = 0) -> None:
        """`hidden`: how many wrong fields there are besides."""
        self.code: ErrorCode = code
        if len(fields) + hidden > PROBLEMS_MAX + 1:
            count = len(fields[PROBLEMS_MAX:]) + hidden
            fields = [*fields[:PROBLEMS_MAX], FieldProblem("", f"and {count} more")]
        self.fields = tuple(FieldProblem(_short(field), _short(problem)) for field, problem in fields)
        super().__init__(code, self.fields)

    def __str__(self) -> str:
        return "; ".join(f"{f.field}: {f.problem}" if f.field else f.problem for f in self.fields)


class OverQuota(InvalidRecord):
    """A limit that the tenant's operator set is reached; `quota` is its name."""

    def __init__(self, quota: str, problem: str, field: str = "") -> None:
        super().__init__("over_quota", [FieldProblem(field, problem)])
        self.quota = quota


class UsageError(RecallflowError):
    """A command line or settings mistake."""


class LogChanged(UsageError):
    """A log that is replayed again does not begin with the events that an earlier replay took."""


class MasterKeyError(UsageError):
    """A state directory's master key is not given, is not the one it was made with, or cannot be asked."""


class SourceError(RecallflowError):
    """A log cannot be read on from where we are."""


class DeploymentLost(SourceError):
    """Another engine reads on from where we are."""


class MembershipLost(SourceError):
    """Another member of the deployment may own by now what we owned. Nothing more may be sent of it; whoever joins anew
    goes on."""


class SinkError(RecallflowError):
    """An output was not delivered. Stopping keeps it: the next start delivers it again."""


class EmbedderError(RecallflowError):
    """An embedding model cannot be loaded or gave something else than vectors of its dimension."""


class RerankerError(RecallflowError):
    """A reranker cannot be loaded, or did not give a number for each text."""


ModelFailure = Literal[
    "timeout",  # no complete response in time
    "rate_limited",  # the service responded with 429
    "unavailable",  # no connection, or the service responded with 408, 409 or 5xx
    "rejected",  # the service refused the key, the model or the request
    "refused",  # the model declined to answer
    "malformed",  # the response is not JSON, has another schema, or is cut off
    "over_budget",  # the tenant has spent its tokens of the day
    "left_alone",  # the service failed five times in a row and is not called for 10 s
    "busy",  # too many calls are open
]


class ModelError(RecallflowError):
    """A model behind an API gave no answer that can be used; `code` says why. `spent`: calls, prompt and completion
    tokens that it cost all the same."""

    spent: tuple[int, int, int] = (0, 0, 0)

    def __init__(self, code: ModelFailure, problem: str) -> None:
        super().__init__(code, problem)
        self.code = code
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.code}: {self.problem}"


class DecryptionFailed(RecallflowError):
    """A stored value cannot be opened: its key is gone, or it is not what was sealed under its place."""


class StateError(RecallflowError):
    """The state directory cannot be used as it is."""


class StateFormatError(StateError):
    """The state directory was written in another format version."""


class SettingsMismatch(StateError):
    """The state directory was created with settings that shape what is stored, and they differ from the ones given."""


class StateInUse(StateError):
    """Another process, or another `Memory` of this one, has the state directory open. `holder`: which directory, and
    what has it."""

    def __init__(self, holder: str, remedy: str = "stop that process, or give another --state-dir") -> None:
        super().__init__(f"{holder}: {remedy}")
        self.holder = holder


class OutputsGone(StateError):
    """What was sent since the last snapshot is gone from its topic: it would be sent again."""


class PartitionMissing(StateError):
    """The folder of a state partition is lost."""


class StorageError(StateError):
    """RocksDB could not read or write: disk full, permission, corruption."""


class DiskFull(StorageError):
    """There is no room for what opening or writing needs. Nothing is damaged."""


class CheckpointError(RecallflowError):
    """Checkpoints in an object store cannot be read or written."""


class CheckpointBroken(CheckpointError):
    """A checkpoint in an object store is not what was saved: something is missing, or another."""


class DeliveryFailed(RecallflowError):
    """Kafka did not acknowledge a record. It may be stored all the same; sent again with the same `id` it is applied
    once."""


class QueryFailed(RecallflowError):
    """The engine answered with an error: `error` says why, every wrong field at once."""

    def __init__(self, query_id: str, error: "ErrorBody") -> None:
        self.query_id = query_id
        self.error = error
        super().__init__(query_id, error)

    def __str__(self) -> str:
        return f"query {self.query_id}: {self.error.code}: {self.error.message}"


class CatchingUp(QueryFailed):
    """The engine found nothing, and has not read all memories yet, after a start or an outage: ask again in a
    moment."""


class QueryTimeout(RecallflowError, TimeoutError):
    """No response came in time. A late one is dropped. `advice`: what may be done."""

    def __init__(
        self,
        query_id: str,
        timeout_s: float,
        trouble: str | None,
        advice: str = "is the engine running (recallflow run)?",
    ) -> None:
        self.query_id = query_id
        self.timeout_s = timeout_s
        self.trouble = trouble
        self.advice = advice
        super().__init__(query_id, timeout_s, trouble, advice)

    def __str__(self) -> str:
        complaint = f" Kafka's last complaint: {self.trouble}" if self.trouble else ""
        return f"no response to query {self.query_id} within {self.timeout_s:g} s; {self.advice}{complaint}"


class NothingWritten(RecallflowError):
    """A write that has to look first could not: it was not sent, and may simply be done again. `cause`: why."""

    def __init__(self, cause: RecallflowError) -> None:
        self.cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        return f"nothing was written, do it again: what is there could not be asked for: {self.cause}"


def trace_of(error: BaseException) -> str:
    """The places and types of an error and what led to it. Not their messages: those may quote a memory."""
    led: list[BaseException] = []  # one that is raised again, out of what was wrapped around it, leads to itself
    before: BaseException | None = error
    while before is not None and before not in led:
        led.append(before)
        before = before.__cause__ or (None if before.__suppress_context__ else before.__context__)
    traces = ("".join([*traceback.format_tb(one.__traceback__), type(one).__qualname__]) for one in reversed(led))
    return "\nled to\n".join(traces)
