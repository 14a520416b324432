"""The conversion of requests to results: the plan of model calls, and their concurrent execution.

Facts and categories of many messages can be found in one call, which pays for instructions and schema once.
Relationships are classified one memory per call: each memory needs its own neighbours in the prompt, and verdicts on
other pairs would influence the answer. A failed call does not affect other calls."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError, InvalidRecord, ModelError
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.fields import written_time
from recallflow.llm import ONE_TO_BLAME, EmbeddingService, LanguageModel, Spent, Task
from recallflow.operators.enrichment.facts_and_summaries import categorise, facts, summarise_category, summarise_episode
from recallflow.operators.enrichment.prompts import CHARACTERS
from recallflow.operators.enrichment.relationships import classify, extract, resolve
from recallflow.operators.enrichment.results import (
    AnswerClaims,
    Draft,
    ModelCall,
    PositionedRequest,
    TaskResult,
    failure,
    result,
)
from recallflow.operators.guard import once

BATCH_MAX = 16  # messages per call; the answers for more would be truncated
BATCH_CHARACTERS = 24_000  # of all messages of a call
_BATCHED: tuple[Task, ...] = ("facts", "categorise")


class Thresholds(NamedTuple):
    """The least confidence of relationships and resolved entities, and of other results."""

    relationship_confidence: float = 0.70
    semantic_confidence: float = 0.60


def plan(
    requests: Sequence[EnrichmentRequest], thresholds: Thresholds, categories: Mapping[str, str]
) -> list[ModelCall]:
    """Return the calls for the requests of one owner and session, in a deterministic order."""
    steps = [
        step
        for number, request in enumerate(requests)
        for task in request.tasks
        if (step := _of_one(task, number, request, thresholds)) is not None
    ]
    for task in _BATCHED:
        for numbers in _batches(task, requests):
            steps += _of_many(task, numbers, requests, thresholds, categories)
    return steps


def alone(
    step: ModelCall, requests: Sequence[EnrichmentRequest], thresholds: Thresholds, categories: Mapping[str, str]
) -> list[ModelCall]:
    """Return one call per request in place of a call for several."""
    task = step.prompt.task
    return [one for number in step.requests for one in _of_many(task, [number], requests, thresholds, categories)]


def _of_one(task: Task, number: int, request: EnrichmentRequest, thresholds: Thresholds) -> ModelCall | None:
    match task:
        case "classify":
            return classify(number, request, thresholds.relationship_confidence)
        case "extract":
            return extract(number, request, thresholds.semantic_confidence)
        case "resolve":
            return resolve(number, request, thresholds.relationship_confidence)
        case "summarise_category":
            return summarise_category(number, request)
        case "summarise_episode":
            return summarise_episode(number, request)
    return None


def _of_many(
    task: Task,
    numbers: Sequence[int],
    requests: Sequence[EnrichmentRequest],
    thresholds: Thresholds,
    categories: Mapping[str, str],
) -> list[ModelCall]:
    chosen = [requests[number] for number in numbers]
    if task == "facts":
        return [facts(numbers, chosen, thresholds.semantic_confidence)]
    return [categorise(numbers, chosen, categories, thresholds.semantic_confidence)] if categories else []


def _batches(task: Task, requests: Sequence[EnrichmentRequest]) -> Iterator[list[int]]:
    """Yield the numbers of the requests for a task, in groups of one call."""
    batch, room = list[int](), BATCH_CHARACTERS
    for number, request in enumerate(requests):
        if task not in request.tasks:
            continue
        size = min(len(request.memories[0].content), CHARACTERS)
        if batch and (size > room or len(batch) == BATCH_MAX):
            yield batch
            batch, room = [], BATCH_CHARACTERS
        batch.append(number)
        room -= size
    if batch:
        yield batch


_NO_COST = Spent()


async def enrich(
    asked: Sequence[PositionedRequest],
    model: LanguageModel | None,
    embeddings: EmbeddingService | None,
    thresholds: Thresholds,
    categories: Mapping[str, str],
) -> list[EnrichmentResult]:
    """Return the result of each request. All requests have the same owner and session. `categories` maps the tenant's
    category names to descriptions."""
    work = _Work(asked, model, embeddings, thresholds, categories)
    steps = plan([one.request for one in asked], thresholds, categories)
    wanting = [number for number, one in enumerate(asked) if "embed" in one.request.tasks]
    parts = await asyncio.gather(work.embed(wanting), *(work.ask(step) for step in steps))
    return [
        result(one, [part for group in parts for part in group if part.number == number])
        for number, one in enumerate(asked)
    ]


class _Work:
    """The model calls of a group of requests."""

    def __init__(
        self,
        asked: Sequence[PositionedRequest],
        model: LanguageModel | None,
        embeddings: EmbeddingService | None,
        thresholds: Thresholds,
        categories: Mapping[str, str],
    ) -> None:
        self._asked, self._model, self._embeddings = asked, model, embeddings
        self._thresholds, self._categories = thresholds, categories

    async def ask(self, step: ModelCall) -> list[TaskResult]:
        """Call a language model, and return the results for each request of the call."""
        if self._model is None:
            return self._failed(step.prompt.task, step.requests, "no language model is configured")
        first = self._asked[step.requests[0]]
        try:
            completion = await self._model.complete(first.request.tenant_id, step.prompt)
        except ModelError as error:
            if error.code in ONE_TO_BLAME and len(step.requests) > 1:
                requests = [one.request for one in self._asked]
                each = alone(step, requests, self._thresholds, self._categories)
                return [part for group in await asyncio.gather(*map(self.ask, each)) for part in group]
            return self._failed(step.prompt.task, step.requests, str(error), Spent(*error.spent))
        try:
            found = once(step.prompt.task, first.position, step.read, completion.value)
        except InvalidRecord as error:
            return self._failed(step.prompt.task, step.requests, str(error), completion.spent)
        return [
            TaskResult(number, step.prompt.task, one, spent, self._model.name, step.prompt.version)
            for number, one, spent in zip(step.requests, found, _shared(completion.spent, len(found)), strict=True)
        ]

    async def embed(self, numbers: Sequence[int]) -> list[TaskResult]:
        """Embed the memories of these requests."""
        if not numbers:
            return []
        if self._embeddings is None:
            return self._failed("embed", numbers, "no embedding service is configured")
        requests = [self._asked[number].request for number in numbers]
        texts = [one.memories[0].content if one.text is None else one.text for one in requests]
        try:
            embedded = await self._embeddings.embed(requests[0].tenant_id, texts)
        except (ModelError, EmbedderError) as error:
            if len(numbers) > 1 and (isinstance(error, EmbedderError) or error.code in ONE_TO_BLAME):
                each = await asyncio.gather(*(self.embed([number]) for number in numbers))
                return [part for group in each for part in group]
            cost = Spent(*error.spent) if isinstance(error, ModelError) else _NO_COST
            return self._failed("embed", numbers, str(error), cost)
        spent = _shared(embedded.spent, len(numbers))
        return [
            TaskResult(number, "embed", AnswerClaims([self._vector(number, embedded.vectors, row)]), spent[row])
            for row, number in enumerate(numbers)
        ]

    def _vector(self, number: int, vectors: Matrix, row: int) -> Draft:
        """Return the draft of a vector event, with the shortest decimal form of each float."""
        request = self._asked[number].request
        memory = request.memories[0]
        fields: dict[str, Any] = {
            "type": "memory.embedding",
            "timestamp": written_time(memory.created_at),
            "memory_id": memory.memory_id,
            "embedding": orjson.loads(orjson.dumps(vectors[row], option=orjson.OPT_SERIALIZE_NUMPY)),
            "model": "" if self._embeddings is None else self._embeddings.name,
            "content_hash": memory.content_hash,
            "source": request.source,
        }
        return Draft(fields, None)

    def _failed(self, task: Task, numbers: Sequence[int], why: str, spent: Spent = _NO_COST) -> list[TaskResult]:
        shares = _shared(spent, len(numbers))
        return [
            TaskResult(number, task, AnswerClaims(), share, failure=failure(task, why))
            for number, share in zip(numbers, shares, strict=True)
        ]


def _shared(spent: Spent, count: int) -> list[Spent]:
    """Divide the cost of a call among its requests without a remainder."""
    return [Spent(*(part // count + (number < part % count) for part in spent)) for number in range(count)]
