"""Several models about one question: what is asked at the same time, what one after the other, and what waits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recallflow.errors import ModelError
from recallflow.operators import work
from recallflow.operators.answers.models import Models, Within
from recallflow.operators.recall import moment
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers
from tests.unit.operators.models import Language, Remote, Service, letters
from tests.unit.operators.test_reranking import Fake

MakeEvent = Callable[..., dict[str, Any]]
Open = Callable[..., Harness]

DAY_MS = 86_400_000
SAID = [f"the crate number {n} is stored in shelf {n % 7}" for n in range(40)]
QUESTION = "Which crate is in which shelf?"


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def service(remote: Remote) -> Service:
    return remote.service


@pytest.fixture
def language() -> Language:
    return Language(
        select_categories={"categories": ["work"]}, check_sufficiency={"sufficient": False}, rewrite={"questions": []}
    )


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def open_engine(tmp_path: Path, remote: Remote, language: Language, fake: Fake) -> Iterator[Open]:
    """With all three; `reranks`: whether there is a reranker."""
    with ExitStack() as stack:

        def opened(folder: str = "state", *, reranks: bool = False, timeout_s: float = 60.0, **chosen: Any) -> Harness:
            reranker = Within(fake, timeout_s) if reranks else None
            models = Models(Within(language, timeout_s), Within(remote.service, timeout_s), reranker)
            engine = Harness(tmp_path / folder, remote, models=stack.enter_context(models), **chosen)
            stack.callback(engine.stop)
            return engine

        yield opened


@pytest.fixture
def told(make_event: MakeEvent) -> list[dict[str, Any]]:
    return [
        make_event("memory", n, id=f"m{n}", content=text, embedding=letters([text])[0].tolist(), category="work")
        for n, text in enumerate(SAID)
    ]


def ask(make_event: MakeEvent, **fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": QUESTION, "k": 4} | fields)


def ids(response: dict[str, Any]) -> list[str]:
    return [memory["id"] for memory in response["memories"]]


def codes(response: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in response["warnings"]]


# ── the vector of a question ──────────────────────────────────────────────────────────────────────────────────────


def test_a_question_waits_for_its_vector_and_the_next_one_has_it(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, service: Service
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    both = engine.run(QUERIES, ask(make_event, id="first"), ask(make_event, id="quick", mode="recency"))
    assert [answer["query_id"] for answer in answers(both)] == ["quick"]
    (first,) = answers(engine.complete())
    (again,) = answers(engine.run(QUERIES, ask(make_event, id="again")))
    assert service.asked == [[QUESTION]]
    assert (first["status"], ids(first)) == ("ok", ids(again))
    assert first["routing_info"]["models"] == {
        "embed": {"model": "letters", "took_ms": pytest.approx(0, abs=60_000), "tokens": 5}
    }
    assert [found["routing_info"]["cache_hits"]["question_vector"] for found in (first, again)] == [0, 1]


@pytest.mark.parametrize("failure", [ModelError("rate_limited", "later"), ValueError("quoting: my card is 1234")])
def test_without_its_vector_a_question_is_compared_by_words(
    open_engine: Open,
    told: list[dict[str, Any]],
    make_event: MakeEvent,
    service: Service,
    failure: Exception,
) -> None:
    service.failure = failure
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    assert (codes(response), len(response["memories"])) == (["embedding_fallback"], 4)
    assert "1234" not in str(response)
    assert response["routing_info"]["models"]["embed"]["failure"] in ("rate_limited", "unavailable")


def test_a_service_that_hangs_is_given_up(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, service: Service
) -> None:
    service.hangs = True
    engine = open_engine(timeout_s=0.0, one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    assert codes(response) == ["embedding_fallback"]
    assert response["routing_info"]["models"]["embed"]["failure"] == "timeout"


@pytest.mark.parametrize("kind", ["graph.trace", "graph.facts"])
def test_whoever_ranks_by_a_question_waits_for_its_vector(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, service: Service, kind: str
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    assert answers(engine.run(QUERIES, make_event(kind, DAY_MS, query=QUESTION))) == []
    (response,) = answers(engine.complete())
    assert (response["status"], service.asked) == ("ok", [[QUESTION]])


def test_facts_of_entities_ask_no_model(open_engine: Open, make_event: MakeEvent, service: Service) -> None:
    engine = open_engine()
    assert answers(engine.run(QUERIES, make_event("graph.facts", DAY_MS, query=QUESTION, entities=["Ana"])))
    assert service.asked == []


# ── together ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_vector_and_all_a_language_model_is_asked_are_asked_at_once(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, service: Service, language: Language
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    asked = ask(make_event, select_categories=True, check_sufficiency=True, rewrite=True)
    assert answers(engine.run(QUERIES, asked)) == []
    (response,) = answers(engine.complete())
    assert (language.tasks, len(service.asked)) == (["check_sufficiency", "rewrite", "select_categories"], 1)
    assert response["routing_info"]["models"].keys() == {*language.tasks, "embed"}
    assert [*response["context"]["summaries"]] == ["work"]


def test_a_reranker_reads_candidates_once_the_vector_is_there(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, service: Service, fake: Fake
) -> None:
    engine = open_engine(reranks=True)
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, select_categories=True))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.complete())
    assert (len(service.asked), len(fake.given)) == (1, 1)
    assert (response["status"], response["memories"][0]["rerank_score"]) == ("ok", 6)
    assert [*response["context"]["summaries"]] == ["work"]


def test_with_the_vector_at_hand_the_reranker_is_asked_beside_the_language_model(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, fake: Fake, language: Language
) -> None:
    engine = open_engine(reranks=True)
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event))
    engine.complete(1)
    engine.complete(1)
    engine.run(QUERIES, ask(make_event, select_categories=True))
    (response,) = answers(engine.complete(1))
    assert (len(fake.given), language.tasks) == (2, ["select_categories"])
    assert response["memories"][0]["rerank_score"] == 6


def test_one_that_hangs_takes_nothing_from_the_others(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.hangs = {"select_categories"}
    engine = open_engine(timeout_s=0.2, one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, select_categories=True, check_sufficiency=True)))
    assert [warning["detail"].partition(";")[0] for warning in response["warnings"]] == ["select_categories: timeout"]
    assert response["sufficient"] is False


# ── what answers wait for ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_past_of_a_large_owner_is_asked_about_too(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moment, "AT_ONCE", 1)
    monkeypatch.setattr("recallflow.operators.answers.waiting.AT_ONCE", 1)
    engine = open_engine()
    engine.run(MEMORIES, *told)
    past = {"as_of": {"ingestion_time": "1970-01-01T00:00:00.020Z"}}
    engine.run(QUERIES, ask(make_event, select_categories=True, **past))
    assert answers(engine.advance_to_end()) == []
    found = [*engine.complete(), *engine.advance_to_end()]
    (response,) = answers(found)
    assert all(int(memory_id[1:]) <= 20 for memory_id in ids(response))
    assert response["routing_info"]["models"].keys() == {"select_categories", "embed"}


def test_nobody_sees_half_of_an_event_because_a_model_took_its_time(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LOOKED_AT", 10)
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, k=50))
    engine.run(MEMORIES, make_event("memory.forget", DAY_MS, filter={"category": "work"}))
    assert answers(engine.complete()) == []
    (response,) = answers(engine.advance_to_end())
    assert response["memories"] == []
