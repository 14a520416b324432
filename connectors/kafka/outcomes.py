"""What came of records that were sent, found by where they stand in their topics.

Every output of the engine names the position of the record that it comes of, in a header that the engine alone sets. So
neither senders of one owner that use the same ids cross, nor gateways on one topic, nor can a stranger answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recallflow.connectors.kafka.messages import headers_of
from recallflow.connectors.kafka.outgoing import SOURCE_HEADER
from recallflow.records import Position

EARLY_MOST = 64  # outputs about one owner that are kept, as one may overtake word of where its record stands


@dataclass(slots=True, eq=False)
class Expected:
    """A record whose outcome is waited for. `receive` is called once, with the output or with why there is none."""

    key: bytes
    receive: Callable[[Any], None]
    source: bytes | None = None  # its position, once that is known


@dataclass(slots=True)
class _OfKey:
    """What is expected for one record key. `early`: outputs of records that may be ours, by source."""

    unplaced: int = 0
    by_source: dict[bytes, Expected] = field(default_factory=dict)
    early: dict[bytes, Any] = field(default_factory=dict)


class Outcomes:
    """Records whose outcomes are expected. For one thread; `looks_for` may be asked on any.

    They are filed under their record keys, which outputs carry as well: one about somebody else is recognised by its
    key, and nothing else of it is looked at."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, _OfKey] = {}

    def expect(self, expected: Expected) -> None:
        """To be called before the record is sent, and `place` or `drop` after it."""
        self._by_key.setdefault(expected.key, _OfKey()).unplaced += 1

    def place(self, expected: Expected, position: Position) -> None:
        """The record stands there. Its outcome may have come before word of that."""
        if expected.source is not None:  # nobody waits any more
            return
        expected.source = str(position).encode()
        of_key = self._by_key[expected.key]
        of_key.unplaced -= 1
        output = of_key.early.pop(expected.source, None)
        if output is None:
            of_key.by_source[expected.source] = expected
        self._tidy(expected.key, of_key)
        if output is not None:
            expected.receive(output)

    def drop(self, expected: Expected) -> None:
        """Nobody waits any more."""
        of_key = self._by_key.get(expected.key)
        if of_key is None:
            return
        if expected.source is None:
            of_key.unplaced -= 1
            expected.source = b""
        else:
            of_key.by_source.pop(expected.source, None)
        self._tidy(expected.key, of_key)

    def looks_for(self, key: bytes) -> bool:
        """Whether anything is expected for a record key."""
        return key in self._by_key

    def receive(self, message: Any) -> None:
        """An output, perhaps of somebody else's record."""
        key: bytes = message.key() or b""
        of_key = self._by_key.get(key)
        if of_key is None:
            return
        # The last one: a dead letter has the sender's own headers before ours.
        headers = reversed(headers_of(message) or ())
        source = next((value for name, value in headers if name == SOURCE_HEADER), None) or b""
        expected = of_key.by_source.pop(source, None)
        if expected is not None:
            self._tidy(key, of_key)
            expected.receive(message)
        elif of_key.unplaced:
            of_key.early[source] = message
            if len(of_key.early) > EARLY_MOST:
                del of_key.early[next(iter(of_key.early))]

    def fail_all(self, error: Exception) -> None:
        """Fails all whose records stand in their topics."""
        for of_key in [*self._by_key.values()]:
            for expected in [*of_key.by_source.values()]:
                self.drop(expected)
                expected.receive(error)

    def _tidy(self, key: bytes, of_key: _OfKey) -> None:
        if not of_key.unplaced:
            of_key.early.clear()
            if not of_key.by_source:
                del self._by_key[key]
