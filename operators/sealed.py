"""What waits in Bytewax's snapshots: records under the keys of their owners, so that whoever destroys an owner's key
destroys them too, in whatever copy of the recovery store.

A record whose owner nobody knows, or whose owner's key is lost or will be gone, is sealed with the directory's key.
"""

import logging
from collections.abc import Iterable

import orjson

from recallflow.errors import DecryptionFailed
from recallflow.events import UserErase
from recallflow.operators.events import Item, Refused, Write
from recallflow.operators.snapshot import decode_record, encode_record
from recallflow.records import Record
from recallflow.state.keys import OWNER_BYTES
from recallflow.state.partition import Partition

_log = logging.getLogger(__name__)

_NOBODY = bytes(OWNER_BYTES)  # in an owner's place


def seal_items(partition: Partition, label: bytes, items: Iterable[Item]) -> tuple[bytes, ...]:
    """The records of items, sealed, each behind the key of its owner. Stages keys for owners who have none.

    What is held behind an erasure of its own user comes after it, and may be new: the key that its owner has now will
    be gone by then, so it is sealed with the directory's."""
    sealed: list[bytes] = []
    erased: set[tuple[str, str | None, str]] = set()  # tenant, environment (None: all) and user
    for item in items:
        outlives = False
        if not isinstance(item, Refused):
            tenant_id, environment, user_id = item.owner
            outlives = any((tenant_id, one, user_id) in erased for one in (environment, None))
        sealed.append(_seal(partition, label, item, by_owner=not outlives))
        if isinstance(item, Write) and isinstance(item.event, UserErase):
            erased.add((item.event.tenant_id, item.event.environment, item.event.user_id))
    return tuple(sealed)


def open_records(partition: Partition, label: bytes, sealed: Iterable[bytes]) -> list[Record]:
    """What `seal_items` sealed, without what cannot be opened: its owner was erased since, or the key is lost."""
    found = [_open(partition, label, one) for one in sealed]
    opened = [record for record in found if record is not None]
    if lost := len(found) - len(opened):
        _log.warning(
            "state partition %d: %d records that were %s when it stopped cannot be opened: "
            "their users were erased, or their keys are lost",
            partition.number, lost, label.decode(),
        )  # fmt: skip
    return opened


def _seal(partition: Partition, label: bytes, item: Item, *, by_owner: bool) -> bytes:
    value = orjson.dumps(encode_record(item.record))
    if by_owner and not isinstance(item, Refused):
        owner = partition.keyring.owner(item.owner)
        try:
            partition.begin_owner(item.owner)
            return owner + partition.seal_for(owner, _place(partition, label), value)
        except DecryptionFailed:
            pass
    return _NOBODY + partition.keyring.cipher.seal(_place(partition, label), value)


def _open(partition: Partition, label: bytes, sealed: bytes) -> Record | None:
    owner, value = sealed[:OWNER_BYTES], sealed[OWNER_BYTES:]
    try:
        if owner == _NOBODY:
            opened = partition.keyring.cipher.open(_place(partition, label), value)
        else:
            opened = partition.open_for(owner, _place(partition, label), value)
    except DecryptionFailed:
        return None
    return decode_record(orjson.loads(opened))


def _place(partition: Partition, label: bytes) -> bytes:
    """Where a record waits: in another state partition's snapshot it does not open."""
    return b"%b in %d" % (label, partition.number)
