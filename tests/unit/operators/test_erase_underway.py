"""Erasure during open queries and steps: answers use the state of then, and nothing is lost."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from recallflow.operators import erase, large
from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.graph.quality_gate import ExpansionOutcome, Failure, QualityGates
from recallflow.operators.recall import moment
from recallflow.operators.recall.shared import Shared
from recallflow.outputs import Output
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.index import OwnerIndex
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, ids, make_event, receipts
from tests.unit.operators.models import Reranker
from tests.unit.operators.test_rewriting import TOLD, ask

MakeEngine = Callable[..., Harness]


AGAIN = [make_event("memory", 3 * DAY_MS, id=f"new{n}", content=f"Eva works in Braga {n}") for n in range(len(TOLD))]
ERASE = make_event("user.erase", 2 * DAY_MS)


@pytest.fixture
def make_engine(open_harness: MakeEngine) -> MakeEngine:
    return lambda **models: open_harness(models=Models(**models) if models else None)


def to_end(engine: Harness, outputs: list[Output]) -> list[dict[str, Any]]:
    for _ in range(100):
        if found := answers(outputs):
            return found
        outputs = [*outputs, *(engine.advance() if engine.is_due else engine.complete())]
    raise AssertionError("it is never answered")


def test_question_at_a_model_is_answered_without_erased_memories(make_engine: MakeEngine) -> None:
    reranker = Reranker(lambda _: 1.0)
    reranker.hangs = True
    engine = make_engine(reranker=TimedModel(reranker, 60.0))
    engine.run(MEMORIES, *TOLD)
    for number in range(3):
        asked = ask(id=f"q{number}", rerank=True, k=9)
        assert answers(engine.run(QUERIES, asked)) == []
    reranker.hangs = False
    found = to_end(engine, engine.run(MEMORIES, ERASE))
    assert sorted(one["query_id"] for one in found) == ["q0", "q1", "q2"]
    assert all(not one["memories"] for one in found)
    assert not any(memory["content"] in str(found) for memory in TOLD)
    engine.run(MEMORIES, *AGAIN)
    assert answers(engine.run(QUERIES, ask(id="later", rerank=True))) == []
    (later,) = to_end(engine, [])
    assert later["query_id"] == "later"
    assert {*ids(later)} <= {one["id"] for one in AGAIN}
    assert ids(later)


@pytest.mark.usefixtures("every_owner_is_large")
@pytest.mark.parametrize("steps", [0, 1, 3, None])
def test_past_under_construction_is_dropped(
    make_engine: MakeEngine, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[OwnerIndex] = []

    def build_and_tell(*given: Any) -> OwnerIndex:
        built.append(moment.build(*given))
        return built[-1]

    monkeypatch.setattr(parked_queries, "build", build_and_tell)
    engine = make_engine()
    engine.run(MEMORIES, *TOLD, make_event("memory", 1, user_id="bo", id="b", content="Bo works in Leeds"))
    engine.run(MEMORIES, make_event("memory", 2, user_id="bo", id="b2", content="Bo works in Porto"))
    past = ask(id="past", include_history=True)
    others = ask(id="bos", user_id="bo", include_history=True)
    assert answers(engine.run(QUERIES, past, others)) == []
    taken = 0
    while taken != steps and not built:
        assert answers(engine.advance()) == []
        taken += 1
    found = answers(engine.run(MEMORIES, ERASE) + engine.advance_to_end())
    assert {one["query_id"]: {*ids(one)} for one in found} == {"past": set(), "bos": {"b", "b2"}}


def test_nothing_of_an_erased_user_is_cached(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shared] = []
    of = Shared.of

    def noted(*given: Any) -> Shared:
        made.append(of(*given))
        return made[-1]

    monkeypatch.setattr(Shared, "of", noted)
    engine = make_engine()
    engine.run(MEMORIES, *TOLD, *(one | {"user_id": "bo"} for one in TOLD))
    engine.run(QUERIES, ask(), ask(user_id="bo"))
    gc.collect()  # what is left of earlier versions of the memories
    engine.run(MEMORIES, make_event("user.erase", 2 * DAY_MS, user_id="nobody"))
    held = made[0].candidates.total_bytes
    assert held > 0
    gc.disable()
    try:
        engine.run(MEMORIES, ERASE)
        assert 0 < made[0].candidates.total_bytes < held
        engine.run(MEMORIES, make_event("user.erase", 2 * DAY_MS, user_id="bo"))
        assert made[0].candidates.total_bytes == 0
    finally:
        gc.enable()


def test_erasure_removes_owner_from_gate_failures_and_keeps_figures() -> None:
    gates, ann, bo = QualityGates(), Owner("acme", "prod", "ann"), Owner("acme", "prod", "bo")
    for owner in (ann, bo):
        gates.observe(
            "acme", ExpansionOutcome(1, "failed", None), False, Failure(1, f"of {owner.user_id}", "KeyError", owner)
        )
    figures = gates.observations("acme").figures
    gates.forget([ann, Owner("other", "prod", "ann")])
    assert [one.query_id for one in gates.observations("acme").failures] == ["of bo"]
    assert gates.observations("acme").figures == figures


@pytest.mark.parametrize(("days", "outcome"), [(1, "erased"), (2.5, "unchanged")])
def test_steps_of_an_erased_user_end_and_held_events_follow(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, days: float, outcome: str
) -> None:
    monkeypatch.setattr(large, "READ_MAX", 2)
    monkeypatch.setattr(large, "STEP_WEIGHT", 3)
    test = {"environment": "test"}
    engine = make_engine()
    engine.run(MEMORIES, *(make_event("memory", n, id=f"m{n}", content="tea", **test) for n in range(20)))
    gone = make_event("memory.forget", int(days * DAY_MS), filter={"older_than": 60}, receipt=True, **test)
    late = make_event("memory", 70, id="late", content="tea", receipt=True, **test)
    new = make_event("memory", 3 * DAY_MS, id="new", content="tea", receipt=True, **test)
    assert receipts(engine.run(MEMORIES, gone, late, new)) == []
    assert any(key.startswith(keys.WORK) for key, _ in engine.records())
    erasure = Record(Position(MEMORIES, 1, 0), b"", 2 * DAY_MS)
    told = make_event("user.erase", 2 * DAY_MS, receipt=True)
    engine.write(MEMORIES, told)
    found = receipts(engine.take([erasure._replace(value=engine.lines[MEMORIES][-1])]))
    found += receipts(engine.advance_to_end())
    assert [(one["outcome"], one["memory_id"]) for one in found] == [
        ("erased", None), (outcome, None), ("erased", "late"), ("created", "new"),
    ]  # fmt: skip
    assert not any(key.startswith(keys.WORK) for key, _ in engine.records())
    assert engine.directory.counts == (1, 1)
    assert engine.problems() == []


@pytest.mark.parametrize("killed", [False, True])
def test_user_of_many_environments_is_erased_in_steps(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr(erase, "OWNERS_PER_STEP", 3)
    engine = make_engine()
    engine.run(MEMORIES, make_event("memory", 1, user_id="bo", id="b", content="lantern"))
    without = engine.hash()
    places = [f"place{n}" for n in range(10)]
    engine.run(MEMORIES, *(make_event("memory", 1, id="m", content="walnut", environment=place) for place in places))
    snapshot = engine.mark()
    gone = make_event("user.erase", 2 * DAY_MS, receipt=True)
    late = make_event("memory", DAY_MS, id="late", content="walnut", environment="place3", receipt=True)
    found = receipts(engine.run(MEMORIES, gone, late))
    asked = make_event("recall", 3 * DAY_MS, user_id="bo", query="lantern")
    (response,) = answers(engine.run(QUERIES, asked))
    assert ({*ids(response)}, found) == ({"b"}, [])
    assert 1 < engine.directory.counts.owners < len(places)
    if killed:
        engine.kill(snapshot)
        found += receipts(engine.read(MEMORIES))
    found += receipts(engine.advance_to_end())
    assert [(one["outcome"], one["memory_id"]) for one in found] == [("erased", None), ("erased", "late")]
    assert engine.directory.counts == (1, 1)
    assert engine.hash() == without
    engine.run(MEMORIES, make_event("user.erase", 4 * DAY_MS, user_id="nobody", receipt=True))
    assert engine.problems() == []
