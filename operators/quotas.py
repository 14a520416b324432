"""How many records of a tenant a second are taken: quotas of events and of queries.

The n-th record of a tenant in one second of one partition, by the clock of the log, is refused where n is above the
quota. Whoever reads the log again judges the same, as long as they begin with a second's first record, and each
tenant's records come in their order. Records that are refused for another reason do not count: a flood that nobody
signed spends no tenant's quota. Nor do those of a tenant without a limit: they leave nothing to remember.
"""

from collections.abc import Container
from typing import NamedTuple

from recallflow.decisions import History, quota
from recallflow.errors import FieldProblem, InvalidRecord, OverQuota
from recallflow.operators.events import Ask, Decoded, Refused, Write
from recallflow.owner import key_tenant
from recallflow.quota_names import EVENTS_PER_S, QUERIES_PER_S
from recallflow.records import Refusal

STEP = "quota"
_SECOND_MS = 1_000


class _Second(NamedTuple):
    """How many records a tenant has in the second that its latest one is of, and that one's offset."""

    number: int
    records: int
    offset: int


class Rates:
    """The records of limited tenants in the running second, by partition and tenant. Each partition is one worker's, so
    that no two threads share an entry."""

    def __init__(self, decisions: History, fair_topic: str, stamped: Container[str]) -> None:
        """`fair_topic`: where the records of different tenants come in turn, by the tenant that their key names.
        `stamped`: topics whose records have the log's time; those of others are not counted, as producers say when they
        are of."""
        self._decisions = decisions
        self._stamped = stamped
        self._fair_topic = fair_topic
        self._seconds: dict[tuple[str, str], _Second] = {}

    def judge(self, item: Decoded) -> Decoded:
        """The item, or its refusal."""
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
        # It stays refused where it waits, and is read again from what was kept.
        kept = record._replace(refusal=Refusal(STEP, error.code, *error.fields[0]))
        return Refused(kept, error, STEP, item.query_id if isinstance(item, Ask) else None)

    def _counted(self, item: Write | Ask, name: str, limit: int) -> InvalidRecord | None:
        """Counts a record. Why it is refused, if it is."""
        record = item.record
        if record.position.topic == self._fair_topic and key_tenant(record.key) != key_tenant(item.owner.record_key):
            problem = f"its tenant has a quota ({name}), and its key does not begin with the tenant: key it tenant/user"
            return InvalidRecord("invalid_event", [FieldProblem("", problem)])
        place, number = (record.position.source, item.owner.tenant_id), record.append_ms // _SECOND_MS
        before = self._seconds.get(place)
        offset = record.position.offset
        # A log that comes again is counted anew: a partition that is taken is read from its second's first record on.
        goes_on = before is not None and before.number == number and before.offset < offset
        records = before.records if before is not None and goes_on else 0
        self._seconds[place] = _Second(number, records + 1, offset)
        if records < limit:
            return None
        return OverQuota(
            name,
            f"the tenant sent more in this second than {name} allows of one partition ({limit:,}): send it later, or "
            "have the limit raised (recallflow quota set)",
        )
