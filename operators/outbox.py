"""Outputs of applied events, kept until they are known to be delivered.

An event that comes again after a crash was applied already: computed anew, its output would see later state (it would
look like a duplicate of itself). So what it put out is stored with its effects, and sent again as it was.
"""

import orjson

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.outputs import DeadLetter, Receipted
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.partition import Partition

Kept = Receipted | DeadLetter


def key_of(partition: Partition, position: Position) -> bytes:
    return keys.outbox(partition.keyring.name(b"", position.source), position.offset)


def keep(partition: Partition, position: Position, outputs: list[Kept]) -> None:
    """Stores an event's outputs in the transaction that holds its effects."""
    if outputs:
        partition.stage({key_of(partition, position): orjson.dumps([_encode(output) for output in outputs])})


def kept(partition: Partition, record: Record) -> list[Kept]:
    """What the event at the record's position put out when it was applied; empty once it is known to be delivered."""
    stored = partition.get(key_of(partition, record.position))
    return [_decode(fields, record) for fields in orjson.loads(stored)] if stored else []


def prune(partition: Partition, delivered: dict[str, int]) -> None:
    """Drops outputs up to the given offset of each source."""
    for source, offset in delivered.items():
        name = partition.keyring.name(b"", source)
        stale = partition.scan_range(keys.outbox(name, 0), keys.outbox(name, offset + 1))
        partition.stage(dict.fromkeys((key for key, _ in stale), None))


def _encode(output: Kept) -> list[object]:
    if isinstance(output, Receipted):
        return ["receipt", output.number, output.key.decode(), output.body.decode()]
    return ["dead", output.number, output.step, output.error.code, [tuple(f) for f in output.error.fields]]


def _decode(fields: list[object], record: Record) -> Kept:
    match fields:
        case ["receipt", int(number), str(key), str(body)]:
            return Receipted(record.position, number, key.encode(), body.encode())
        case ["dead", int(number), str(step), code, list(problems)]:
            error = InvalidRecord(code, [FieldProblem(*problem) for problem in problems])  # type: ignore[arg-type]
            return DeadLetter(record, number, error, step)
    raise ValueError(f"not an outbox entry: {fields!r}")
