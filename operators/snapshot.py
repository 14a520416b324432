"""What Bytewax keeps of the state step, and under which key."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from recallflow.checked import Checked
from recallflow.operators.events import Batch, Item, Refused
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


def partition_of(item: Item, partitions: int) -> int:
    """The state partition of an item. A refused record goes where its log's key says, so that its position moves for
    the user who waits for it."""
    if isinstance(item, Refused):
        tenant_id, _, user_id = (item.record.key or b"").decode(errors="replace").partition("/")
        return state_partition(tenant_id, user_id, partitions)
    return state_partition(item.owner.tenant_id, item.owner.user_id, partitions)


def by_partition(items: Iterable[Item], partitions: int) -> list[tuple[str, Batch]]:
    """Items in a batch for each state partition, under its Bytewax key: zero-padded, so that keys sort as numbers."""
    batches: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        batches[partition_of(item, partitions)].append(item)
    return [(f"{number:03d}", Batch(number, found)) for number, found in batches.items()]
