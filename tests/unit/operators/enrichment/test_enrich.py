"""All that is wanted of a request is asked for at the same time, each part fails alone, and results are the same for
the same answers."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from recallflow.errors import EmbedderError, ModelError
from recallflow.llm import Embedded, Prompt, Task
from recallflow.operators.enrichment.enrich import Thresholds, enrich
from recallflow.operators.enrichment.results import LACKS, RELATIONSHIPS
from tests.unit.operators.enrichment.models import Scripted, Vectors, asked, memory, parsed, request, results

PORTO = memory("new", "I moved to Porto.")
LISBON = memory("old", "I live in Lisbon.", "2026-01-01")
SUMMARISED = {"category": "travel", "episode_id": "ep_1"}
ALL: tuple[Task, ...] = (
    "embed", "classify", "extract", "resolve", "facts", "categorise", "summarise_category", "summarise_episode",
)  # fmt: skip
NOTHING: dict[str, Any] = {
    "classify": {"verdicts": []}, "extract": {"relations": []}, "resolve": {"verdicts": []}, "facts": {"facts": []},
    "categorise": {"assigned": []}, "summarise_category": {"summary": "Ann moved to Porto."},
    "summarise_episode": {"summary": "Ann moved to Porto."},
}  # fmt: skip
WANTED = request(
    ALL, PORTO, similar=[LISBON], recent=[LISBON], entities=[{"key": "entity:lisboa", "name": "Lisboa"}], **SUMMARISED
)
CATEGORIES = {"travel": ""}


def test_every_task_that_is_asked_for_has_its_code() -> None:
    assert {*LACKS} == {*ALL}
    assert {*LACKS} >= RELATIONSHIPS
    assert LACKS["classify"].code == "GRAPH_LLM_CLASSIFICATION_FAILED"
    assert LACKS["extract"].code == LACKS["resolve"].code == "GRAPH_LLM_SEMANTIC_EXTRACTION_FAILED"


@pytest.mark.parametrize("failing", [task for task in ALL if task != "embed"])
def test_each_task_fails_alone(failing: Task) -> None:
    model = Scripted(**NOTHING | {failing: ModelError("timeout", "no answer in 30 s")})
    (result,) = results([WANTED], model, Vectors(), CATEGORIES)
    assert [(one.task, one.code) for one in result.failures] == [(failing, LACKS[failing].code)]
    assert result.failures[0].detail == f"{LACKS[failing].text} (timeout: no answer in 30 s)"
    expected = {"memory.embedding": 1, "category.summary": 1, "episode.summary": 1}
    expected.pop(failing.replace("summarise_", "") + ".summary", None)
    assert [event["type"] for event in result.events] == [*expected]
    assert (result.calls, result.prompt_tokens, result.completion_tokens) == (6, 600, 66)
    assert result.embedding_tokens == len(PORTO.content)


@pytest.mark.parametrize("error", [ModelError("rejected", "no"), EmbedderError("5 floats, not 3")])
def test_a_text_that_cannot_be_embedded_costs_the_others_nothing(error: ModelError | EmbedderError) -> None:
    service = Vectors(bad=["Bad"], error=error)
    wanted = [request(["embed"], memory("a", "Good", name=None)), request(["embed"], memory("b", "y"), text="Bad")]
    good, bad = results(wanted, None, service)
    assert service.calls == [["Good", "Bad"], ["Good"], ["Bad"]]
    assert ([event["memory_id"] for event in good.events], good.failures) == (["a"], [])
    assert (bad.events, [one.code for one in bad.failures]) == ([], ["EMBEDDING_FAILED"])


def test_an_embedding_service_that_is_away_is_asked_once() -> None:
    service = Vectors(error=ModelError("unavailable", "no connection"))
    found = results([request(["embed"], PORTO), request(["embed"], LISBON)], None, service)
    assert len(service.calls) == 1
    assert [[one.code for one in result.failures] for result in found] == [["EMBEDDING_FAILED"]] * 2


def test_invalid_event_is_not_sent() -> None:
    class Broken(Vectors):
        async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
            embedded = await super().embed(tenant_id, texts)
            return embedded._replace(vectors=embedded.vectors * np.float32(np.nan))

    (result,) = results([request(["embed"], PORTO)], None, Broken())
    assert (result.events, result.refused, result.failures) == ([], {"unfit": 1}, [])


@pytest.mark.parametrize("task", ALL)
def test_without_a_model_the_result_says_so(task: Task) -> None:
    wanted = WANTED.model_copy(update={"tasks": [task]})
    (result,) = results([wanted], None, None, CATEGORIES)
    assert [(one.task, one.code) for one in result.failures] == [(task, LACKS[task].code)]
    assert (result.events, result.calls) == ([], 0)


def test_result_names_owner_request_and_source() -> None:
    (result,) = results([request(["classify"], PORTO, environment="test")], Scripted())
    assert result.owner == ("acme", "test", "ann")
    assert (result.request, result.source) == ("enrichment.requests:0:40", "memory.events:0:7")
    assert (result.memory_id, result.timestamp) == ("new", 7)


def test_events_have_the_owner_and_a_deterministic_id() -> None:
    wanted = WANTED.model_copy(update={"environment": "test"})
    (result,) = results([wanted], Scripted(**NOTHING), Vectors(), CATEGORIES)
    name = sha256(b"enrichment.requests:0:40").hexdigest()[:32]
    assert [event["id"] for event in result.events] == [f"{name}-{n}" for n in range(3)]
    assert {event.owner for event in parsed(result)} == {WANTED.owner._replace(environment="test")}


def test_answer_that_breaks_our_code_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    model = Scripted(**NOTHING | {"extract": {"relations": [{"evidence": "secret"}]}})
    (result,) = results([WANTED], model, Vectors(), CATEGORIES)
    assert [(one.task, one.code) for one in result.failures] == [("extract", LACKS["extract"].code)]
    assert "KeyError" in result.failures[0].detail
    assert (result.calls, len(result.events)) == (7, 3)
    assert "secret" not in caplog.text


def test_a_failure_of_another_kind_stops() -> None:
    def fail(prompt: Prompt) -> Any:
        raise MemoryError(prompt.task)

    with pytest.raises(MemoryError):
        asyncio.run(enrich(asked(request(["extract"], PORTO)), Scripted(extract=fail), None, Thresholds(), {}))
