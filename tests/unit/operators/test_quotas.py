"""Quotas of tenants and users: the same records are refused however often a log is read."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.control import DELAY_MS, ControlHistory, Quota, quota
from recallflow.errors import OverQuota
from recallflow.limits import BYTES_PER_USER, EDGES_PER_USER, EVENTS_PER_S, MEMORIES_PER_USER, QUERIES_PER_S
from recallflow.operators.events import Ask, Item, Refused, Write, decode
from recallflow.operators.quotas import Rates
from recallflow.outputs import Output
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.rows import OwnerCounts, OwnerHead
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, letters, receipts

STAMPED = (MEMORIES, QUERIES)


def quotas_of(*limits: tuple[int, str, str, int | None]) -> ControlHistory:
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
    rates = Rates(quotas_of((0, "acme", EVENTS_PER_S, 2)), QUERIES, STAMPED)
    log = [record(n, 10_000 + 250 * n, tenant) for n, tenant in enumerate(["acme"] * 6 + ["other"] * 3)]
    assert refused(judged(rates, *log)) == [2, 3]
    elsewhere = record(0, 10_000)._replace(position=Position(MEMORIES, 1, 0))
    assert refused(judged(rates, elsewhere)) == []


def test_refusal_names_the_quota_and_queries_get_answers() -> None:
    decided = quotas_of((0, "acme", EVENTS_PER_S, 0), (0, "acme", QUERIES_PER_S, 0))
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
    rates = Rates(quotas_of((9_000, "acme", EVENTS_PER_S, 0), (11_000, "acme", EVENTS_PER_S, None)), QUERIES, STAMPED)
    begins, ends = 9_000 + DELAY_MS, 11_000 + DELAY_MS
    log = [record(n, at_ms) for n, at_ms in enumerate((begins - 1, begins, ends - 1, ends))]
    assert refused(judged(rates, *log)) == [1, 2]


def test_records_refused_otherwise_do_not_count() -> None:
    rates = Rates(quotas_of((0, "acme", EVENTS_PER_S, 1)), QUERIES, STAMPED)
    garbage = record(0, 10_000)._replace(value=b'{"type": "message", "tenant_id": "acme"}')
    assert refused(judged(rates, garbage, garbage, record(2, 10_000), record(3, 10_000))) == [3]


@pytest.mark.parametrize("key", ["other/ann", "", "acm"])
def test_a_limited_tenants_query_under_anothers_key_is_refused(key: str) -> None:
    rates = Rates(quotas_of((0, "acme", QUERIES_PER_S, 5)), QUERIES, STAMPED)
    (item,) = judged(rates, record(0, 10_000, topic=QUERIES, key=key))
    assert isinstance(item, Refused)
    assert item.error.code == "invalid_event"
    assert QUERIES_PER_S in str(item.error)
    unlimited = judged(rates, record(0, 10_000, tenant="other", topic=QUERIES, key=key))
    assert isinstance(unlimited[0], Ask)
    memories = Rates(quotas_of((0, "acme", EVENTS_PER_S, 5)), QUERIES, STAMPED)
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
    history, at_ms, records = quotas_of(*limits), 5_000, []
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


BEGIN_MS = 1_000_000
IDS = ("a", "b", "c", "d")


def history(at_ms: int = 0, **limits: int | None) -> ControlHistory:
    found = ControlHistory()
    for name, limit in limits.items():
        found.add(at_ms, Quota(type="quota", tenant_id="acme", name=name, limit=limit))
    return found


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "tenant_id": "acme", "user_id": "ann", **fields}


def memory(memory_id: str, content: str = "x", **fields: Any) -> dict[str, Any]:
    return event("memory", id=memory_id, content=content, **fields)


def edge(source: str, target: str) -> dict[str, Any]:
    return {"source": f"entity:{source}", "target": f"entity:{target}", "type": "knows"}


class Limited(Harness):
    def __init__(self, path: Path, decisions: ControlHistory) -> None:
        super().__init__(path, rules={"decisions": decisions}, append_ms=lambda offset: BEGIN_MS + offset)

    def counts(self) -> OwnerCounts:
        (head,) = self.table(keys.HEAD)
        return OwnerHead.decode(head).counts

    def refused(self, *events: dict[str, Any]) -> list[tuple[str, str]]:
        return [(one.error.code, str(one.error)) for one in letters(self.run(MEMORIES, *events))]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Any]:
    made: list[Limited] = []

    def make(decisions: ControlHistory) -> Limited:
        made.append(Limited(tmp_path / "state", decisions))
        return made[-1]

    yield make
    for one in made:
        one.stop()
    assert verify(tmp_path / "state").problems == []


def test_memory_over_the_limit_is_refused_until_a_forget(limited: Any) -> None:
    state = limited(history(memories_per_user=2))
    ((code, reason),) = state.refused(memory("a"), memory("b"), memory("c"))
    assert code == "over_quota"
    assert MEMORIES_PER_USER in reason
    assert "2" in reason
    assert state.refused(event("memory.forget", memory_id="a")) == []
    assert state.refused(memory("c")) == []
    assert state.counts() == OwnerCounts(2, 2, 0)


def test_bytes_count_all_versions_and_shorter_texts_pass(limited: Any) -> None:
    state = limited(history(bytes_per_user=20))
    assert state.refused(memory("a", "ä" * 5), memory("b", "12345678")) == []
    assert state.counts().text_bytes == 18
    ((code, reason),) = state.refused(event("memory.update", memory_id="b", content="123456789"))
    assert code == "over_quota"
    assert BYTES_PER_USER in reason
    assert state.refused(event("memory.update", memory_id="b", content="1234")) == []
    assert state.counts() == OwnerCounts(2, 22, 0)
    assert len(state.refused(memory("c"))) == 1
    assert state.refused(event("memory.forget", memory_id="b")) == []
    assert state.counts() == OwnerCounts(1, 10, 0)


def test_text_at_the_byte_limit_passes_and_over_is_refused(limited: Any) -> None:
    state = limited(history(bytes_per_user=10))
    assert len(state.refused(memory("a", "ä" * 6))) == 1
    assert state.refused(memory("b", "ä" * 5)) == []
    assert state.counts().text_bytes == 10


def test_given_edges_over_the_limit_refuse_the_event(limited: Any) -> None:
    state = limited(history(edges_per_user=2))
    assert state.refused(event("graph.edges", edges=[edge("Ann", "Bob")])) == []
    ((code, reason),) = state.refused(event("graph.edges", edges=[edge("Ann", "Cid"), edge("Ann", "Dan")]))
    assert code == "over_quota"
    assert EDGES_PER_USER in reason
    assert state.counts().edges == 1
    known_and_new = [edge("Ann", "Bob") | {"weight": 0.5}, edge("Ann", "Cid")]
    assert state.refused(event("graph.edges", edges=known_and_new)) == []
    assert state.counts().edges == 2


def test_a_limit_holds_from_a_moment_after_its_decision_on(limited: Any) -> None:
    state = limited(history(BEGIN_MS + 2, memories_per_user=0))
    assert state.refused(memory("a")) == []
    state.write(MEMORIES, memory("b"), memory("c"))
    assert letters(state.read(MEMORIES, 1, append_ms=BEGIN_MS + 1 + DELAY_MS)) == []
    assert len(letters(state.read(MEMORIES, 1, append_ms=BEGIN_MS + 2 + DELAY_MS))) == 1


def test_stats_report_usage_and_limits(limited: Any) -> None:
    state = limited(history(memories_per_user=5, bytes_per_user=None))
    state.run(MEMORIES, memory("a", "four"), event("graph.edges", edges=[edge("Ann", "Bob")]))
    (answer,) = answers(state.run(QUERIES, event("user.stats")))
    found = answer["stats"]
    assert (found["memories"], found["text_bytes"], found["edges"]) == (1, 4, 1)
    assert found["limits"] == {"memories": 5, "text_bytes": None, "edges": None}


SOME = st.one_of(
    st.builds(memory, st.sampled_from(IDS), st.text("xy", min_size=1, max_size=6)),
    st.builds(
        lambda one, two, text: memory(one, text, relations=[{"source": one, "target": two, "type": "knows"}]),
        st.sampled_from(IDS),
        st.just("z"),
        st.text("xy", min_size=1, max_size=3),
    ),
    st.builds(
        lambda one, text: event("memory.update", memory_id=one, content=text),
        st.sampled_from(IDS),
        st.text("xy", min_size=1, max_size=6),
    ),
    st.builds(lambda one: event("memory.forget", memory_id=one), st.sampled_from(IDS)),
    st.builds(lambda one, two: event("graph.edges", edges=[edge(one, two + "'")]), *[st.sampled_from(IDS)] * 2),
)


@settings(max_examples=share(0.4))
@given(
    events=st.lists(SOME, max_size=25), limits=st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 3)),
    cuts=st.lists(st.integers(1, 6), max_size=8),
)  # fmt: skip
def test_limits_hold_alike_in_any_batches(
    events: list[dict[str, Any]], limits: tuple[int, int, int], cuts: list[int]
) -> None:
    decisions = history(memories_per_user=limits[0], bytes_per_user=limits[1], edges_per_user=limits[2])
    asking = [one | {"receipt": True} for one in events]
    with TemporaryDirectory() as folder:
        whole, cut = Limited(Path(folder, "whole"), decisions), Limited(Path(folder, "cut"), decisions)
        expected = _said(whole.run(MEMORIES, *asking))
        cut.write(MEMORIES, *asking)
        said = []
        for size in cuts:
            said += _said(cut.read(MEMORIES, size))
            cut.restart()
        said += _said(cut.read(MEMORIES))
        assert said == expected
        assert cut.hash() == whole.hash()
        assert cut.table(keys.HEAD) == whole.table(keys.HEAD)
        if cut.table(keys.HEAD):
            counts = cut.counts()
            assert counts.memories <= limits[0]
            assert counts.edges <= limits[2]
        for state in (whole, cut):
            state.stop()
            assert verify(state.path).problems == []


def _said(outputs: list[Output]) -> list[tuple[int, str]]:
    refused = {one.record.position.offset: str(one.error) for one in letters(outputs)}
    done = {int(one["position"].rpartition(":")[2]): one["outcome"] for one in receipts(outputs)}
    return sorted((refused | done).items())
