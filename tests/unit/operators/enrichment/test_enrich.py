"""Enrichment tasks run at once, fail alone, and give valid, bounded, reproducible events."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError, ModelError
from recallflow.events import EnrichmentRequest, EnrichmentResult, ShownEntity
from recallflow.llm import Completion, Cost, Embeddings, Prompt, Task
from recallflow.operators.enrichment.enrich import Plan, Thresholds, enrich
from recallflow.operators.enrichment.results import CLAIMS_MAX, MISSING_RESULTS, REFUSAL_REASONS, RELATIONSHIPS
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
TRAVEL = {"travel": ""}


def test_every_task_that_is_asked_for_has_its_code() -> None:
    assert {*MISSING_RESULTS} == {*ALL} >= RELATIONSHIPS
    assert MISSING_RESULTS["classify"][0] == "GRAPH_LLM_CLASSIFICATION_FAILED"
    assert MISSING_RESULTS["extract"][0] == MISSING_RESULTS["resolve"][0] == "GRAPH_LLM_SEMANTIC_EXTRACTION_FAILED"


@pytest.mark.parametrize("failing", [task for task in ALL if task != "embed"])
def test_each_task_fails_alone(failing: Task) -> None:
    model = Scripted(**NOTHING | {failing: ModelError("timeout", "no answer in 30 s")})
    (result,) = results([WANTED], model, Vectors(), TRAVEL)
    code, effect = MISSING_RESULTS[failing]
    assert [(one.task, one.code) for one in result.failures] == [(failing, code)]
    assert result.failures[0].detail == f"{effect} (timeout: no answer in 30 s)"
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
        async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
            embedded = await super().embed(tenant_id, texts)
            return embedded._replace(vectors=embedded.vectors * np.float32(np.nan))

    (result,) = results([request(["embed"], PORTO)], None, Broken())
    assert (result.events, result.refused, result.failures) == ([], {"unfit": 1}, [])


@pytest.mark.parametrize("task", ALL)
def test_without_a_model_the_result_says_so(task: Task) -> None:
    wanted = WANTED.model_copy(update={"tasks": [task]})
    (result,) = results([wanted], None, None, TRAVEL)
    assert [(one.task, one.code) for one in result.failures] == [(task, MISSING_RESULTS[task][0])]
    assert (result.events, result.calls) == ([], 0)


def test_answer_that_breaks_our_code_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    model = Scripted(**NOTHING | {"extract": {"relations": [{"evidence": "secret"}]}})
    (result,) = results([WANTED], model, Vectors(), TRAVEL)
    assert [(one.task, one.code) for one in result.failures] == [("extract", MISSING_RESULTS["extract"][0])]
    assert "KeyError" in result.failures[0].detail
    assert (result.calls, len(result.events)) == (7, 3)
    assert "secret" not in caplog.text


def test_a_failure_of_another_kind_stops() -> None:
    def fail(prompt: Prompt) -> Any:
        raise MemoryError(prompt.task)

    with pytest.raises(MemoryError):
        asyncio.run(enrich(asked(request(["extract"], PORTO)), Scripted(extract=fail), None, Thresholds(), {}))


RESULT_BYTES = 900_000
TASKS = ("classify", "extract", "resolve", "facts", "categorise", "summarise_category", "summarise_episode")
CATEGORIES = {"travel": "trips", "food": ""}
SIMILAR = [memory("id-2", "Ann lives in Lisbon.", "2026-01-01"), memory("id-3", "Ann has 2 dogs.", "2026-06-01")]
RECENT = [memory("id-4", "Tea is dear.", "2026-05-01"), memory("id-5", "It rains at Acme.", "2026-05-02")]
KNOWN = [ShownEntity(key="entity:ana silva", name="Ana Silva", told_by="Ana Silva sings.")]
TEXTS = ["I moved to Porto with Annie, and prefer tea to coffee.", "We meet Bob on 3 June at 9:40."]
REQUESTS = [
    request(
        TASKS, memory(f"id-{number}", text), similar=SIMILAR, recent=RECENT, entities=KNOWN, category="travel",
        episode_id="ep_1",
    )
    for number, text in enumerate(TEXTS)
]  # fmt: skip
SHOWN = {f"id-{number}" for number in range(6)}
# What an answer gets right, nearly right, or takes from where it should not.
WORDS = [
    *(f"{prefix}{number}" for prefix in "menc" for number in range(1, 5)), *sorted(SHOWN), *TEXTS, "moved to Porto",
    "MOVED  to\nporto", "with Annie", "We meet Bob", "tea", "coffee", "Annie", "memory", "entity", "condition",
    "time:morning", "memory:id-2", "tag:time", "travel", "secrets", "Ann moved to Porto with Annie.",
    "Ann meets Bob on 3 June.", "Ann knows Mallory.", "2026-06-03", "2026-02-30", "0000", "", "x" * 2_000, "\x00",
]  # fmt: skip


def values(schema: Any) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object":
            return st.fixed_dictionaries({name: values(one) for name, one in schema["properties"].items()})
        case "array":
            return st.lists(values(schema["items"]), max_size=12)
        case "number":
            return st.sampled_from([0, 0.65, 0.9, 0.9, 1]) | st.floats(allow_nan=False, allow_infinity=False)
        case "string":
            return st.sampled_from(WORDS) | st.text(max_size=30)
    assert schema["type"] == ["string", "null"]
    return st.none() | st.sampled_from(WORDS)


STEPS = Plan(REQUESTS, Thresholds(), CATEGORIES).calls()


def run(answers: list[Any]) -> list[EnrichmentResult]:
    said = iter(answers)

    class Answers(Scripted):
        async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:  # noqa: ARG002
            return Completion(next(said), Cost(1, 100, 11))

    return asyncio.run(enrich(asked(*REQUESTS), Answers(), Vectors(), Thresholds(), CATEGORIES))


def ids_in(value: Any, field: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from ids_in(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from ids_in(one, field)
    elif field == "memory_id" or (field in ("source", "target") and str(value).startswith("memory:")):
        yield str(value).removeprefix("memory:")


def flat(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def quotes(answers: tuple[Any, ...]) -> list[int]:
    quoted = [0, 0]
    for step, answer in zip(STEPS, answers, strict=True):
        for claim in [one for said in answer.values() if isinstance(said, list) for one in said]:
            number = int(claim["message"][1:]) - 1 if claim.get("message") in ("m1", "m2") else step.requests[0]
            if "evidence" in claim and flat(claim["evidence"]) and flat(claim["evidence"]) in flat(TEXTS[number]):
                quoted[number] += 1
    return quoted


@given(st.tuples(*(values(step.prompt.schema) for step in STEPS)))
def test_any_answer_gives_valid_reproducible_events_about_shown_texts(answers: tuple[Any, ...]) -> None:
    found, quoted = run([*answers]), quotes(answers)
    for number, result in enumerate(found):
        assert result.failures == []
        assert {*result.refused} <= {*REFUSAL_REASONS}
        assert len(result.model_dump_json()) < RESULT_BYTES
        events = parsed(result)
        assert {event.owner for event in events} <= {REQUESTS[0].owner}
        assert len({event.id for event in events}) == len(events)
        assert {*ids_in(result.events)} <= SHOWN
        for event in result.events:
            made = event["derived_from"]
            own = made["memory_id"] == f"id-{number}"
            assert own or event["type"] in ("category.summary", "episode.summary")
            assert (made["source"], made["model"]) == ("memory.events:0:7", "scripted")
        bearing = [event for event in result.events if event["type"] in ("graph.edges", "memory")]
        assert len(bearing) <= quoted[number]
        assert not any("Mallory" in event.get("content", "") for event in bearing)
    assert [one.model_dump_json() for one in run([*answers])] == [one.model_dump_json() for one in found]


def test_right_answers_are_kept() -> None:
    said: dict[str, Any] = {
        "classify": {"verdicts": [{"memory": "m2", "verdict": "refines", "confidence": 0.9, "evidence": "I moved"}]},
        "extract": {"relations": []},
        "resolve": {"verdicts": [{"name": "n1", "entity": "e1", "verdict": "same", "confidence": 0.9, "evidence": ""}]},
        "facts": {"facts": []},
        "categorise": {"assigned": [{"memory": "m2", "category": "food", "confidence": 0.9}]},
        "summarise_category": {"summary": "Ann moved to Porto."},
        "summarise_episode": {"summary": "Ann meets Bob on 3 June at 9:40."},
    }
    first, second = results(REQUESTS, Scripted(**said), None, CATEGORIES)
    assert [event["type"] for event in first.events] == ["graph.edges", "category.summary"]
    assert first.refused == {"no_evidence": 1, "not_in_texts": 1}
    assert [event["type"] for event in second.events] == ["episode.summary", "memory.update"]
    assert second.refused == {"no_evidence": 2, "not_in_texts": 1}


WIDE = "\U0001d56b"  # four bytes


class Wide(Vectors):
    dimension = 8_192

    async def embed(self, tenant_id: str, texts: Any) -> Embeddings:  # noqa: ARG002
        rows: Matrix = np.full((len(texts), 8_192), -0.123456789, np.float32)
        return Embeddings(rows, Cost(1, 8_191, 0))


def largest(number: int, task_count: int = 16) -> EnrichmentRequest:
    """A request as large as one can be, or larger."""
    many = [memory(f"{n:03}{WIDE * 125}", f"{WIDE * 8_000}", name=WIDE * 512) for n in range(300)]
    about = memory(f"{number:03}{WIDE * 125}", "abc " + WIDE * 8_000, name=WIDE * 512)
    known = [ShownEntity(key=f"entity:{n}", name=f"{n}{WIDE * 500}", told_by=WIDE * 8_000) for n in range(task_count)]
    fields = {"category": WIDE * 512, "episode_id": WIDE * 128, "project_id": WIDE * 512, "session_id": WIDE * 128}
    tasks = ["embed", *TASKS]
    return request(tasks, about, *many, similar=many, recent=many, entities=known, source=WIDE * 512, **fields)


@pytest.mark.parametrize("count", [1, 8])
def test_largest_result_fits_a_topic_and_largest_prompt_a_model(count: int) -> None:
    full = "".join(chr(ord("a") + n) for n in range(20))

    def claims(prompt: Prompt) -> dict[str, Any]:
        claim = {"confidence": 1, "weight": 1, "evidence": "abc", "expires_at": "9999-01-01", "verdict": "refines"}
        memories = [f"m{n}" for n in range(1, 60)]
        ends = {"source": {"kind": "memory", "name": "m1"}, "type": "caused_by"}
        said: dict[str, dict[str, Any]] = {
            "classify": {"verdicts": [claim | {"memory": one} for one in memories]},
            "extract": {"relations": [claim | ends | {"target": {"kind": "memory", "name": one}} for one in memories]},
            "facts": {
                "facts": [
                    claim
                    | {
                        "message": one, "content": f"{chr(96 + int(one[1:]) % 26)}{letter} " + WIDE * 480,
                        "kind": "fact", "entities": [],
                    }
                    | {"valid_from": None, "valid_to": "9999-01-01"}
                    for one in memories
                    for letter in full
                ]
            },
            "categorise": {"assigned": [{"memory": one, "category": "food", "confidence": 1} for one in memories]},
        }  # fmt: skip
        return said.get(prompt.task, {"summary": WIDE * 1_200, "verdicts": []})

    model = Scripted(**dict.fromkeys(TASKS, claims))
    found = results([largest(n) for n in range(count)], model, Wide(), CATEGORIES)
    for result in found:
        assert result.failures == []
        assert len(result.events) == 1 + 5 + 20 + 10 + 1 + 2
        size = len(orjson.dumps(result.model_dump(mode="json")))
        assert 200_000 < size < RESULT_BYTES
    assert max(len(one.user) for one in model.asked) < 130_000
    assert max(one.max_tokens for one in model.asked) <= 8_000


CATEGORISED = {"memory": "m1", "category": "food", "confidence": 1}
FACT = {"message": "m1", "content": "Ann moved.", "kind": "fact", "confidence": 1, "evidence": "I moved"}
FACT |= {"entities": [], "valid_from": None, "valid_to": None}


@pytest.mark.parametrize(
    ("task", "answer", "last"), [("categorise", "assigned", CATEGORISED), ("facts", "facts", FACT)], ids=["one", "many"]
)
@pytest.mark.parametrize("ahead", [CLAIMS_MAX - 1, CLAIMS_MAX, 10_000])
def test_only_the_first_claims_of_an_answer_count(task: str, answer: str, last: dict[str, Any], ahead: int) -> None:
    wrong = last | {"confidence": 0} | ({"memory": "m99"} if "memory" in last else {})
    wanted = REQUESTS[0].model_copy(update={"tasks": [task]})
    (result,) = results([wanted], Scripted(**{task: {answer: [*[wrong] * ahead, last]}}), None, CATEGORIES)
    assert len(result.events) == (ahead < CLAIMS_MAX)
    assert result.refused.pop("too_many", 0) == max(0, ahead + 1 - CLAIMS_MAX)
    assert sum(result.refused.values()) == min(ahead, CLAIMS_MAX)
