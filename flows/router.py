"""The owning partition of each record, the topic record of each output, and the step that routes outputs."""

import hashlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from recallflow.cloud_events import JSON, response_event
from recallflow.connectors.kafka.messages import KEY_BYTES, Headers, Outgoing, headers_bytes
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.sender import ToSend
from recallflow.credentials import mask, sign, without_credentials
from recallflow.errors import InvalidRecord
from recallflow.flows.config import Config
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.settings import AuthSettings, TopicNames
from recallflow.operators.answers import fit
from recallflow.operators.enrichment.requests import fitted_request
from recallflow.operators.events import Decoded, Item, Misrouted, Refused
from recallflow.outputs import (
    Ack,
    Answer,
    AuditEntry,
    DeadLetter,
    EventOutput,
    Output,
    OutputBarrier,
    ReceiptOutput,
    Reroute,
    ResultOutput,
    RoutedOutput,
    TaskRequest,
    Verdict,
)
from recallflow.owner import partition_of, state_partition
from recallflow.process import log_from_signal_handler
from recallflow.records import MOVED_HEADER, Position
from recallflow.registered_responses import encode
from recallflow.responses import REGISTERED_FORMATS

MISROUTED_REASONS = ("no_key", "other_key", "other_partition")
MISROUTED_WARNING = (
    "%s: %s: the record is forwarded to its owner's partition, which costs a second pass through the log. Key records "
    "tenant_id/user_id, and set partitioner=murmur2_random in producers made with librdkafka. Further records are only "
    "counted in recallflow_misrouted_records_total"
)
DETAIL_BYTES = 2_000
HEADERS_DIVISOR = 4  # the refused record's headers take at most 1/4 of a dead letter
ToRoute = RoutedOutput | ResultOutput | EventOutput
_TOPICS: dict[type, str] = {  # type of output → field of `TopicNames`
    Answer: "responses", ReceiptOutput: "receipts", TaskRequest: "enrichment", DeadLetter: "dead_letters",
    Verdict: "control", AuditEntry: "audit", ResultOutput: "results", EventOutput: "memory",
}  # fmt: skip
NO_AUTH = AuthSettings()
UNREADABLE = "a header's name is not UTF-8"
STEP = "state"
_MISROUTED = "is in the wrong partition, and too large to be forwarded to the owning one: use the key tenant_id/user_id"
TOO_LARGE_TO_MOVE = InvalidRecord.of("too_large", _MISROUTED)

_log = logging.getLogger(__name__)


class OwningPartitions:
    """Detector of misrouted records. It counts them by reason. Given the key `tenant_id/user_id`, Java producers choose
    the owning partition (murmur2); producers made with librdkafka need `partitioner=murmur2_random` for that."""

    def __init__(self, partitions: int) -> None:
        self.counts: Counter[str] = Counter()
        self._partitions = partitions

    def judge(self, item: Decoded) -> Item:
        """Return the item, or mark it as misrouted. A refused item has no reliable owner, so it is never misrouted."""
        if isinstance(item, Refused):
            return item
        record, owner = item.record, item.owner
        owning_partition = state_partition(owner.tenant_id, owner.user_id, self._partitions)
        if record.position.partition == owning_partition:
            return item
        if not record.silent:
            with_key = "other_partition" if record.key == owner.record_key else "other_key"
            reason = "no_key" if record.key is None else with_key
            if not self.counts:
                _log.warning(MISROUTED_WARNING, record.position, reason.replace("_", " "))
            self.counts[reason] += 1
        return Misrouted(record, owner, owning_partition)


