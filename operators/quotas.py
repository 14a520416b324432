"""Quotas: records per second of a tenant, and memories, bytes and edges of a user.

The n-th record of a tenant in one second of one partition, by the log's clock, is refused if n exceeds the quota. A
replay gives the same verdicts if it starts with the first record of a second. Records refused for other reasons do not
count, so an unauthenticated flood uses up no quota. Records of tenants without a limit are not counted."""

from collections.abc import Container
from typing import NamedTuple

from recallflow.control import ControlHistory, quota
from recallflow.errors import FieldProblem, InvalidRecord, OverQuota
from recallflow.limits import BYTES_PER_USER, EDGES_PER_USER, EVENTS_PER_S, MEMORIES_PER_USER, QUERIES_PER_S
from recallflow.operators.events import Ask, Decoded, Refused, Write
from recallflow.owner import key_tenant
from recallflow.records import Record, Refusal
from recallflow.state.rows import OwnerCounts

STEP = "quota"
_SECOND_MS = 1_000


class _Second(NamedTuple):
    """The number of a tenant's records in the second of its latest record, and that record's offset."""

    number: int
    records: int
    offset: int


class Rates:
    """Counters of limited tenants in the current second, by partition and tenant. A partition has one thread."""

    def __init__(self, decisions: ControlHistory, fair_topic: str, stamped: Container[str]) -> None:
        """`fair_topic` is served round robin, by the tenant in its records' keys. `stamped` are the topics with
        LogAppendTime. Records of other topics are not counted, because producers choose their times."""
        self._decisions, self._stamped, self._fair_topic = decisions, stamped, fair_topic
        self._seconds: dict[tuple[str, str], _Second] = {}

    def judge(self, item: Decoded) -> Decoded:
        if isinstance(item, Refused):
            return item
        name = QUERIES_PER_S if isinstance(item, Ask) else EVENTS_PER_S
        record, tenant_id = item.record, item.owner.tenant_id
        limit = quota(self._decisions, tenant_id, name, record.append_ms)
        if limit is None or record.position.topic not in self._stamped:
            return item
        error = self._counted(item, name, limit)
        if error is None:
            return item
        # The refusal is attached to the record, which may be stored and read again.
        kept = record._replace(refusal=Refusal(STEP, error.code, *error.fields[0]))
        return Refused(kept, error, STEP, item.query_id if isinstance(item, Ask) else None)

    def _counted(self, item: Write | Ask, name: str, limit: int) -> InvalidRecord | None:
        """Count a record. Return the error if it is over the limit."""
        record = item.record
        if record.position.topic == self._fair_topic and key_tenant(record.key) != key_tenant(item.owner.record_key):
            problem = (
                f"its tenant has a quota ({name}), but its key does not start with the tenant: use the key tenant/user"
            )
            return InvalidRecord("invalid_event", [FieldProblem("", problem)])
        key, number = (record.position.source, item.owner.tenant_id), record.append_ms // _SECOND_MS
        before = self._seconds.get(key)
        offset = record.position.offset
        # A replayed log is counted again from the start of its second.
        continues = before is not None and before.number == number and before.offset < offset
        records = before.records if before is not None and continues else 0
        self._seconds[key] = _Second(number, records + 1, offset)
        if records < limit:
            return None
        return OverQuota(
            name,
            f"the tenant sent more in this second than {name} allows of one partition ({limit:,}): send it later, or "
            "have the limit raised (recallflow quota set)",
        )


_REMEDY = "forget memories, or have the limit raised (recallflow quota set)"


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
        """Raise OverQuota for another text, unless it is shorter than `before`, which it replaces."""
        if self.text_bytes is None or (before is not None and len(text.encode()) < len(before.encode())):
            return
        wanted = totals.text_bytes + len(text.encode())
        if wanted > self.text_bytes:
            problem = f"the user's texts, with all their versions, would take {wanted:,} bytes"
            allowed = f"and {BYTES_PER_USER} allows {self.text_bytes:,}"
            raise OverQuota(BYTES_PER_USER, f"{problem}, {allowed}: {_REMEDY}", "content")


NO_LIMITS = UserLimits()
