"""Several models for one query: concurrent and consecutive calls, and waiting."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow.errors import ModelError
from recallflow.operators import large
from recallflow.operators.answers.models import Models, Within
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Language, Remote, Reranker, Service, letters
from tests.unit.operators.test_reranking import CRATES, ask

Open = Callable[..., Harness]

QUESTION = ask()["query"]
VECTORS = letters(CRATES).tolist()
TOLD = [
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
def reranker() -> Reranker:
    return Reranker()


@pytest.fixture
def open_engine(open_harness: Open, remote: Remote, language: Language, reranker: Reranker) -> Open:
    """Open an engine in which the memories are; `reranks`: whether it has a reranker."""

    def opened(*, reranks: bool = False, timeout_s: float = 60.0, **chosen: Any) -> Harness:
        reranking = Within(reranker, timeout_s) if reranks else None
        models = Models(Within(language, timeout_s), Within(remote.service, timeout_s), reranking)
        engine = open_harness(remote, models=models, **chosen)
        engine.run(MEMORIES, *TOLD)
        return engine

    return opened


def test_query_waits_for_its_vector_which_is_cached(open_engine: Open, service: Service) -> None:
    engine = open_engine()
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
        (ModelError("rate_limited", "later"), "rate_limited"),
        (ValueError("quoting: my card is 1234"), "unavailable"),
        (None, "timeout"),
    ],
    ids=["refused", "error", "hangs"],
)
def test_query_without_vector_is_compared_by_words(
    open_engine: Open, service: Service, failure: Exception | None, code: str
) -> None:
    service.failure, service.hangs = failure, failure is None
    engine = open_engine(one_log=True, timeout_s=0.0 if service.hangs else 60.0)
    (response,) = answers(engine.run(MEMORIES, ask()))
    assert (codes(response), len(response["memories"])) == (["embedding_fallback"], 4)
    assert "1234" not in str(response)
    assert response["routing_info"]["models"]["embed"]["failure"] == code


@pytest.mark.parametrize("kind", ["graph.trace", "graph.facts"])
def test_graph_query_ranked_by_a_question_waits_for_its_vector(open_engine: Open, service: Service, kind: str) -> None:
    engine = open_engine()
    assert answers(engine.run(QUERIES, make_event(kind, DAY_MS, query=QUESTION))) == []
    (response,) = answers(engine.complete())
    assert (response["status"], service.asked) == ("ok", [[QUESTION]])


def test_reranker_is_asked_once_the_vector_is_there(open_engine: Open, service: Service, reranker: Reranker) -> None:
    engine = open_engine(reranks=True)
    engine.run(QUERIES, ask(select_categories=True))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.complete())
    assert (len(service.asked), len(reranker.given)) == (1, 1)
    assert (response["status"], response["memories"][0]["rerank_score"]) == ("ok", 6)
    assert [*response["context"]["summaries"]] == ["work"]


def test_parked_query_sees_no_half_of_an_event(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "READ_MAX", 10)
    engine = open_engine()
    engine.run(QUERIES, ask(k=50))
    engine.run(MEMORIES, make_event("memory.forget", DAY_MS, filter={"category": "work"}))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.advance_to_end())
    assert response["memories"] == []
