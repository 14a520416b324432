"""What Bytewax keeps of the state step, and under which key."""

from dataclasses import dataclass

from recallflow.checked import Checked
from recallflow.operators.events import Item, Prepared, Refused
from recallflow.owner import state_partition


@dataclass(frozen=True, slots=True)
class Snapshot(Checked):
    """What Bytewax keeps of a state partition. `received`: the last offset of each source that came by in this run;
    `waiting`: waiting queries, and `held`: what waits for an event that is applied in steps, both sealed; `owed`: how
    far each source was applied before what was lost is read again."""

    partition: int
    applied: dict[str, int]
    received: dict[str, int]
    waiting: tuple[bytes, ...]
    owed: dict[str, int]
    held: tuple[bytes, ...] = ()


def partition_key(item: Item, partitions: int) -> str:
    """The Bytewax key of an item's state partition, zero-padded so that keys sort as numbers. A refused record goes
    where its log's key says, so that its position moves for the user who waits for it."""
    if isinstance(item, Refused):
        tenant_id, _, user_id = (item.record.key or b"").decode(errors="replace").partition("/")
        return f"{state_partition(tenant_id, user_id, partitions):03d}"
    owner = item.write.owner if isinstance(item, Prepared) else item.owner
    return f"{state_partition(owner.tenant_id, owner.user_id, partitions):03d}"
