"""A record on its way out: its identity in headers, and its size within its topic's bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recallflow.connectors.kafka.messages import Headers, headers_of

SOURCE_HEADER = "recallflow-source"
NUMBER_HEADER = "recallflow-output"
TRIMMINGS_BYTES = 128  # around a record: 61 of its batch, at most 36 of lengths and deltas of its own
HEADER_BYTES = 10  # the lengths of one header's name and value

Identity = tuple[bytes, bytes]


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
    """The size of headers within a record."""
    return sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in headers)


def identity_of(message: Any) -> list[Identity]:
    """The identity of an output; none of another's record."""
    headers = dict(headers_of(message) or ())
    source, number = headers.get(SOURCE_HEADER), headers.get(NUMBER_HEADER)
    return [(source, number)] if source is not None and number is not None else []
