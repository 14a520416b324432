"""Outputs of applied events, stored until their delivery is known.

An event that is read again after a crash is already applied. Its outputs cannot be computed again from the later state,
in which the event would look like a duplicate of itself. So outputs are stored with the effects, and sent again
unchanged.

Outputs that are deleted with their owner are stored in plain text. An erasure cannot find the others: outputs of
refused events, of events after the erasure, or of the erasure itself. They may still name a user, so they are encrypted
with a key derived from the record, and are readable only when that record is read again."""

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from recallflow.errors import DecryptionFailed, FieldProblem, InvalidRecord
from recallflow.outputs import AuditEntry, DeadLetter, ReceiptOutput, TaskRequest
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.partition import Partition, Values

_log = logging.getLogger(__name__)
Kept = ReceiptOutput | TaskRequest | DeadLetter | AuditEntry
_OWNER = slice(2, 2 + 2 * keys.OWNER_BYTES)  # the owner in an entry, after `["`
_KINDS: dict[str, Callable[..., Kept]] = {"receipt": ReceiptOutput, "request": TaskRequest, "audit": AuditEntry}


def encode(partition: Partition, record: Record, outputs: Sequence[Kept], owner: Owner | None = None) -> Values:
    """Return the stored form of a record's outputs. Erasing `owner` deletes them; None: they are encrypted instead."""
    if not outputs:
        return {}
    key, encoded = _key(partition, record.position), [_encode_one(output, record) for output in outputs]
    if owner is None:
        encrypted = partition.keyring.cipher_of(record.value).seal(key, orjson.dumps(encoded))
        return {key: orjson.dumps(["", base64.b64encode(encrypted).decode()])}
    return {key: orjson.dumps([partition.keyring.owner(owner).hex(), *encoded])}


def read(partition: Partition, record: Record) -> list[Kept]:
    """Return the stored outputs of a record; none after their delivery."""
    key = _key(partition, record.position)
    try:
        stored = partition.get(key)
        if stored is None:
            return []
        owner_key, *encoded = orjson.loads(stored)
        if not owner_key:
            encoded = orjson.loads(partition.keyring.cipher_of(record.value).open(key, base64.b64decode(encoded[0])))
    except DecryptionFailed:
        _log.error("%s: the record's stored outputs cannot be decrypted, and are not sent again", record.position)
        return []
    return [_decode_one(fields, record) for fields in encoded]


def owner_of(entry: bytes) -> bytes | None:
    """Return the owner key of a stored entry, if it has one."""
    owner_key = entry[_OWNER]
    return None if b'"' in owner_key else bytes.fromhex(owner_key.decode())


def of_owners(partition: Partition, owners: Iterable[bytes]) -> Values:
    """Return the deletion of owners' outputs. All undelivered outputs are read: at most those since a few barriers."""
    prefixes = {owner.hex().encode() for owner in owners}
    found = partition.scan_readable(keys.OUTBOX) if prefixes else ()
    return {key: None for key, value in found if value[_OWNER] in prefixes}


def delivered(partition: Partition, offsets: dict[str, int]) -> Values:
    """Return the deletion of outputs that were delivered: those up to the offset of each source."""
    stale: Values = {}
    for source, offset in offsets.items():
        name = partition.keyring.name(b"", source)
        found = partition.scan_stored(keys.outbox(name, 0), keys.outbox(name, offset + 1))
        stale |= {key: None for key, _ in found}
    return stale


def _key(partition: Partition, position: Position) -> bytes:
    return keys.outbox(partition.keyring.name(b"", position.source), position.offset)


def _encode_one(output: Kept, record: Record) -> list[object]:
    if isinstance(output, DeadLetter):
        return ["dead", output.number, output.step, output.error.code, [tuple(f) for f in output.error.fields]]
    # A key names its user, so the key of the record is not stored. Keys are arbitrary bytes, so JSON needs base64.
    key = None if output.key == record.key else base64.b64encode(output.key).decode()
    kind = next(name for name, output_type in _KINDS.items() if output_type is type(output))
    tasks = [output.tasks] if isinstance(output, TaskRequest) else []
    return [kind, output.number, key, output.body.decode(), *tasks]


def _decode_one(fields: list[Any], record: Record) -> Kept:
    match fields:
        case ["dead", int(number), str(step), code, list(problems)]:
            error = InvalidRecord(code, [FieldProblem(*problem) for problem in problems])
            return DeadLetter(record, number, error, step)
        case [str(kind), int(number), stored_key, str(body), *tasks] if kind in _KINDS:
            key = base64.b64decode(str(stored_key)) if stored_key is not None else record.key or b""
            return _KINDS[kind](record.position, number, key, body.encode(), *(tuple(names) for names in tasks))
    raise ValueError(f"not an outbox entry: {fields!r}")
