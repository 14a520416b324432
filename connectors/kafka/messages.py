"""Kafka messages as records, and records to deliver with their identity in headers."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from recallflow.fields import EPOCH_MS_MAX
from recallflow.records import Position, Record

Headers = tuple[tuple[str, bytes | None], ...]
NO_TIME_MS = 0
# From C, which looks for the error that the client leaves beside its result. Python's own call does not, once it is
# often made: the error would come out of whatever is called next.
_headers = methodcaller("headers")
SOURCE_HEADER = "recallflow-source"
NUMBER_HEADER = "recallflow-output"
TRIMMINGS_BYTES = 128  # around a record: 61 of its batch, at most 36 of lengths and deltas of its own
HEADER_BYTES = 10  # the lengths of one header's name and value
Identity = tuple[bytes, bytes]


def headers_of(message: Any) -> Headers | None:
    """A message's headers; None where a name is not UTF-8, as the client then gives none of them. To be asked once of
    each message: after it failed, the client gives headers with holes in them."""
    try:
        return tuple(_headers(message) or ())
    except (UnicodeDecodeError, SystemError):  # the latter is how the client wraps the former, by its version
        return None


def time_ms(message: Any) -> int:
    """When a message was appended, or made according to its producer. A time that is absent, negative or beyond
    the year 9999 is none: it becomes 1970-01-01, so that no clock that runs forward is carried away by it."""
    at_ms: int = message.timestamp()[1]
    return at_ms if 0 <= at_ms <= EPOCH_MS_MAX else NO_TIME_MS


def append_ms(message: Any) -> int:
    """When the log took a record in; 0 where the time is the producer's: it says nothing about the order, and one far
    ahead would hold up others."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0


def record_of(message: Any, *, silent: bool = False, unread: int = 0) -> Record:
    return Record(
        position=Position(message.topic(), message.partition(), message.offset()),
        value=message.value() or b"",
        append_ms=time_ms(message),
        key=message.key(),
        headers=headers_of(message),
        silent=silent,
        unread=unread,
        tombstone=message.value() is None,
    )


def size_bytes(message: Any) -> int:
    """What a message takes in memory, as far as its key and its value do."""
    return len(message.key() or b"") + len(message.value() or b"")


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One record to deliver. `source` and `number` are its identity. `instead` makes what stands in for it where the
    brokers refuse it, given why. `delivered` is told when the log took it in (epoch ms)."""

    source: str
    number: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    instead: "Callable[[str], Outgoing] | None" = None
    delivered: Callable[[int], None] | None = None

    @property
    def identity(self) -> Identity:
        return self.source.encode(), b"%d" % self.number

    @property
    def all_headers(self) -> Headers:
        source, number = self.identity
        return (*self.headers, (SOURCE_HEADER, source), (NUMBER_HEADER, number))

    def room_bytes(self, most_bytes: int) -> int:
        """What is left for a value where a topic takes `most_bytes`."""
        return most_bytes - TRIMMINGS_BYTES - len(self.key or b"") - headers_bytes(self.all_headers)


def headers_bytes(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in headers)


def identity_of(message: Any) -> list[Identity]:
    """The identity of an output; none of another's record."""
    headers = dict(headers_of(message) or ())
    source, number = headers.get(SOURCE_HEADER), headers.get(NUMBER_HEADER)
    return [(source, number)] if source is not None and number is not None else []
