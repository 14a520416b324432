"""Faults of a service, over real HTTP: the struck task fails alone."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from recallflow.connectors.llm import Endpoint, Policy, load_embedding_service, load_language_model
from recallflow.events import EnrichmentResult
from recallflow.llm import Task
from recallflow.operators.enrichment.enrich import Thresholds, enrich
from recallflow.operators.enrichment.results import LACKS
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
        "source": {"kind": "memory", "name": "m1"}, "type": "caused_by", "target": {"kind": "memory", "name": "m2"},
        "weight": 1, "confidence": 0.9, "evidence": "I moved", "expires_at": None,
    }  # fmt: skip
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
    "embed": "memory.embedding", "classify": "graph.edges", "extract": "graph.edges",
    "summarise_category": "category.summary", "facts": "memory", "categorise": "memory.update",
}  # fmt: skip


def test_without_fault_every_task_finds_something(server: LlmServer) -> None:
    result = enriched(server)
    assert (result.failures, result.refused) == ([], {})
    assert [event["type"] for event in result.events] == [*EVENTS.values()]
    assert (result.calls, server.calls.total()) == (5, 6)
    assert result.prompt_tokens > 0 < result.embedding_tokens


STRUCK: list[tuple[Task, Fault]] = [
    *(
        (task, Fault(kind, task=task))
        for task in ("facts", "classify")
        for kind in ("status", "cut", "cut_midway", "not_json", "invalid_json", "off_schema", "length")
    ),
    *(("extract", Fault("status", task="extract", status=status)) for status in (400, 401, 404, 429, 500, 503)),
    *(
        ("embed", Fault(kind, task="embed"))
        for kind in ("status", "wrong_dimension", "nan", "too_few", "cut", "not_json")
    ),
    ("facts", Fault("refusal", task="facts")),
]  # fmt: skip


@pytest.mark.parametrize(("struck", "fault"), STRUCK, ids=lambda one: getattr(one, "kind", one))
def test_a_struck_task_fails_alone(server: LlmServer, struck: Task, fault: Fault) -> None:
    server.fail(fault, times=None)
    result = enriched(server)
    assert [(one.task, one.code) for one in result.failures] == [(struck, LACKS[struck].code)]
    assert [event["type"] for event in result.events] == [kind for task, kind in EVENTS.items() if task != struck]
    assert not any(word in result.failures[0].detail for word in ("Porto", "Lisbon", "key", "data"))
