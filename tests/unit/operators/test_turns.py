"""Smaller questions of a large owner: each has a turn, others are answered in between; the answer is of one state."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow.operators import large
from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import Models, Within
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Language
from tests.unit.operators.test_rewriting import PARTS, SAID, TOLD, ask

TURNS = len(PARTS) + 1  # one for each smaller question, and one to answer


pytestmark = pytest.mark.usefixtures("every_owner_is_large")


@pytest.fixture
def engine(open_harness: Callable[..., Harness]) -> Harness:
    opened = open_harness(models=Models(Within(Language(rewrite={"questions": PARTS}), 60.0)))
    opened.run(MEMORIES, *TOLD)
    return opened


def begin(engine: Harness, query: dict[str, Any]) -> None:
    assert answers(engine.run(QUERIES, query)) == []
    assert answers(engine.complete()) == []


def turns_to_end(engine: Harness) -> tuple[int, list[dict[str, Any]]]:
    count, found = 0, list[dict[str, Any]]()
    while engine.is_due:
        found += answers(engine.advance())
        count += 1
    return count, found


def test_each_smaller_question_has_a_turn(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(engine, ask(id="large", rewrite=True, k=4))
    count, (response,) = turns_to_end(engine)
    assert count == TURNS
    monkeypatch.setattr(parked_queries, "AT_ONCE", 1_000)
    engine.run(QUERIES, ask(rewrite=True, k=4))
    (at_once,) = answers(engine.complete())
    assert (ids(response), response["status"]) == (ids(at_once), "ok")
    assert response["routing_info"]["rewritten"] == PARTS
    assert "turns" in response["routing_info"]["stages_ms"]


@pytest.mark.parametrize("turn", range(TURNS))
def test_memory_forgotten_between_turns_is_not_answered(engine: Harness, turn: int) -> None:
    begin(engine, ask(rewrite=True, k=len(SAID) - 1))
    for _ in range(turn):
        engine.advance()
    between = answers(engine.run(MEMORIES, make_event("memory.forget", DAY_MS, memory_id="works")))
    count, after = turns_to_end(engine)
    (response,) = between + after
    assert "works" not in ids(response)
    assert response["applied"] == [f"memories:0:{len(SAID)}"]
    assert response["routing_info"]["rewritten"] == PARTS[:-1]
    assert (codes(response), response["status"]) == (["llm_failed"], "degraded")
    assert count == TURNS - 1


def test_often_written_owner_is_answered_in_as_many_turns(engine: Harness) -> None:
    begin(engine, ask(rewrite=True, k=9))
    taken, found = 0, list[dict[str, Any]]()
    while not found and taken < 100:
        said = make_event("memory", DAY_MS, id=f"more{taken}", content="Rui was born in Faro or near it")
        found = answers(engine.run(MEMORIES, said))
        taken += 1
    (response,) = found
    assert taken == len(PARTS)
    assert (codes(response), "rewritten" in response["routing_info"]) == (["llm_failed"], False)
    assert {f"more{n}" for n in range(taken)} <= {*ids(response)}
    assert not engine.is_due


def test_no_turn_sees_a_partly_applied_event(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "READ_MAX", 2)
    begin(engine, ask(rewrite=True, k=9))
    engine.advance()
    everything = make_event("memory.forget", DAY_MS, filter={"older_than": DAY_MS})
    assert answers(engine.run(MEMORIES, everything)) == []
    _, (response,) = turns_to_end(engine)
    assert response["memories"] == []


@pytest.mark.parametrize("turn", range(TURNS))
def test_question_between_turns_survives_a_kill(engine: Harness, turn: int) -> None:
    begin(engine, ask(id="q", rewrite=True))
    for _ in range(turn):
        engine.advance()
    snapshot = engine.mark()
    assert len(snapshot.unfinished) == 1
    engine.kill(snapshot)
    asked_again = answers(engine.advance())
    found = [*asked_again, *answers(engine.complete()), *turns_to_end(engine)[1]]
    assert [response["query_id"] for response in found] == ["q"]
    assert engine.mark().unfinished == []


def test_failing_smaller_question_leaves_the_query(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ValueError("a private text")

    begin(engine, ask(rewrite=True))
    monkeypatch.setattr(Answerer, "answer_subquery", staticmethod(failing))
    _, (response,) = turns_to_end(engine)
    assert (codes(response), len(response["memories"])) == (["llm_failed"], 3)
