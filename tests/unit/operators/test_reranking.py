"""Reranking of the best candidates by a second model, and answers without it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from recallflow.llm import FAILURES, OPEN_S
from recallflow.operators.answers import models
from recallflow.operators.answers.models import Models, Within
from recallflow.operators.recall.model_calls import RERANKED_MOST
from recallflow.operators.step import Clocks
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Clock, Reranker

Open = Callable[..., Harness]
Answered = Callable[..., list[dict[str, Any]]]

CRATES = [f"the crate number {n} is stored in shelf {n % 7}" for n in range(40)]
TOLD = [make_event("memory", n, id=f"m{n}", content=text) for n, text in enumerate(CRATES)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reranker() -> Reranker:
    return Reranker()


@pytest.fixture
def open_engine(open_harness: Open, reranker: Reranker, clock: Clock) -> Open:
    def opened(timeout_s: float = 60.0, **chosen: Any) -> Harness:
        return open_harness(models=Models(reranker=Within(reranker, timeout_s), now_s=clock), **chosen)

    return opened


@pytest.fixture
def answered(open_engine: Open) -> Answered:
    """Return the answers to queries on a log of the memories and these, which ends."""
    return lambda *asked, **chosen: answers(open_engine(one_log=True, **chosen).run(MEMORIES, *TOLD, *asked))


def ask(**fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": "Which crate is in which shelf?", "k": 4} | fields)


def test_best_candidates_are_ordered_by_the_reranker(answered: Answered, reranker: Reranker) -> None:
    (response,) = answered(ask())
    (given,) = reranker.given
    assert len(given) == RERANKED_MOST
    assert [memory["rerank_score"] for memory in response["memories"]] == sorted(reranker.scores(given))[:-5:-1]
    assert response["routing_info"]["rerank"] == {"model": "fake", "candidates": RERANKED_MOST, "took_ms": 0.0}
    assert (response["status"], response["computation_tier"], codes(response)) == ("ok", "llm", [])
    assert [memory["rank"] for memory in response["memories"]] == [1, 2, 3, 4]
    assert {memory["why"][0]["code"] for memory in response["memories"]} == {"reranked"}
    assert all(memory["explanation"] for memory in response["memories"])


@pytest.mark.parametrize("mode", ["recency", "episode", "entity_focused", "decayed"])
def test_mode_with_an_order_of_its_own_is_not_reranked(answered: Answered, reranker: Reranker, mode: str) -> None:
    (response,) = answered(ask(mode=mode))
    assert (reranker.given, "rerank" in response["routing_info"]) == ([], False)


def test_query_without_time_for_reranking_skips_it(answered: Answered, reranker: Reranker, clock: Clock) -> None:
    def slow(texts: Sequence[str]) -> Sequence[float]:
        clock.now_s += 0.5
        return [0.0 for _ in texts]

    reranker.scores = slow
    first, second = answered(ask(), ask(sla_target_ms=100), clocks=Clocks(timer=clock, now_ms=lambda: 0))
    assert (first["routing_info"]["stages_ms"]["models"], first["processing_time_ms"]) == (500, 500)
    assert (codes(second), second["status"]) == (["deadline"], "degraded")
    assert len(reranker.given) == 1


@pytest.mark.usefixtures("every_owner_is_large")
def test_past_of_a_large_owner_is_reranked(open_engine: Open) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *TOLD)
    engine.run(QUERIES, ask(as_of={"ingestion_time": "1970-01-01T00:00:00.020Z"}))
    assert answers(engine.advance_to_end()) == []
    engine.complete()
    (response,) = answers(engine.advance_to_end())
    assert response["memories"][0]["rerank_score"] == 6
    assert all(int(memory_id[1:]) <= 20 for memory_id in ids(response))


def crash(_: Sequence[str]) -> Sequence[float]:
    raise OSError("connection refused")


@pytest.mark.parametrize(
    "scores",
    [crash, lambda texts: texts[:1] and [1.0], lambda texts: [float("nan")] * len(texts)],
    ids=["error", "too few", "no numbers"],
)
def test_without_the_reranker_the_answer_is_the_usual_one(
    open_harness: Open, answered: Answered, reranker: Reranker, scores: Callable[[Sequence[str]], Sequence[float]]
) -> None:
    (usual,) = answers(open_harness(one_log=True).run(MEMORIES, *TOLD, ask()))
    reranker.scores = scores
    (response,) = answered(ask())
    assert (response["status"], codes(response)) == ("degraded", ["rerank_failed"])
    assert response["routing_info"]["rerank"]["candidates"] == RERANKED_MOST
    assert response["memories"] == usual["memories"]


def test_hanging_reranker_is_given_up(answered: Answered, reranker: Reranker) -> None:
    reranker.hangs = True
    (response,) = answered(ask(), timeout_s=0.0)
    assert codes(response) == ["rerank_failed"]


def test_repeated_failures_pause_the_reranker(open_engine: Open, reranker: Reranker, clock: Clock) -> None:
    working, reranker.scores = reranker.scores, crash
    engine = open_engine(one_log=True)
    engine.run(MEMORIES, *TOLD, *(ask(id=f"q{n}") for n in range(FAILURES + 2)))
    assert len(reranker.given) == FAILURES
    clock.now_s += OPEN_S
    reranker.scores = working
    (healed,) = answers(engine.run(MEMORIES, ask(id="later")))
    assert (healed["status"], healed["memories"][0]["rerank_score"]) == ("ok", 6)


def test_queries_over_the_concurrency_limit_are_not_reranked(
    open_engine: Open, reranker: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "SCORED_AT_ONCE", 1)
    reranker.hangs = True
    engine = open_engine()
    engine.run(MEMORIES, *TOLD)
    engine.run(QUERIES, *(ask(id=f"q{n}") for n in range(3)))
    assert [codes(response) for response in answers(engine.complete(2))] == [["rerank_failed"]] * 2
    assert len(reranker.given) == 1
