"""Batches by state partition, and their keys in the dataflow."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from recallflow.operators.events import Batch, Item, Refused
from recallflow.owner import partition_of, state_partition


def by_partition(items: Iterable[Item], partition_of: Callable[[Item], int]) -> list[tuple[str, Batch]]:
    """Group items into one batch per state partition, under its key."""
    batches: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        batches[partition_of(item)].append(item)
    return [(key_of_partition(number), Batch(number, found)) for number, found in batches.items()]


def partition_read(item: Item) -> int:
    """Return the partition of a topic that has the partitions of the state."""
    return item.record.position.partition


def key_of_partition(number: int) -> str:
    """Return the key of a state partition. It is zero-padded, so that keys sort as numbers."""
    return f"{number:03d}"


def partition_hashed(item: Item, partitions: int) -> int:
    """Return the state partition of a record by its owner. A refused record goes to the partition of its key, so that
    its position advances for that user."""
    if isinstance(item, Refused):
        return partition_of(item.record.key or b"", partitions)
    return state_partition(item.owner.tenant_id, item.owner.user_id, partitions)
