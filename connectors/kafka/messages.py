"""What a Kafka message may hold that has no place in a record: anyone can write anything to a topic."""

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
    """A message as a record."""
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
