"""Kafka messages as records and dead letters, and records to deliver with their identity in headers."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, cast

import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from recallflow.cloud_events import event_json, is_cloud_event
from recallflow.credentials import mask, without_credentials
from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.records import TIME_HEADER, Position, Record, Refusal
from recallflow.schema_registry import RegisteredValue

Headers = tuple[tuple[str, bytes | None], ...]
NO_TIME_MS = 0
DECODE_STEP = "decode"  # the step in refusals of wire formats
# The client may return a result and leave an error set. A call from C raises that error; a call from specialised
# bytecode does not, and the error would appear at a later call.
_headers = methodcaller("headers")
SOURCE_HEADER = "recallflow-source"
NUMBER_HEADER = "recallflow-output"
RECORD_OVERHEAD_BYTES = 128  # overhead of a record: 61 bytes of its batch, at most 36 of lengths and deltas
HEADER_BYTES = 10  # the lengths of one header's name and value
Identity = tuple[bytes, bytes]


def headers_of(message: Any) -> Headers | None:
    """Return a message's headers; None if a name is not UTF-8. A second call would return incomplete headers then."""
    try:
        return tuple(_headers(message) or ())
    except (UnicodeDecodeError, SystemError):  # some versions of the client wrap the former in the latter
        return None


def time_ms(message: Any) -> int:
    """Return the timestamp of a message: append time or producer time. An absent, negative or too large time (beyond
    year 9999) becomes 1970-01-01, because it would set a monotonic clock far ahead."""
    at_ms: int = message.timestamp()[1]
    return at_ms if 0 <= at_ms <= EPOCH_MS_MAX else NO_TIME_MS


def append_ms(message: Any) -> int:
    """Return the append time; 0 for a producer's time, which says nothing about the order and may lie in the future."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0


def json_of(value: bytes, headers: Headers | None) -> bytes:
    """Return the event of a record as JSON; its value or its headers state the wire format. Raise InvalidRecord."""
    if isinstance(value, RegisteredValue):
        value = value.json()
    return event_json(value, headers) if headers and value and is_cloud_event(headers) else value


def json_or_wire(message: Any) -> bytes:
    """Return the event of a message as JSON, or its value where that cannot be decoded."""
    value = message.value() or b""
    try:
        return json_of(value, headers_of(message))
    except InvalidRecord:
        return value


def record_of(message: Any, *, silent: bool = False, unapplied: int = 0) -> Record:
    """Return a message as a record. See `Record` for `silent` and `unapplied`."""
    wire, headers, refusal = message.value() or b"", headers_of(message), None
    try:
        value = json_of(wire, headers)
    except InvalidRecord as error:
        problem = error.fields[0] if len(error.fields) == 1 else FieldProblem("", str(error))
        value, refusal = wire, Refusal(DECODE_STEP, error.code, *problem)
    return Record(
        position=Position(message.topic(), message.partition(), message.offset()),
        value=value,
        append_ms=time_ms(message),
        key=message.key(),
        headers=headers,
        silent=silent,
        unapplied=unapplied,
        tombstone=message.value() is None,
        refusal=refusal,
        encoded=None if value is wire else wire,
    )


def size_bytes(message: Any) -> int:
    """Return the memory of a message's key and value."""
    return len(message.key() or b"") + len(message.value() or b"")


@dataclass(slots=True, frozen=True)
class Outgoing:
    """Record to deliver. `source` and `number` are its identity. If the brokers refuse the record, `replacement`
    returns another one for it, from the reason. `delivered` is called with the append time (epoch ms)."""

    source: str
    number: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    replacement: "Callable[[str], Outgoing] | None" = None
    delivered: Callable[[int], None] | None = None

    @property
    def identity(self) -> Identity:
        return self.source.encode(), b"%d" % self.number

    @property
    def all_headers(self) -> Headers:
        source, number = self.identity
        return (*self.headers, (SOURCE_HEADER, source), (NUMBER_HEADER, number))

    def room_bytes(self, most_bytes: int) -> int:
        """Return the size limit of the value if the topic limits records to `most_bytes`."""
        return most_bytes - RECORD_OVERHEAD_BYTES - len(self.key or b"") - headers_bytes(self.all_headers)


def headers_bytes(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in headers)


