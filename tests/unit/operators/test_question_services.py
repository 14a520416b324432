"""Services of a query: vectors of the question, reranking of the best candidates, and answers without them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from recallflow.errors import ModelError
from recallflow.llm import FAILURES, OPEN_S
from recallflow.operators import large
from recallflow.operators.answers import models
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.recall.model_calls import RERANKED_MOST
from recallflow.operators.step import Clocks
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Clock, Language, Remote, Reranker, Service, letters

Open = Callable[..., Harness]
Answered = Callable[..., list[dict[str, Any]]]

CRATES = [f"the crate number {n} is stored in shelf {n % 7}" for n in range(40)]
TOLD = [make_event("memory", n, id=f"m{n}", content=text) for n, text in enumerate(CRATES)]


@pytest.fixture
def reranker() -> Reranker:
    return Reranker()


@pytest.fixture
def open_engine(open_harness: Open, reranker: Reranker, clock: Clock) -> Open:
    def opened(timeout_s: float = 60.0, **chosen: Any) -> Harness:
        return open_harness(models=Models(reranker=TimedModel(reranker, timeout_s), now_s=clock), **chosen)

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
    assert "refused" not in str(response["warnings"])  # the text of a foreign error may quote a memory, or a key


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
    monkeypatch.setattr(models, "RERANKED_QUERIES_MAX", 1)
    reranker.hangs = True
    engine = open_engine()
    engine.run(MEMORIES, *TOLD)
    engine.run(QUERIES, *(ask(id=f"q{n}") for n in range(3)))
    assert [codes(response) for response in answers(engine.complete(2))] == [["rerank_failed"]] * 2
    assert len(reranker.given) == 1


QUESTION = ask()["query"]
VECTORS = letters(CRATES).tolist()
EMBEDDED = [
    make_event("memory", n, id=f"m{n}", content=text, embedding=VECTORS[n], category="work")
    for n, text in enumerate(CRATES)
]


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def service(remote: Remote) -> Service:
    return remote.service


@pytest.fixture
def language() -> Language:
    selected = {"categories": ["work"]}
    return Language(select_categories=selected, check_sufficiency={"sufficient": False}, rewrite={"questions": []})


@pytest.fixture
def open_services(open_harness: Open, remote: Remote, language: Language, reranker: Reranker) -> Open:
    """Open an engine in which the memories are; `reranks`: whether it has a reranker."""

    def opened(*, reranks: bool = False, timeout_s: float = 60.0, **chosen: Any) -> Harness:
        reranking = TimedModel(reranker, timeout_s) if reranks else None
        models = Models(TimedModel(language, timeout_s), TimedModel(remote.service, timeout_s), reranking)
        engine = open_harness(remote, models=models, **chosen)
        engine.run(MEMORIES, *EMBEDDED)
        return engine

    return opened


def test_query_waits_for_its_vector_which_is_cached(open_services: Open, service: Service) -> None:
    engine = open_services()
    both = engine.run(QUERIES, ask(id="first"), ask(id="quick", mode="recency"))
    assert [answer["query_id"] for answer in answers(both)] == ["quick"]
    (first,) = answers(engine.complete())
    (again,) = answers(engine.run(QUERIES, ask(id="again")))
    assert service.asked == [[QUESTION]]
    assert (first["status"], ids(first)) == ("ok", ids(again))
    told = {"model": "letters", "took_ms": pytest.approx(0, abs=60_000), "tokens": 5}
    assert first["routing_info"]["models"] == {"embed": told}
    assert [found["routing_info"]["cache_hits"]["question_vector"] for found in (first, again)] == [0, 1]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelError("rate_limited", "later"), "rate_limited"), (ValueError("quoting: my card is 1234"), "unavailable"),
        (None, "timeout"),
    ],
    ids=["refused", "error", "hangs"],
)  # fmt: skip
def test_query_without_vector_is_compared_by_words(
    open_services: Open, service: Service, failure: Exception | None, code: str
) -> None:
    service.failure, service.hangs = failure, failure is None
    engine = open_services(one_log=True, timeout_s=0.0 if service.hangs else 60.0)
    (response,) = answers(engine.run(MEMORIES, ask()))
    assert (codes(response), len(response["memories"])) == (["embedding_fallback"], 4)
    assert "1234" not in str(response)
    assert response["routing_info"]["models"]["embed"]["failure"] == code


@pytest.mark.parametrize("kind", ["graph.trace", "graph.facts"])
def test_graph_query_ranked_by_a_question_waits_for_its_vector(
    open_services: Open, service: Service, kind: str
) -> None:
    engine = open_services()
    assert answers(engine.run(QUERIES, make_event(kind, DAY_MS, query=QUESTION))) == []
    (response,) = answers(engine.complete())
    assert (response["status"], service.asked) == ("ok", [[QUESTION]])


def test_reranker_is_asked_once_the_vector_is_there(open_services: Open, service: Service, reranker: Reranker) -> None:
    engine = open_services(reranks=True)
    engine.run(QUERIES, ask(select_categories=True))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.complete())
    assert (len(service.asked), len(reranker.given)) == (1, 1)
    assert (response["status"], response["memories"][0]["rerank_score"]) == ("ok", 6)
    assert [*response["context"]["summaries"]] == ["work"]


def test_parked_query_sees_no_half_of_an_event(open_services: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "READ_MAX", 10)
    engine = open_services()
    engine.run(QUERIES, ask(k=50))
    engine.run(MEMORIES, make_event("memory.forget", DAY_MS, filter={"category": "work"}))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.advance_to_end())
    assert response["memories"] == []
