"""Queries that wait for a position to be applied: they hold up nobody, and survive a kill in the snapshot."""

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.decode import decode
from recallflow.operators.events import Ask
from recallflow.queries import Recall
from recallflow.records import Position, Record
from recallflow.responses import Warn


class Waiting:
    """One waiting query: what it waits for, and until when (epoch milliseconds)."""

    def __init__(self, ask: Ask, targets: tuple[Position, ...], timeout_ms: int) -> None:
        self.ask = ask
        self._targets = targets
        self.deadline_ms = min(ask.record.append_ms + timeout_ms, EPOCH_MS_MAX)  # Bytewax is told it as a datetime

    @classmethod
    def of(cls, ask: Ask) -> "Waiting | None":
        """The query as a waiting one, if it names a position."""
        if not isinstance(ask.query, Recall) or not ask.query.wait_for:
            return None
        given = ask.query.wait_for
        targets = tuple(Position.parse(text) for text in ([given] if isinstance(given, str) else given))
        return cls(ask, targets, ask.query.wait_timeout_ms)

    def missing(self, applied: Mapping[str, int]) -> list[Position]:
        """The positions that are not applied yet."""
        return [target for target in self._targets if applied.get(target.source, -1) < target.offset]

    def stale(self, applied: Mapping[str, int]) -> list[Warn]:
        """The warning for an answer given before all was applied."""
        behind = [
            f"{target} is {target.offset - applied.get(target.source, -1)} records ahead of what is applied"
            for target in self.missing(applied)
        ]
        return [Warn(code="stale_read", detail="; ".join(behind))] if behind else []

    def encode(self) -> bytes:
        """For the snapshot: the record, as it came."""
        return orjson.dumps(encode_record(self.ask.record))

    @classmethod
    def decode(cls, data: bytes) -> "Waiting":
        ask = decode(decode_record(orjson.loads(data)))
        waiting = cls.of(ask) if isinstance(ask, Ask) else None
        if waiting is None:
            raise ValueError("a snapshot holds a waiting query that is none")
        return waiting


def encode_record(record: Record) -> list[Any]:
    """A record as JSON has it."""
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    flags = record.append_logged, record.silent, record.tombstone
    return [*record.position, _text(record.value), record.append_ms, _text(record.key), headers, *flags]


def decode_record(told: list[Any]) -> Record:
    """What `encode_record` gave."""
    topic, partition, offset, value, append_ms, key, headers, append_logged, silent, tombstone = told
    return Record(
        position=Position(topic, partition, offset),
        value=base64.b64decode(value),
        append_ms=append_ms,
        key=_bytes(key),
        append_logged=append_logged,
        headers=None if headers is None else tuple((name, _bytes(text)) for name, text in headers),
        silent=silent,
        tombstone=tombstone,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
