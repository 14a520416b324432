"""What Bytewax keeps of the state step, and under which key."""

import base64
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recallflow.checked import Checked
from recallflow.operators.events import Batch, Item, Refused
from recallflow.owner import state_partition
from recallflow.partitioning import partition_of
from recallflow.records import Position, Principal, Record, Refusal


@dataclass(frozen=True, slots=True)
class Snapshot(Checked):
    """What Bytewax keeps of a state partition. `received`: the last offset of each source that came by in this run;
    `waiting`: waiting queries, and `held`: what waits for an event that is applied in steps, both sealed."""

    partition: int
    applied: dict[str, int]
    received: dict[str, int]
    waiting: tuple[bytes, ...]
    held: tuple[bytes, ...] = ()

    @classmethod
    def empty(cls, partition: int) -> "Snapshot":
        """What a state partition begins with."""
        return cls(partition, {}, {}, ())


def by_partition(items: Iterable[Item], partition_of: Callable[[Item], int]) -> list[tuple[str, Batch]]:
    """Items in a batch for each state partition, under its Bytewax key."""
    batches: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        batches[partition_of(item)].append(item)
    return [(key_of_partition(number), Batch(number, found)) for number, found in batches.items()]


def partition_read(item: Item) -> int:
    """The state partition of a record of a log whose partitions are those of the state."""
    return item.record.position.partition


def key_of_partition(number: int) -> str:
    """The Bytewax key of a state partition: zero-padded, so that keys sort as numbers."""
    return f"{number:03d}"


def partition_hashed(item: Item, partitions: int) -> int:
    """The state partition of a record of a log that has no such partitions. A refused record goes where its key says,
    so that its position moves for the user who waits for it."""
    if isinstance(item, Refused):
        return partition_of(item.record.key or b"", partitions)
    return state_partition(item.owner.tenant_id, item.owner.user_id, partitions)


def encode_record(record: Record) -> list[Any]:
    """A record as JSON has it."""
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    flags = record.append_logged, record.silent, record.tombstone
    plain = [*record.position, _text(record.value), record.append_ms, _text(record.key), headers, *flags]
    verdict = (one and [*one] for one in (record.principal, record.refusal))
    return [*plain, *verdict]


def decode_record(encoded: list[Any]) -> Record:
    """What `encode_record` gave."""
    topic, partition, offset, value, append_ms, key, headers, append_logged, silent, tombstone, *verdict = encoded
    sender, refusal = verdict
    return Record(
        position=Position(topic, partition, offset),
        value=base64.b64decode(value),
        append_ms=append_ms,
        key=_bytes(key),
        append_logged=append_logged,
        headers=None if headers is None else tuple((name, _bytes(text)) for name, text in headers),
        silent=silent,
        tombstone=tombstone,
        principal=None if sender is None else _principal(*sender),
        refusal=None if refusal is None else Refusal(*refusal),
    )


def _principal(name: str, projects: list[str] | None) -> Principal:
    return Principal(name, None if projects is None else tuple(projects))


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