@dataclass(frozen=True, eq=False)
class Router:
    """The conversion of outputs to topic records. In a topic, all outputs of an owner go to one partition, in order."""

    topics: TopicNames
    partitions: Mapping[str, int]  # topic → number of partitions
    max_bytes: Mapping[str, int]  # topic → largest record
    auth: AuthSettings = NO_AUTH  # the credentials of derived events, and the secret that signs verdicts
    trace_headers: Callable[[Position], Headers] = lambda _: ()  # returns the trace headers of a record's outputs
    response_format: str = JSON
    schema_id: int = 0  # the schema of responses in a registered format

    def fitted(self, output: Output) -> Output:
        """Return the output as it will be sent. Answers and requests that exceed their topic's limit are shortened. A
        record too large to be forwarded with its extra header becomes a dead letter."""
        match output:
            case Answer():
                return fit.fitted(output, self._room_bytes(output))
            case TaskRequest():
                return fitted_request(output, self._room_bytes(output))
            case Reroute(record=record):
                room_bytes = _moved(output).room_bytes(self.max_bytes[record.position.topic])
                return output if len(record.original) <= room_bytes else DeadLetter(record, 0, TOO_LARGE_TO_MOVE, STEP)
        return output

    def route(self, output: ToRoute) -> ToSend:
        topic = self._topic_of(output)
        match output:
            case Answer():
                outgoing = replace(self._answer(output, output.body), replacement=partial(self._failed, output))
            case ReceiptOutput() | TaskRequest() | AuditEntry():
                outgoing = self._outgoing(output, output.key, output.body)
            case DeadLetter():
                outgoing = letter(output, self.max_bytes[topic])
            case Verdict():
                signature = sign(self.auth.control_secret, output.key, output.body)
                outgoing = self._outgoing(output, output.key, output.body, signature)
            case ResultOutput():
                outgoing = self._outgoing(output, output.key, output.body)
                bare = self._outgoing(output, output.key, output.bare)
                fits = len(output.body) <= outgoing.room_bytes(self.max_bytes[topic])
                outgoing = replace(outgoing, replacement=lambda _: bare) if fits else bare
            case Reroute():
                return ToSend(topic, output.owning_partition, _moved(output))
            case EventOutput():
                outgoing = self._outgoing(output, output.key, output.body, self.auth.credentials)
        return ToSend(topic, self._partition(topic, output), outgoing)

    def _partition(self, topic: str, output: ToRoute) -> int:
        if isinstance(output, Answer) and output.reply_to is not None and output.reply_to.partition is not None:
            return output.reply_to.partition
        key = output.record.key if isinstance(output, DeadLetter) else output.key
        return partition_of(str(output.position).encode() if key is None else key, self.partitions[topic])

    def _topic_of(self, output: ToRoute) -> str:
        if isinstance(output, Answer) and output.reply_to is not None:
            return output.reply_to.topic
        if isinstance(output, Reroute):
            return output.position.topic
        return str(getattr(self.topics, _TOPICS[type(output)]))

    def _room_bytes(self, output: Answer | TaskRequest) -> int:
        empty = self._answer(output, b"") if isinstance(output, Answer) else self._outgoing(output, output.key, b"")
        return empty.room_bytes(self.max_bytes[self._topic_of(output)]) - len(empty.value or b"")

    def _answer(self, answer: Answer, body: bytes) -> Outgoing:
        if self.response_format == JSON:
            return self._outgoing(answer, answer.key, body)
        if self.response_format in REGISTERED_FORMATS:
            return self._outgoing(answer, answer.key, encode(body or b"{}", self.response_format, self.schema_id))
        event_id = f"{answer.position}/{answer.number}"
        value, headers = response_event(body, answer.key, self.topics.responses, event_id, self.response_format)
        return self._outgoing(answer, answer.key, value, headers)

    def _failed(self, answer: Answer, reason: str) -> Outgoing:
        error = fit.failed(answer, f"the answer could not be sent: {reason}", self._room_bytes(answer))
        return self._answer(answer, error.body)

    def _outgoing(self, output: ToRoute, key: bytes, value: bytes, headers: Headers = ()) -> Outgoing:
        return _outgoing(output, key, value, (*headers, *self.trace_headers(output.position)))


def _moved(output: Reroute) -> Outgoing:
    """Return the unchanged record under its owner's key, with its source in a header."""
    record = output.record
    source = (MOVED_HEADER, str(record.position).encode())
    value = None if record.tombstone else record.original
    return _outgoing(output, output.key, value, (*(record.headers or ()), source))