def identity_of(message: Any) -> list[Identity]:
    """Return the identity of an output; an empty list for records of other producers."""
    headers = dict(headers_of(message) or ())
    source, number = headers.get(SOURCE_HEADER), headers.get(NUMBER_HEADER)
    return [(source, number)] if source is not None and number is not None else []


KEY_BYTES = 4_096  # longer keys of outputs are cut; an owner's key has at most 1,025 bytes
REPLAYED_HEADER = "recallflow-replayed"  # marks a dead letter as sent again; the value is its position
ERROR_PREFIX = "error."
_INCOMPLETENESS = {"size", "sha256", "key_size", "masked", "headers_dropped", "refused"}
FIRST_HEADER = "error.code"  # first of a dead letter's own headers; earlier ones belong to the record, under any names


@dataclass(frozen=True, slots=True)
class Letter:
    """Dead letter. `source` is the position of the refused record; the value of a tombstone is None. `headers` are the
    record's own. `error` has code, detail, fields, step, source and time of the refusal, and the missing parts."""

    position: Position
    source: Position
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: dict[str, str]
    refused_ms: int = NO_TIME_MS  # append time of the letter

    @classmethod
    def of(cls, message: Any) -> "Letter | None":
        """Return a message as a dead letter; None for a message of another kind."""
        headers = headers_of(message) or ()
        names = [name for name, _ in headers]
        if FIRST_HEADER not in names:
            return None
        begin = len(names) - 1 - names[::-1].index(FIRST_HEADER)
        ours = ((name, value) for name, value in headers[begin:] if name.startswith(ERROR_PREFIX))
        error = {name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace") for name, value in ours}
        if "detail" not in error or ("size" in error) is not ("sha256" in error):
            return None
        try:
            source = Position.parse(error.get("source", ""))
        except ValueError:
            return None
        position = Position(message.topic(), message.partition(), message.offset())
        return cls(position, source, message.key(), message.value(), headers[:begin], error, time_ms(message))

    @property
    def refusal(self) -> InvalidRecord:
        """Return the refusal, with the wrong fields if the dead letter lists them."""
        listed = orjson.loads(self.error.get("fields", "[]"))  # older dead letters have none
        fields = [FieldProblem(*one) for one in listed] or [FieldProblem("", self.error["detail"])]
        return InvalidRecord(cast(ErrorCode, self.error["code"]), fields)

    @property
    def record_ms(self) -> int:
        """Return the time of the refused record; 0 if it is unknown."""
        text = self.error.get("time", "")
        return min(int(text), EPOCH_MS_MAX) if text.isdecimal() and len(text) < 20 else NO_TIME_MS

    @property
    def replay_headers(self) -> Headers:
        """Return the headers for the record's replay: its own, and the time of its first append."""
        needs_time = self.record_ms and all(name != TIME_HEADER for name, _ in self.headers)
        return (*self.headers, (TIME_HEADER, str(self.record_ms).encode())) if needs_time else self.headers

    def completed(self, original: Any) -> "Letter":
        """Return the letter with the whole record, if the message at its source position still is that record."""
        error, key, value, headers = self.error, original.key(), original.value(), headers_of(original)
        if "sha256" in error:
            is_original = hashlib.sha256(value or b"").hexdigest() == error["sha256"]
        else:
            is_original = value is not None and mask(value)[0] == self.value
        if "refused" not in error:  # else the letter has a key even if the record has none
            is_original &= (None if key is None else mask(key)[0][:KEY_BYTES]) == self.key
        if not is_original or headers is None:
            return self
        remaining = {name: text for name, text in error.items() if name not in _INCOMPLETENESS}
        return replace(self, key=key, value=value, headers=without_credentials(headers), error=remaining)

    @property
    def missing(self) -> list[str]:
        """Return the missing parts of the record. An incomplete record must not be sent again."""
        error, missing = self.error, []
        if "size" in error:
            here = f"{len(self.value or b'')} of its {error['size']} bytes are here"
            missing.append(f"{here} (SHA-256 of all: {error['sha256']})")
        if "key_size" in error:
            missing.append(f"{len(self.key or b'')} of the {error['key_size']} bytes of its key are here")
        if "masked" in error:
            missing.append(f"{error['masked']} credentials in it are masked")
        if "headers_dropped" in error:
            missing.append(f"its headers are not here: {error['headers_dropped']}")
        return missing
