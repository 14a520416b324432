"""Every error recallflow raises, as one tree.

    RecallflowError
    ├── InvalidRecord        one record is invalid, or processing it fails: it becomes a dead letter, the flow continues
    │   └── OverQuota            a limit that the tenant's operator set is reached
    ├── UsageError           a command or a setting is wrong: correct the call (exit code 2)
    │   ├── LogChanged           a replayed log begins with other events than in an earlier replay
    │   └── MasterKeyError       the master key is missing, wrong, or its service fails: provide the right one
    ├── SourceError          a log cannot be read further: removed records, missing topic, no access, changed file
    │   ├── DeploymentLost       another process joined under our instance id: let one of them run
    │   ├── MembershipLost       another process may own our partitions: the flow restarts with a new assignment
    │   └── RegistryUnavailable  the schema registry does not answer: reading waits for it
    ├── SinkError            an output could not be delivered: the flow stops, and the next start delivers the output
    ├── EmbedderError        a model cannot be loaded or used: check its name and path
    ├── RerankerError        a reranker cannot be loaded or used: answers keep the first ranking
    ├── ModelError           a model behind an API gave no usable answer: the step that called it is skipped
    ├── DecryptionFailed     a stored value cannot be decrypted: an answer shows it redacted
    ├── StateError           the state directory cannot be used
    │   ├── StateFormatError     written by another version: use that version, or a new directory
    │   ├── SettingsMismatch     created with other settings: use the same settings, or a new directory
    │   ├── StateInUse           another process has it open: stop that process
    │   ├── OutputsGone          outputs would be sent again: restore a newer checkpoint, or accept it
    │   ├── PartitionMissing     the folder of a state partition is lost: restore a checkpoint
    │   └── StorageError         disk full or corrupt: all acknowledged data is stored
    │       └── DiskFull             no space left on the disk: free some
    ├── CheckpointError      checkpoints in an object store cannot be read or written
    │   └── CheckpointBroken     an object of a checkpoint is missing or differs
    ├── DeliveryFailed       (client) Kafka did not acknowledge a record in time: the record may still be stored
    ├── QueryFailed          (client, in recallflow.responses) the engine answered with an error
    │   └── CatchingUp           the engine found nothing, and has not read all memories yet: ask again
    ├── NothingWritten       (adapters) a write was not sent, because the query before it failed: repeat the write
    └── QueryTimeout         (client) no response in time (also a TimeoutError)

A message states the problem and the remedy. An `InvalidRecord` never stops a flow; a `StateError` always does."""

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from recallflow.limits import PROBLEM_CHARACTERS, PROBLEMS_MAX