def letter(output: DeadLetter, max_bytes: int) -> Outgoing:
    """Return a dead letter: the refused record with the reason. An oversized record is cut, with its size and hash."""
    record = output.record
    own, changes = _own_headers(record.headers, max_bytes // HEADERS_DIVISOR)
    if record.key is not None and len(record.key) > KEY_BYTES:
        changes |= {"error.key_size": str(len(record.key))}
    value, masked = mask(record.original)
    key, masked_in_key = (None, 0) if record.key is None else mask(record.key)
    if masked + masked_in_key:
        changes |= {"error.masked": str(masked + masked_in_key)}
    uncut = _outgoing(output, key, None if record.tombstone else value, (*own, *error_headers(output, changes)))
    uncut = replace(uncut, replacement=partial(_letter_without_record, output))
    if len(value) <= uncut.room_bytes(max_bytes):
        return uncut
    cut = replace(uncut, headers=(*own, *error_headers(output, changes | _size_and_hash(record.original))))
    return replace(cut, value=value[: cut.room_bytes(max_bytes)])


def _letter_without_record(output: DeadLetter, reason: str) -> Outgoing:
    """Return the replacement of a dead letter that the brokers refuse: the reason, without the record."""
    headers = error_headers(output, _size_and_hash(output.record.original) | {"error.refused": reason})
    return _outgoing(output, mask(output.record.key or b"")[0] or str(output.position).encode(), b"", headers)


def error_headers(output: DeadLetter, changes: dict[str, str]) -> Headers:
    """Return the headers with the reason of a refusal, and with the `changes` to the record. They follow the record's
    own headers, which may have the same names. The time is the record's, so that a replay gives the same headers."""
    reason = {
        "error.code": output.error.code,
        "error.detail": mask(str(output.error).encode())[0][:DETAIL_BYTES].decode(errors="ignore"),
        "error.fields": _fields(output.error),
        "error.step": output.step,
        "error.source": str(output.position),
        "error.time": str(output.record.append_ms),
    }
    return tuple((name, value.encode()) for name, value in (reason | changes).items())


def _fields(error: InvalidRecord) -> str:
    named = [(problem.field, problem.problem) for problem in error.fields]
    while len(text := orjson.dumps(named)) > DETAIL_BYTES:
        named.pop()
    return mask(text)[0].decode()


def _own_headers(headers: Headers | None, max_bytes: int) -> tuple[Headers, dict[str, str]]:
    """Return a record's own headers without credentials. Unreadable or large ones are dropped, with the reason."""
    if headers is None:
        return (), {"error.headers_dropped": UNREADABLE}
    headers = without_credentials(headers)
    if (size_bytes := headers_bytes(headers)) > max_bytes:
        return (), {"error.headers_dropped": f"{len(headers)} headers of {size_bytes} bytes"}
    return headers, {}


def _size_and_hash(value: bytes) -> dict[str, str]:
    return {"error.size": str(len(value)), "error.sha256": hashlib.sha256(value).hexdigest()}


def _outgoing(output: ToRoute, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Outgoing:
    return Outgoing(str(output.position), output.number, key and key[:KEY_BYTES], value, headers)


def deployment_name(config: Config, topic: str) -> str:
    """Return the name of a deployment: the configured name, or one derived from a topic."""
    return config.run.deployment or f"recallflow-{topic}"


def routing(
    router: Router, source: OwnedSource, observe: Callable[[Any], None], spans: RecordSpans
) -> Callable[[list[tuple[str, Any]]], Iterator[ToSend | OutputBarrier]]:
    """Return the step that routes outputs, reports completed records to the source, and ends their spans. It keeps the
    order of outputs and barriers."""

    def route(batch: list[tuple[str, Any]]) -> Iterator[ToSend | OutputBarrier]:
        parked: list[Position] = []
        for _, item in batch:
            if isinstance(item, OutputBarrier):
                yield item
                continue
            output = router.fitted(item)
            observe(output)
            if isinstance(output, Ack):
                topic, _, partition = output.source.rpartition(":")
                source.counters.count_finished(topic, len(output.offsets))
                source.catch_up.count_applied(output.source, output.offsets)
                spans.end_or_park(Position(topic, int(partition), offset) for offset in output.offsets)
            else:
                if spans.is_parked(output.position):
                    parked.append(output.position)
                to_send = router.route(output)
                yield to_send._replace(outgoing=replace(to_send.outgoing, delivered=spans.track_output(output)))
        spans.end_parked(parked)

    return route


def stop_on_signals(source: OwnedSource) -> None:
    """Stop the flow after the current batch on SIGTERM or SIGINT. A second signal ends the process."""

    def stop(number: int, _: object) -> None:
        if source.stopping.is_set():
            os._exit(128 + number)
        source.stopping.set()
        log_from_signal_handler(__name__, "stopping after the current batch; a second signal stops at once")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
