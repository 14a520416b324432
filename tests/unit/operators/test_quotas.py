"""How many records a second are taken of a tenant: the same ones, however and how often the log is read."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import SETTLED_MS, ControlHistory, Quota, quota
from recallflow.errors import OverQuota
from recallflow.limits import EVENTS_PER_S, QUERIES_PER_S
from recallflow.operators.events import Ask, Item, Refused, Write, decode
from recallflow.operators.quotas import Rates
from recallflow.records import Position, Record

MEMORIES, QUERIES = "memories", "queries"
STAMPED = (MEMORIES, QUERIES)


def limited(*limits: tuple[int, str, str, int | None]) -> ControlHistory:
    history = ControlHistory()
    for at_ms, tenant_id, name, limit in limits:
        history.add(at_ms, Quota(type="quota", tenant_id=tenant_id, name=name, limit=limit))
    return history


def record(offset: int, append_ms: int, tenant: str = "acme", topic: str = MEMORIES, key: str | None = None) -> Record:
    said = {"type": "message", "content": "x"} if topic == MEMORIES else {"type": "recall", "query": "x"}
    value = orjson.dumps({"tenant_id": tenant, "user_id": "ann", **said})
    named = f"{tenant}/ann" if key is None else key
    return Record(Position(topic, 0, offset), value, append_ms, named.encode())


def judged(rates: Rates, *records: Record) -> list[Item]:
    return [rates.judge(decode(one)) for one in records]


def refused(items: list[Item]) -> list[int]:
    found = [one for one in items if isinstance(one, Refused) and one.error.code == "over_quota"]
    return [one.record.position.offset for one in found]


def test_quota_bounds_events_per_second_tenant_and_partition() -> None:
    rates = Rates(limited((0, "acme", EVENTS_PER_S, 2)), QUERIES, STAMPED)
    log = [record(n, 10_000 + 250 * n, tenant) for n, tenant in enumerate(["acme"] * 6 + ["other"] * 3)]
    assert refused(judged(rates, *log)) == [2, 3]
    elsewhere = record(0, 10_000)._replace(position=Position(MEMORIES, 1, 0))
    assert refused(judged(rates, elsewhere)) == []


def test_a_second_that_is_read_again_is_counted_anew() -> None:
    rates = Rates(limited((0, "acme", EVENTS_PER_S, 4)), QUERIES, STAMPED)
    log = [record(n, 10_000 + n) for n in range(6)]
    assert refused(judged(rates, *log[:3])) == []
    assert refused(judged(rates, *log)) == [4, 5]


def test_refusal_names_the_quota_and_queries_get_answers() -> None:
    decided = limited((0, "acme", EVENTS_PER_S, 0), (0, "acme", QUERIES_PER_S, 0))
    event, query = judged(Rates(decided, QUERIES, STAMPED), record(0, 10_000), record(0, 10_000, topic=QUERIES))
    assert isinstance(event, Refused)
    assert isinstance(event.error, OverQuota)
    assert event.error.quota == EVENTS_PER_S
    assert EVENTS_PER_S in str(event.error)
    assert event.query_id is None
    assert isinstance(query, Refused)
    assert QUERIES_PER_S in str(query.error)
    assert query.query_id == "queries:0:0"


def test_quota_applies_to_records_one_second_later() -> None:
    rates = Rates(limited((9_000, "acme", EVENTS_PER_S, 0), (11_000, "acme", EVENTS_PER_S, None)), QUERIES, STAMPED)
    begins, ends = 9_000 + SETTLED_MS, 11_000 + SETTLED_MS
    log = [record(n, at_ms) for n, at_ms in enumerate((begins - 1, begins, ends - 1, ends))]
    assert refused(judged(rates, *log)) == [1, 2]


def test_records_refused_otherwise_do_not_count() -> None:
    rates = Rates(limited((0, "acme", EVENTS_PER_S, 1)), QUERIES, STAMPED)
    garbage = record(0, 10_000)._replace(value=b'{"type": "message", "tenant_id": "acme"}')
    assert refused(judged(rates, garbage, garbage, record(2, 10_000), record(3, 10_000))) == [3]


def test_producers_times_are_not_counted_by() -> None:
    rates = Rates(limited((0, "acme", EVENTS_PER_S, 0)), QUERIES, (QUERIES,))
    assert refused(judged(rates, record(0, 10_000))) == []


@pytest.mark.parametrize("key", ["other/ann", "", "acm"])
def test_a_limited_tenants_query_under_anothers_key_is_refused(key: str) -> None:
    rates = Rates(limited((0, "acme", QUERIES_PER_S, 5)), QUERIES, STAMPED)
    (item,) = judged(rates, record(0, 10_000, topic=QUERIES, key=key))
    assert isinstance(item, Refused)
    assert item.error.code == "invalid_event"
    assert QUERIES_PER_S in str(item.error)
    unlimited = judged(rates, record(0, 10_000, tenant="other", topic=QUERIES, key=key))
    assert isinstance(unlimited[0], Ask)
    memories = Rates(limited((0, "acme", EVENTS_PER_S, 5)), QUERIES, STAMPED)
    assert isinstance(judged(memories, record(0, 10_000, key=key))[0], Write)


LOG = st.lists(st.tuples(st.sampled_from(("acme", "b", "c")), st.integers(0, 700)), max_size=40)
LIMITS = st.lists(
    st.tuples(st.integers(0, 6_000), st.sampled_from(("acme", "b")), st.just(EVENTS_PER_S), st.integers(0, 3)),
    max_size=4,
)


@given(log=LOG, limits=LIMITS, starts=st.lists(st.integers(0, 40), max_size=5))
def test_restart_within_a_second_judges_the_same(
    log: list[tuple[str, int]], limits: list[Any], starts: list[int]
) -> None:
    history, at_ms, records = limited(*limits), 5_000, []
    for offset, (tenant, later_ms) in enumerate(log):
        at_ms += later_ms
        records.append(record(offset, at_ms, tenant))
    expected = refused(judged(Rates(history, QUERIES, STAMPED), *records))
    for start in (one for one in starts if one < len(records)):
        second = records[start].append_ms // 1_000
        again = [one for one in records if one.append_ms // 1_000 >= second]
        found = refused(judged(Rates(history, QUERIES, STAMPED), *again))
        assert found == [offset for offset in expected if offset >= again[0].position.offset]
    assert expected == [one.position.offset for one in records if _is_over(one, records, history)]


def _is_over(one: Record, log: list[Record], history: ControlHistory) -> bool:
    """Whether so many of its tenant's records came before it in its second, as a limit held for them."""

    def limit(other: Record) -> int | None:
        return quota(history, tenant_of(other), EVENTS_PER_S, other.append_ms)

    own = limit(one)
    before = [
        other
        for other in log[: one.position.offset]
        if tenant_of(other) == tenant_of(one) and other.append_ms // 1_000 == one.append_ms // 1_000
    ]
    return own is not None and sum(limit(other) is not None for other in before) >= own


def tenant_of(one: Record) -> str:
    return (one.key or b"").decode().partition("/")[0]
