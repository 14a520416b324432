"""Quotas: records per second of a tenant, and memories, bytes and edges of a user.

The n-th record of a tenant in one second of one partition, by the log's clock, is refused if n exceeds the quota. A
replay gives the same verdicts if it starts with the first record of a second. Records that other checks refused do not
count, so a flood of unauthenticated records uses up no quota. Records of tenants without a limit are not counted."""

from collections.abc import Container
from typing import NamedTuple

from recallflow.control import ControlHistory, quota
from recallflow.errors import InvalidRecord, OverQuota
from recallflow.limits import BYTES_PER_USER, EDGES_PER_USER, EVENTS_PER_S, MEMORIES_PER_USER, QUERIES_PER_S
from recallflow.operators.events import Ask, Decoded, Refused, Write
from recallflow.owner import key_tenant
from recallflow.records import Record, Refusal
from recallflow.state.rows import OwnerCounts

STEP = "quota"
_SECOND_MS = 1_000
_REMEDY = "forget memories, or raise the limit (recallflow quota set)"


class _SecondCount(NamedTuple):
    """A tenant's number of `records` in the second (epoch) of its latest record, and the offset of that record."""

    second: int
    records: int
    offset: int


class Rates:
    """Counters of limited tenants in the current second, by partition and tenant. A partition has one thread."""

    def __init__(self, decisions: ControlHistory, fair_topic: str, log_time_topics: Container[str]) -> None:
        """Tenants take turns on `fair_topic`, by the tenant in the keys of its records. `log_time_topics` are the
        topics with LogAppendTime. Records of other topics are not counted, because producers choose their times."""
        self._decisions, self._log_time_topics, self._fair_topic = decisions, log_time_topics, fair_topic
        self._counts: dict[tuple[str, str], _SecondCount] = {}

    def judge(self, item: Decoded) -> Decoded:
        if isinstance(item, Refused):
            return item
        name = QUERIES_PER_S if isinstance(item, Ask) else EVENTS_PER_S
        record, tenant_id = item.record, item.owner.tenant_id
        limit = quota(self._decisions, tenant_id, name, record.append_ms)
        if limit is None or record.position.topic not in self._log_time_topics:
            return item
        error = self._count(item, name, limit)
        if error is None:
            return item
        # The refusal is attached to the record, which may be stored and read again.
        kept = record._replace(refusal=Refusal(STEP, error.code, *error.fields[0]))
        return Refused(kept, error, STEP, item.query_id if isinstance(item, Ask) else None)

    def _count(self, item: Write | Ask, name: str, limit: int) -> InvalidRecord | None:
        """Count a record. Return the error of a record that is over the limit, or whose key lacks its tenant."""
        record = item.record
        if record.position.topic == self._fair_topic and key_tenant(record.key) != key_tenant(item.owner.record_key):
            problem = f"the tenant has a quota ({name}), but the record's key lacks the tenant: use the key tenant/user"
            return InvalidRecord.of("invalid_event", problem)
        key, second = (record.position.source, item.owner.tenant_id), record.append_ms // _SECOND_MS
        before = self._counts.get(key)
        offset = record.position.offset
        # An offset that is not above the last one belongs to a replay, which is counted from the start of the second.
        continues = before is not None and before.second == second and before.offset < offset
        records = before.records if before is not None and continues else 0
        self._counts[key] = _SecondCount(second, records + 1, offset)
        if records < limit:
            return None
        excess = f"the tenant sent more in this second than {name} allows for one partition ({limit:,})"
        return OverQuota(name, f"{excess}: send the record later, or raise the limit (recallflow quota set)")


class UserLimits(NamedTuple):
    """The quotas in force for one record; None for no limit."""

    memories: int | None = None
    text_bytes: int | None = None
    edges: int | None = None

    @classmethod
    def of(cls, decisions: ControlHistory, tenant_id: str, record: Record) -> "UserLimits":
        if not decisions.names(tenant_id, "quota"):
            return NO_LIMITS
        names = MEMORIES_PER_USER, BYTES_PER_USER, EDGES_PER_USER
        return cls(*(quota(decisions, tenant_id, name, record.append_ms) for name in names))

    def raise_if_full(self, totals: OwnerCounts, text: str) -> None:
        """Raise OverQuota if the user may not have another memory with this text."""
        if self.memories is not None and totals.memories >= self.memories:
            problem = f"the user has {totals.memories:,} memories, and {MEMORIES_PER_USER} allows {self.memories:,}"
            raise OverQuota(MEMORIES_PER_USER, f"{problem}: {_REMEDY}")
        self.check_text(totals, text)

    def check_text(self, totals: OwnerCounts, text: str, before: str | None = None) -> None:
        """Raise OverQuota if the user has no room for a text, unless it replaces a longer one, `before`."""
        if self.text_bytes is None or (before is not None and len(text.encode()) < len(before.encode())):
            return
        needed_bytes = totals.text_bytes + len(text.encode())
        if needed_bytes > self.text_bytes:
            problem = f"all versions of the user's texts would take {needed_bytes:,} bytes, and {BYTES_PER_USER} allows"
            raise OverQuota(BYTES_PER_USER, f"{problem} {self.text_bytes:,}: {_REMEDY}", "content")


NO_LIMITS = UserLimits()
