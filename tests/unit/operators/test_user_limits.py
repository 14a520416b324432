"""Limits of one user: events beyond them are refused with a reason, and freeing space always works."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.control import SETTLED_MS, ControlHistory, Quota
from recallflow.limits import BYTES_PER_USER, EDGES_PER_USER, MEMORIES_PER_USER
from recallflow.outputs import Output
from recallflow.state import keys
from recallflow.state.rows import Held, OwnerHead
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, letters, receipts

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
    """A state whose tenant has quotas, from the first record on."""

    def __init__(self, path: Path, decisions: ControlHistory) -> None:
        super().__init__(path, rules={"decisions": decisions}, append_ms=lambda offset: BEGIN_MS + offset)

    def held(self) -> Held:
        (head,) = self.table(keys.HEAD)
        return OwnerHead.decode(head).held

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
    assert state.held() == Held(2, 2, 0)


def test_limit_applies_per_user_and_tenant(limited: Any) -> None:
    state = limited(history(memories_per_user=1))
    bob, other = {"user_id": "bob"}, {"tenant_id": "other"}
    assert state.refused(memory("a"), memory("a", **bob), memory("a", **other), memory("b", **other)) == []
    assert len(state.refused(memory("b"), memory("b", **bob))) == 2


def test_bytes_count_all_versions_and_shorter_texts_pass(limited: Any) -> None:
    state = limited(history(bytes_per_user=20))
    assert state.refused(memory("a", "ä" * 5), memory("b", "12345678")) == []
    assert state.held().text_bytes == 18
    ((code, reason),) = state.refused(event("memory.update", memory_id="b", content="123456789"))
    assert code == "over_quota"
    assert BYTES_PER_USER in reason
    assert state.refused(event("memory.update", memory_id="b", content="1234")) == []
    assert state.held() == Held(2, 22, 0)
    assert len(state.refused(memory("c"))) == 1
    assert state.refused(event("memory.forget", memory_id="b")) == []
    assert state.held() == Held(1, 10, 0)


def test_text_at_the_byte_limit_passes_and_over_is_refused(limited: Any) -> None:
    state = limited(history(bytes_per_user=10))
    assert len(state.refused(memory("a", "ä" * 6))) == 1
    assert state.refused(memory("b", "ä" * 5)) == []
    assert state.held().text_bytes == 10


def test_given_edges_over_the_limit_refuse_the_event(limited: Any) -> None:
    state = limited(history(edges_per_user=2))
    assert state.refused(event("graph.edges", edges=[edge("Ann", "Bob")])) == []
    ((code, reason),) = state.refused(event("graph.edges", edges=[edge("Ann", "Cid"), edge("Ann", "Dan")]))
    assert code == "over_quota"
    assert EDGES_PER_USER in reason
    assert state.held().edges == 1
    known_and_new = [edge("Ann", "Bob") | {"weight": 0.5}, edge("Ann", "Cid")]
    assert state.refused(event("graph.edges", edges=known_and_new)) == []
    assert state.held().edges == 2


def test_relations_over_the_limit_are_dropped_and_memory_kept(limited: Any) -> None:
    state = limited(history(edges_per_user=1))
    related = [{"source": "Ann", "target": name, "type": "knows"} for name in ("Bob", "Cid")]
    assert state.refused(memory("a", relations=related)) == []
    assert state.held() == Held(1, 1, 1)
    assert state.refused(event("memory.forget", memory_id="a")) == []
    assert state.held() == Held()


def test_a_limit_holds_from_a_moment_after_its_decision_on(limited: Any) -> None:
    state = limited(history(BEGIN_MS + 2, memories_per_user=0))
    assert state.refused(memory("a")) == []
    state.write(MEMORIES, memory("b"), memory("c"))
    assert letters(state.read(MEMORIES, 1, append_ms=BEGIN_MS + 1 + SETTLED_MS)) == []
    assert len(letters(state.read(MEMORIES, 1, append_ms=BEGIN_MS + 2 + SETTLED_MS))) == 1


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
    events=st.lists(SOME, max_size=25),
    limits=st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 3)),
    cuts=st.lists(st.integers(1, 6), max_size=8),
)
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
            held = cut.held()
            assert held.memories <= limits[0]
            assert held.edges <= limits[2]
        for state in (whole, cut):
            state.stop()
            assert verify(state.path).problems == []


def _said(outputs: list[Output]) -> list[tuple[int, str]]:
    refused = {one.record.position.offset: str(one.error) for one in letters(outputs)}
    done = {int(one["position"].rpartition(":")[2]): one["outcome"] for one in receipts(outputs)}
    return sorted((refused | done).items())
