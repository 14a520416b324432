"""How the flow under test is laid out: its partitions and settings, the same for its processes and the reference."""

from pathlib import Path

from recallflow.flows.settings import Settings
from recallflow.partitioning import partition_of

ROOT = Path(__file__).parents[2]
PARTITIONS, OUTPUT_PARTITIONS = 4, 2  # of memory and queries each
CACHE_BYTES = 4 * 1024 * 1024  # small: owners leave memory and come back
SETTINGS = Settings(epoch_ms=200, cache_bytes=CACHE_BYTES)
GIVE_UP_S = 60.0
SESSION_S = 6.0  # the shortest that a broker takes by default


def memory_partition(key: bytes | None) -> int:
    """The memory partition of an owner, by its record key, and that of its queries."""
    return partition_of(key or b"", PARTITIONS)
