"""Which partition a record belongs to: that of its owner, whoever produced it and wherever it landed."""

import logging
from collections import Counter

from recallflow.operators.events import Decoded, Item, Misplaced, Refused
from recallflow.owner import state_partition

REASONS = ("no_key", "other_key", "other_partition")

_log = logging.getLogger(__name__)


class Homes:
    """Finds records that lie elsewhere, counts them by reason, and warns of the first. A key is `tenant_id/user_id`;
    its partition is the one that Java producers choose (murmur2), and those made with librdkafka only with
    `partitioner=murmur2_random`."""

    def __init__(self, partitions: int) -> None:
        """`partitions`: of the deployment's state."""
        self.counts: Counter[str] = Counter()
        self._partitions = partitions

    def judge(self, item: Decoded) -> Item:
        """The item, or that it is misplaced. A refused record names nobody for sure: it is refused where it lies."""
        if isinstance(item, Refused):
            return item
        record, owner = item.record, item.owner
        home = state_partition(owner.tenant_id, owner.user_id, self._partitions)
        if record.position.partition == home:
            return item
        if not record.silent:
            self._count(item, "no_key" if record.key is None else self._reason(record.key, owner.record_key))
        return Misplaced(record, owner, home)

    def _reason(self, key: bytes, owner_key: bytes) -> str:
        return "other_partition" if key == owner_key else "other_key"

    def _count(self, item: Decoded, reason: str) -> None:
        if not self.counts:
            _log.warning(
                "%s: %s: it is sent on to its owner's partition, which costs a second way through the log. Key records "
                "tenant_id/user_id, and set partitioner=murmur2_random in producers made with librdkafka; reported "
                "once, counted as recallflow_misplaced_records_total",
                item.record.position,
                reason.replace("_", " "),
            )
        self.counts[reason] += 1
