"""Records that are not where their owner's are: the order in which they are applied is undefined."""

import logging
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from recallflow.connectors.kafka.admin import Described
from recallflow.partitioning import partition_of
from recallflow.records import Record

KEYS_KNOWN = 10_000
REASONS = ("no_key", "other_key", "other_partition")

_log = logging.getLogger(__name__)


class Misplaced:
    """Counts them by reason, and warns of the first. A key is `tenant_id/user_id`; its partition is the one that Java
    producers choose (murmur2), and those made with librdkafka only with `partitioner=murmur2_random`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._partitions: dict[str, int] = {}  # by topic
        self._fits = lru_cache(KEYS_KNOWN)(_fits)

    def learn(self, found: Mapping[str, Described]) -> None:
        """How many partitions there are now."""
        self._partitions = {topic: described.partitions for topic, described in found.items()}

    def check(self, record: Record, owner_key: bytes) -> None:
        """`owner_key`: the key that the record's owner asks for."""
        if reason := self._reason(record, owner_key):
            if not self.counts:
                _log.warning(
                    "%s: %s: the order of an owner's records across partitions is undefined. Key records tenant_id/"
                    "user_id, and set partitioner=murmur2_random in producers made with librdkafka; reported once, "
                    "counted as recallflow_misplaced_records_total",
                    record.position,
                    reason.replace("_", " "),
                )
            self.counts[reason] += 1

    def _reason(self, record: Record, owner_key: bytes) -> str | None:
        if record.key is None:
            return "no_key"
        if record.key != owner_key:
            return "other_key"
        many = self._partitions.get(record.position.topic, 0)
        return None if self._fits(owner_key, record.position.partition, many) else "other_partition"


def _fits(key: bytes, partition: int, partitions: int) -> bool:
    """Whether a key belongs there, now or when the topic had fewer partitions: how many, the record does not say. One
    that is newer than what we know of the topic may be right."""
    return partition >= partitions or any(
        partition_of(key, many) == partition for many in range(partition + 1, partitions + 1)
    )