ErrorCode = Literal[
    "invalid_json",  # the record is not JSON, not UTF-8, or nested too deeply
    "unknown_schema",  # the schema registry has no schema of the record's id
    "undecodable",  # the record does not match its registered schema
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
CHECK_ENGINE = "is the engine running (recallflow run)?"
TRACE_EVERY_S = 60.0
LOCATIONS_MAX = 1_000  # code locations whose last traceback is remembered
_ID_DIGITS = 12


class FieldProblem(NamedTuple):
    """One wrong field. `field` is a dotted path (`entities.0.name`), or empty for the record as a whole."""

    field: str
    problem: str


def _shortened(text: str) -> str:
    return text if len(text) <= PROBLEM_CHARACTERS else text[: PROBLEM_CHARACTERS - 1] + "…"


class RecallflowError(Exception):
    """Base of all errors raised by recallflow."""


class InvalidRecord(RecallflowError):
    """A record that cannot be applied or answered. It contains every wrong field, up to a limit."""

    def __init__(self, code: ErrorCode, fields: Sequence[FieldProblem], unlisted: int = 0) -> None:
        """`unlisted` is the number of wrong fields that are not in `fields`."""
        self.code: ErrorCode = code
        if len(fields) + unlisted > PROBLEMS_MAX + 1:
            count = len(fields[PROBLEMS_MAX:]) + unlisted
            fields = [*fields[:PROBLEMS_MAX], FieldProblem("", f"and {count} more")]
        self.fields = tuple(FieldProblem(_shortened(field), _shortened(problem)) for field, problem in fields)
        super().__init__(code, self.fields)

    @staticmethod
    def of(code: ErrorCode, problem: str, field: str = "") -> "InvalidRecord":
        """Return the error for one field, or for the record as a whole."""
        return InvalidRecord(code, [FieldProblem(field, problem)])

    def __str__(self) -> str:
        return "; ".join(f"{f.field}: {f.problem}" if f.field else f.problem for f in self.fields)


class OverQuota(InvalidRecord):
    """A limit of the tenant is reached; `quota` is its name."""

    def __init__(self, quota: str, problem: str, field: str = "") -> None:
        super().__init__("over_quota", [FieldProblem(field, problem)])
        self.quota = quota


class UsageError(RecallflowError):
    """A command line or settings mistake."""


class LogChanged(UsageError):
    """A replayed log does not begin with the events of an earlier replay."""


class MasterKeyError(UsageError):
    """A state directory's master key is missing, differs, or is unavailable."""


class SourceError(RecallflowError):
    """A log cannot be read further."""


class DeploymentLost(SourceError):
    """Another process joined under our instance id, and took over our partitions."""


class MembershipLost(SourceError):
    """Another member may own our partitions and continue: nothing more may be sent for them."""


class RegistryUnavailable(SourceError):
    """The schema registry does not answer. A later attempt may succeed."""


class SinkError(RecallflowError):
    """An output was not delivered. Stopping keeps it: the next start delivers it again."""


class EmbedderError(RecallflowError):
    """An embedding model cannot be loaded, or returned vectors of another dimension."""


class RerankerError(RecallflowError):
    """A reranker cannot be loaded, or did not return a number for each text."""


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
    """A model behind an API gave no usable answer. `spent` are the calls, prompt tokens and completion tokens."""

    spent: tuple[int, int, int] = (0, 0, 0)

    def __init__(self, code: ModelFailure, problem: str) -> None:
        super().__init__(code, problem)
        self.code, self.problem = code, problem

    def __str__(self) -> str:
        return f"{self.code}: {self.problem}"


class DecryptionFailed(RecallflowError):
    """A stored value cannot be decrypted: its key is lost, or the value was changed or moved in the database."""


class StateError(RecallflowError):
    """The state directory cannot be used as it is."""


class StateFormatError(StateError):
    """The state directory was written in another format version."""


class SettingsMismatch(StateError):
    """The state directory was created with other settings that affect stored data."""


class StateInUse(StateError):
    """Another process, or another `Memory` of this one, uses the directory. `holder` names directory and process."""

    def __init__(self, holder: str, remedy: str = "stop that process, or give another --state-dir") -> None:
        super().__init__(f"{holder}: {remedy}")
        self.holder = holder


class OutputsGone(StateError):
    """Outputs since the last snapshot are gone from their topic: they would be sent again."""


class PartitionMissing(StateError):
    """The folder of a state partition is lost."""


class StorageError(StateError):
    """RocksDB could not read or write: disk full, permission, corruption."""


class DiskFull(StorageError):
    """The disk is full. Nothing is damaged."""


class CheckpointError(RecallflowError):
    """Checkpoints in an object store cannot be read or written."""


class CheckpointBroken(CheckpointError):
    """A checkpoint in an object store is damaged: an object is missing or differs."""


class DeliveryFailed(RecallflowError):
    """Kafka did not acknowledge a record, which may be stored. Sent again with the same `id` it is applied once."""


class QueryTimeout(RecallflowError, TimeoutError):
    """No response came in time; a late response is dropped. `advice` is the remedy."""

    def __init__(self, query_id: str, timeout_s: float, kafka_error: str | None, advice: str = CHECK_ENGINE) -> None:
        self.query_id, self.timeout_s, self.kafka_error, self.advice = query_id, timeout_s, kafka_error, advice
        super().__init__(query_id, timeout_s, kafka_error, advice)

    def __str__(self) -> str:
        cause = f"; last error of Kafka: {self.kafka_error}" if self.kafka_error else ""
        return f"no response to query {self.query_id} within {self.timeout_s:g} s; {self.advice}{cause}"


class NothingWritten(RecallflowError):
    """A write was not sent, because its preceding query failed with `cause`: repeat it."""

    def __init__(self, cause: RecallflowError) -> None:
        self.cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        return f"nothing was written, because the query before the write failed; repeat the command: {self.cause}"


def trace_of(error: BaseException) -> str:
    """Return the code locations and types of an error and its causes, without messages, which may quote a memory."""
    chain: list[BaseException] = []  # an error that is raised again from its wrapper causes itself: the loop must end
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    traces = ("".join([*traceback.format_tb(one.__traceback__), type(one).__qualname__]) for one in reversed(chain))
    return "\nled to\n".join(traces)


def defect_id(*parts: object) -> str:
    """Return an id of a failure. `parts` identify the work and the way in which it failed."""
    return sha256(" ".join(map(str, parts)).encode()).hexdigest()[:_ID_DIGITS]


class DefectLog:
    """Log of defects. Each code location has its traceback logged at most once in `TRACE_EVERY_S`."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._traced: dict[str, tuple[float, str]] = {}  # location → time and error id of its last logged traceback

    def report(self, error_id: str, where: str, error: BaseException, **fields: str) -> None:
        """Log a failure without the exception's message, which may quote a memory. `fields` are further attributes."""
        location, now_s = _location(error), self._clock()
        traced_s, traced_id = self._traced.get(location, (float("-inf"), ""))
        detail = f"; traceback at internal error {traced_id}"
        if now_s - traced_s >= TRACE_EVERY_S:
            if len(self._traced) >= LOCATIONS_MAX:
                self._traced.clear()
            self._traced[location] = now_s, error_id
            detail = f"\n{trace_of(error)}"
        attributes = {"code": "internal_error", "error_id": error_id, **fields}
        self._logger.error("internal error %s: %s at %s%s", error_id, location, where, detail, extra=attributes)


def _location(error: BaseException) -> str:
    kind, steps = type(error).__qualname__, [*traceback.walk_tb(error.__traceback__)]
    if not steps:
        return kind
    frame, line = steps[-1]
    return f"{kind} in {frame.f_code.co_qualname} ({frame.f_globals.get('__name__')}:{line})"
