"""Smaller questions of a query are answered in steps. An event of the owner leaves out the remaining ones."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow import stepped
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.recall import words
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Language
from tests.unit.operators.test_rewriting import PARTS, SAID, TOLD, ask


@pytest.fixture
def engine(open_harness: Callable[..., Harness]) -> Harness:
    opened = open_harness(models=Models(TimedModel(Language(rewrite={"questions": PARTS}), 60.0)))
    opened.run(MEMORIES, *TOLD)
    return opened


def begin(engine: Harness, monkeypatch: pytest.MonkeyPatch, query: dict[str, Any]) -> None:
    assert answers(engine.run(QUERIES, query)) == []
    monkeypatch.setattr(stepped, "STEP_COST", 20)
    monkeypatch.setattr(words, "MEMORIES_PER_READ", 1)
    assert answers(engine.complete()) == []


def steps_to_end(engine: Harness) -> tuple[int, list[dict[str, Any]]]:
    count, found = 0, list[dict[str, Any]]()
    while engine.is_due:
        found += answers(engine.advance())
        count += 1
    return count, found


def test_answer_in_steps_equals_the_answer_at_once(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.run(QUERIES, ask(rewrite=True, k=4))
    (at_once,) = answers(engine.complete())
    begin(engine, monkeypatch, ask(rewrite=True, k=4))
    count, (response,) = steps_to_end(engine)
    assert count > len(PARTS)
    assert (ids(response), response["status"]) == (ids(at_once), "ok")
    assert response["routing_info"]["rewritten"] == PARTS


@pytest.mark.parametrize("step", range(4))
def test_event_leaves_out_smaller_questions(engine: Harness, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    begin(engine, monkeypatch, ask(rewrite=True, k=len(SAID)))
    for _ in range(step):
        engine.advance()
    (response,) = answers(engine.run(MEMORIES, make_event("memory.forget", DAY_MS, memory_id="works")))
    rewritten = response["routing_info"].get("rewritten", [])
    assert rewritten == PARTS[: len(rewritten)] != PARTS
    assert (codes(response), response["status"]) == (["llm_failed"], "degraded")
    assert (response["applied"], "works" in ids(response)) == ([f"memories:0:{len(SAID) - 1}"], True)
    assert not engine.is_due


def test_smaller_questions_survive_a_kill(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(engine, monkeypatch, ask(id="q", rewrite=True))
    engine.advance()
    snapshot = engine.mark()
    assert len(snapshot.unfinished) == 1
    engine.kill(snapshot)
    asked_again = answers(engine.advance())
    found = [*asked_again, *answers(engine.complete()), *steps_to_end(engine)[1]]
    assert [response["query_id"] for response in found] == ["q"]
    assert engine.mark().unfinished == []
