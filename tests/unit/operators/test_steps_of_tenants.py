"""Queries of one tenant are answered in steps, and those of others between them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recallflow import stepped
from recallflow.stepped import Rotation, SteppedWork, spend
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, make_event

TRACE: dict[str, Any] = {"query": "Who met Ann in Rome?", "traversal_depth": 3}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(stepped, "STEP_COST", 20)
    engine = Harness(tmp_path)
    for tenant in ("noisy", "quiet"):
        told = [
            make_event("memory", n, id=f"m{n}", content=f"Ann met Bo{n} in Rome", tenant_id=tenant,
                       entities=[{"name": "Ann"}, {"name": f"Bo{n}"}, {"name": "Rome"}])
            for n in range(12)
        ]  # fmt: skip
        engine.run(MEMORIES, *told)
    yield engine
    engine.stop()


def ask(engine: Harness, query_type: str, query_id: str, tenant: str = "noisy", **fields: Any) -> list[str]:
    found = engine.run(QUERIES, make_event(query_type, 99, id=query_id, tenant_id=tenant, **fields))
    return [one["query_id"] for one in answers(found)]


@pytest.mark.parametrize(
    ("query_type", "fields"),
    [
        ("graph.trace", TRACE), ("graph.explore", {"whole": True}), ("graph.explore", {"hops": 3}),
        ("graph.facts", {"query": "Who met Ann?"}), ("graph.status", {}),
    ],
)  # fmt: skip
def test_large_query_lets_another_tenant_ahead_and_answers_the_same(
    engine: Harness, monkeypatch: pytest.MonkeyPatch, query_type: str, fields: dict[str, Any]
) -> None:
    assert ask(engine, query_type, "large", **fields) == []
    small = ask(engine, "memory.get", "small", "quiet", memory_id="m1")
    outputs = [] if small else answers(engine.advance())
    assert small or [one["query_id"] for one in outputs] == ["small"]
    (in_steps,) = answers(engine.advance_to_end())
    monkeypatch.setattr(stepped, "STEP_COST", 1_000_000)
    (at_once,) = answers(engine.run(QUERIES, make_event(query_type, 99, id="large", tenant_id="noisy", **fields)))
    assert in_steps["query_id"] == "large"
    for answer in (in_steps, at_once):
        for name in ("processing_time_ms", "applied", "routing_info"):
            answer.pop(name, None)
    assert in_steps == at_once


def test_owner_event_follows_the_answer_begun_before_it(engine: Harness) -> None:
    assert ask(engine, "graph.trace", "t1", **TRACE) == []
    assert ask(engine, "graph.trace", "t2", **TRACE) == []
    forget = make_event("memory.forget", 100, memory_id="m1", tenant_id="noisy")
    assert [one["query_id"] for one in answers(engine.run(MEMORIES, forget))] == ["t1"]
    (second,) = answers(engine.advance_to_end())
    assert second["query_id"] == "t2"
    assert "m1" not in {one["id"] for one in second["graph_trace"]["seeds"]}


def test_new_words_enter_the_index_in_steps_before_later_events(
    engine: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped, "STEP_COST", 2_000)
    texts = [" ".join(f"tea{number}x{n}" for n in range(1_500)) for number in range(6)]
    engine.run(MEMORIES, *(make_event("memory", n, id=f"t{n}", content=text) for n, text in enumerate(texts)))
    recall = make_event("recall", 99, id="first", query="tea1x7", timestamp=99)
    assert answers(engine.run(QUERIES, recall)) == []
    later = make_event("memory", 50, id="later", content="tea1x7")
    (first,) = answers([*engine.run(MEMORIES, later), *engine.advance_to_end()])
    (again,) = answers(engine.run(QUERIES, recall | {"id": "again"}))
    assert first["memories"][0]["id"] == "t1"
    assert "later" not in {memory["id"] for memory in first["memories"]}
    assert "later" in {memory["id"] for memory in again["memories"]}


def test_query_in_steps_is_asked_anew_after_a_kill(engine: Harness) -> None:
    assert ask(engine, "graph.trace", "t1", **TRACE) == []
    assert ask(engine, "graph.trace", "t2", **TRACE) == []
    engine.kill(engine.mark())
    assert sorted(one["query_id"] for one in answers([*engine.advance(), *engine.advance_to_end()])) == ["t1", "t2"]


def test_erased_user_gets_no_answer_of_before(engine: Harness) -> None:
    assert ask(engine, "graph.trace", "t1", **TRACE) == []
    assert ask(engine, "graph.trace", "t2", **TRACE) == []
    outputs = engine.run(MEMORIES, make_event("user.erase", 100, tenant_id="noisy"))
    (later,) = [one for one in answers([*outputs, *engine.advance_to_end()]) if one["query_id"] == "t2"]
    assert later["graph_trace"]["seeds"] == []


def test_stepped_work_pauses_by_cost_and_raises_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepped, "STEP_COST", 10)
    spend(1_000)  # outside of steps it does nothing

    def work(fails: bool) -> str:
        for _ in range(25):
            spend(1)
        if fails:
            raise KeyError("end")
        return "done"

    stepping = SteppedWork(lambda: work(fails=False))
    assert [stepping.step() for _ in range(3)] == [False, False, True]
    assert stepping.outcome == "done"
    failing = SteppedWork(lambda: work(fails=True))
    assert [failing.step(), failing.step()] == [False, False]
    with pytest.raises(KeyError):
        failing.step()


def test_abandoned_work_ends_at_once() -> None:
    ended: list[bool] = []

    def work() -> None:
        try:
            spend(stepped.STEP_COST)
        finally:
            ended.append(True)

    assert not SteppedWork(work).step()
    assert ended


def test_rotation_alternates_tenants_across_partitions() -> None:
    rotation = Rotation()
    for partition in range(3):
        rotation.update(partition, {"noisy", "quiet"} if partition == 2 else {"noisy"})
    turns = [(tenant, at) for _ in range(4) for at in range(3) if (tenant := rotation.take_turn(at)) is not None]
    assert [tenant for tenant, _ in turns][:4] == ["noisy", "quiet", "noisy", "quiet"]
    for partition in range(3):
        rotation.update(partition, set())
    assert [rotation.take_turn(at) for at in range(3)] == [None] * 3
