"""Whatever goes wrong with a service, over real HTTP: the task it strikes says so, and the others' results stand."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from recallflow.connectors.llm import Endpoint, Policy, load_embedding_service, load_language_model
from recallflow.enrichment import EnrichmentResult
from recallflow.llm import Task
from recallflow.operators.enrichment.enrich import enrich
from recallflow.operators.enrichment.failures import LACKS
from recallflow.operators.enrichment.plan import Thresholds
from tests.llm_server import Asked, Fault, LlmServer, least
from tests.unit.operators.enrichment.models import asked, memory, request

TASKS: tuple[Task, ...] = ("embed", "classify", "extract", "facts", "categorise", "summarise_category")
LISBON = memory("old", "I live in Lisbon.", "2026-01-01")
PORTO = memory("new", "I moved to Porto.")
ONCE = Policy(attempts=1)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        for task in TASKS:
            running.answer(task, honest)
        yield running


def honest(call: Asked) -> Any:
    """Something is found by every task."""
    verdict = {"memory": "m2", "verdict": "refines", "confidence": 0.9, "evidence": "I moved to Porto"}
    fact = {"message": "m1", "content": "Ann moved to Porto.", "kind": "event", "confidence": 0.9, "entities": []}
    relation = {
        "source": {"kind": "memory", "name": "m1"},
        "type": "caused_by",
        "target": {"kind": "memory", "name": "m2"},
        "weight": 1,
        "confidence": 0.9,
        "evidence": "I moved",
        "expires_at": None,
    }
    said = {
        "classify": {"verdicts": [verdict]},
        "extract": {"relations": [relation]},
        "facts": {"facts": [fact | {"evidence": "I moved", "valid_from": None, "valid_to": None}]},
        "categorise": {"assigned": [{"memory": "m1", "category": "homes", "confidence": 0.9}]},
        "summarise_category": {"summary": "Ann moved to Porto."},
    }
    return said.get(call.task, least(call.schema))


def enriched(server: LlmServer) -> EnrichmentResult:
    async def ask() -> list[EnrichmentResult]:
        at = Endpoint(server.url, "key")
        model, vectors = load_language_model("m", at, ONCE), load_embedding_service("v", server.dimension, at, ONCE)
        try:
            return await enrich(asked(wanted), model, vectors, Thresholds(), {"homes": ""})
        finally:
            await model.close()
            await vectors.close()

    wanted = request(TASKS, PORTO, similar=[LISBON], recent=[LISBON], category="homes")
    (result,) = asyncio.run(ask())
    return result


EVENTS = {
    "embed": "memory.embedding",
    "classify": "graph.edges",
    "extract": "graph.edges",
    "summarise_category": "category.summary",
    "facts": "memory",
    "categorise": "memory.update",
}


def test_without_fault_every_task_finds_something(server: LlmServer) -> None:
    result = enriched(server)
    assert (result.failures, result.refused) == ([], {})
    assert [event["type"] for event in result.events] == [*EVENTS.values()]
    assert (result.calls, server.calls.total()) == (5, 6)
    assert result.prompt_tokens > 0 < result.embedding_tokens


@pytest.mark.parametrize("kind", ["status", "cut", "cut_midway", "not_json", "invalid_json", "off_schema", "length"])
@pytest.mark.parametrize("struck", ["facts", "classify"])
def test_a_task_that_is_struck_fails_alone(server: LlmServer, struck: Task, kind: Any) -> None:
    check_only(server, struck, Fault(kind, task=struck))


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_failed_call_fails_only_its_task(server: LlmServer, status: int) -> None:
    check_only(server, "extract", Fault("status", task="extract", status=status))


@pytest.mark.parametrize("kind", ["status", "wrong_dimension", "nan", "too_few", "cut", "not_json"])
def test_missing_vectors_leave_the_model_answer(server: LlmServer, kind: Any) -> None:
    check_only(server, "embed", Fault(kind, task="embed"))


def test_a_refusal_is_a_failure_of_its_task(server: LlmServer) -> None:
    check_only(server, "facts", Fault("refusal", task="facts"))


@pytest.mark.parametrize("odd", [None, [], [1.0] * 8, "???"], ids=str)
def test_one_odd_vector_costs_its_memory_alone(server: LlmServer, odd: object) -> None:
    server.oddities["odd"] = odd
    texts = ["odd", "one", "two"]

    async def ask() -> list[EnrichmentResult]:
        vectors = load_embedding_service("v", server.dimension, Endpoint(server.url), ONCE)
        try:
            wanted = [request(("embed",), memory(text, text)) for text in texts]
            alone = await enrich(asked(wanted[0]), None, vectors, Thresholds(), {})
            return [*alone, *await enrich(asked(*wanted), None, vectors, Thresholds(), {})]
        finally:
            await vectors.close()

    found = asyncio.run(ask())
    assert [[one.code for one in result.failures] for result in found] == [
        ["EMBEDDING_FAILED"],
        ["EMBEDDING_FAILED"],
        [],
        [],
    ]
    assert [len(result.events) for result in found] == [0, 0, 1, 1]


def check_only(server: LlmServer, struck: Task, fault: Fault) -> None:
    server.fail(fault, times=None)
    result = enriched(server)
    assert [(one.task, one.code) for one in result.failures] == [(struck, LACKS[struck].code)]
    assert [event["type"] for event in result.events] == [kind for task, kind in EVENTS.items() if task != struck]
    assert not any(word in result.failures[0].detail for word in ("Porto", "Lisbon", "key", "data"))
