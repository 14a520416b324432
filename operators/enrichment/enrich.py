"""Enrichment: the plan of model calls for requests, their concurrent execution, and the step of one partition.

Facts and categories of many messages are requested in one call, which pays for instructions and schema once.
Relationships are classified one memory per call: each memory needs its own similar memories in the prompt, and verdicts
on other pairs would influence the answer. A failed call does not affect other calls.

A request without a result is open. The output of a barrier has the offsets of open requests, and the next owner of the
partition repeats their calls. When the partition closes, running calls are cancelled and late results are dropped."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import orjson

from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError, InvalidRecord, ModelError
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.fields import wire_time
from recallflow.llm import TEXT_FAILURES, Cost, EmbeddingService, LanguageModel, Task
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, Runtime, call_numbers
from recallflow.operators.enrichment import results
from recallflow.operators.enrichment.facts_and_summaries import categorise, facts, summarise
from recallflow.operators.enrichment.prompt_frame import TEXT_CHARACTERS
from recallflow.operators.enrichment.relationships import classify, extract, resolve
from recallflow.operators.enrichment.results import AnswerClaims, ModelCall, PositionedRequest, TaskResult
from recallflow.operators.events import key_of_partition
from recallflow.operators.guard import report, try_once
from recallflow.outputs import Ack, EnrichmentOutput, OutputBarrier, ResultOutput
from recallflow.records import Barrier, PartitionStart, Position, Signal

BATCH_MAX = 16  # messages per call; the answers for more would be truncated
BATCH_CHARACTERS = 24_000  # of all messages of a call
_BATCHED: tuple[Task, ...] = ("facts", "categorise")
_NO_COST = Cost()


class Thresholds(NamedTuple):
    """The least confidence of relationships and resolved entities, and of other results."""

    relationship_confidence: float = 0.70
    semantic_confidence: float = 0.60


class Plan(NamedTuple):
    """The model calls for the requests of one owner and session. `categories` maps names to descriptions."""

    requests: Sequence[EnrichmentRequest]
    thresholds: Thresholds
    categories: Mapping[str, str]

    def calls(self) -> list[ModelCall]:
        groups = [(task, [n]) for n, one in enumerate(self.requests) for task in one.tasks if task not in _BATCHED]
        groups += [(task, numbers) for task in _BATCHED for numbers in self._batches(task)]
        return [call for group in groups if (call := self._call(*group)) is not None]

    def split(self, call: ModelCall) -> list[ModelCall]:
        """Return one call per request in place of a call for several."""
        return [one for number in call.requests if (one := self._call(call.prompt.task, [number])) is not None]

    def _call(self, task: Task, numbers: Sequence[int]) -> ModelCall | None:
        """Return the call of a task for the requests with these numbers; None if there is nothing to ask a model."""
        relationship_confidence, semantic_confidence = self.thresholds
        requests = [self.requests[number] for number in numbers]
        match task:
            case "classify":
                return classify(numbers[0], requests[0], relationship_confidence)
            case "extract":
                return extract(numbers[0], requests[0], semantic_confidence)
            case "resolve":
                return resolve(numbers[0], requests[0], relationship_confidence)
            case "summarise_category" | "summarise_episode":
                return summarise(task, numbers[0], requests[0])
            case "facts":
                return facts(numbers, requests, semantic_confidence)
            case "categorise" if self.categories:
                return categorise(numbers, requests, self.categories, semantic_confidence)
        return None

    def _batches(self, task: Task) -> Iterator[list[int]]:
        """Yield the numbers of the requests for a task, one group per call."""
        batch, room = list[int](), BATCH_CHARACTERS
        for number, request in enumerate(self.requests):
            if task not in request.tasks:
                continue
            size = min(len(request.memories[0].content), TEXT_CHARACTERS)
            if batch and (size > room or len(batch) == BATCH_MAX):
                yield batch
                batch, room = [], BATCH_CHARACTERS
            batch.append(number)
            room -= size
        if batch:
            yield batch


async def enrich(
    positioned: Sequence[PositionedRequest],
    model: LanguageModel | None,
    embeddings: EmbeddingService | None,
    thresholds: Thresholds,
    categories: Mapping[str, str],
) -> list[EnrichmentResult]:
    """Return the result of each request. All have the same owner and session. `categories`: see `Plan`."""
    plan = Plan([one.request for one in positioned], thresholds, categories)
    work = _Work(positioned, model, embeddings, plan)
    to_embed = [number for number, one in enumerate(positioned) if "embed" in one.request.tasks]
    parts = await asyncio.gather(work.embed(to_embed), *map(work.ask, plan.calls()))
    return [
        results.result(one, [part for group in parts for part in group if part.number == number])
        for number, one in enumerate(positioned)
    ]


class _Work(NamedTuple):
    positioned: Sequence[PositionedRequest]
    model: LanguageModel | None
    embeddings: EmbeddingService | None
    plan: Plan

    async def ask(self, call: ModelCall) -> list[TaskResult]:
        """Call the language model, and return the results for each request of the call. If the text of one request may
        be the cause of a failure, repeat the call once per request."""
        task = call.prompt.task
        if self.model is None:
            return self._failures(task, call.requests, "no language model is configured")
        first = self.positioned[call.requests[0]]
        try:
            completion = await self.model.complete(first.request.tenant_id, call.prompt)
        except ModelError as error:
            if error.code in TEXT_FAILURES and len(call.requests) > 1:
                each = await asyncio.gather(*map(self.ask, self.plan.split(call)))
                return [part for group in each for part in group]
            return self._failures(task, call.requests, str(error), Cost(*error.spent))
        try:
            found = try_once(task, first.position, call.read, completion.value)
        except InvalidRecord as error:
            return self._failures(task, call.requests, str(error), completion.spent)
        return [
            TaskResult(number, task, one, spent, self.model.name, call.prompt.version)
            for number, one, spent in zip(call.requests, found, _shared(completion.spent, len(found)), strict=True)
        ]

    async def embed(self, numbers: Sequence[int]) -> list[TaskResult]:
        if not numbers:
            return []
        if self.embeddings is None:
            return self._failures("embed", numbers, "no embedding service is configured")
        requests = [self.positioned[number].request for number in numbers]
        texts = [one.memories[0].content if one.text is None else one.text for one in requests]
        try:
            embedded = await self.embeddings.embed(requests[0].tenant_id, texts)
        except (ModelError, EmbedderError) as error:
            if len(numbers) > 1 and (isinstance(error, EmbedderError) or error.code in TEXT_FAILURES):
                each = await asyncio.gather(*(self.embed([number]) for number in numbers))
                return [part for group in each for part in group]
            cost = Cost(*error.spent) if isinstance(error, ModelError) else _NO_COST
            return self._failures("embed", numbers, str(error), cost)
        spent = _shared(embedded.spent, len(numbers))
        return [
            TaskResult(number, "embed", AnswerClaims([self._vector(number, embedded.vectors, row)]), spent[row])
            for row, number in enumerate(numbers)
        ]

    def _vector(self, number: int, vectors: Matrix, row: int) -> results.Draft:
        """Return the draft of a vector event, with the shortest decimal form of each float."""
        request = self.positioned[number].request
        memory = request.memories[0]
        fields = {
            "type": "memory.embedding",
            "timestamp": wire_time(memory.created_at),
            "memory_id": memory.memory_id,
            "embedding": orjson.loads(orjson.dumps(vectors[row], option=orjson.OPT_SERIALIZE_NUMPY)),
            "model": "" if self.embeddings is None else self.embeddings.name,
            "content_hash": memory.content_hash,
            "source": request.source,
        }
        return results.Draft(fields, None)

    def _failures(self, task: Task, numbers: Sequence[int], why: str, spent: Cost = _NO_COST) -> list[TaskResult]:
        return [
            TaskResult(number, task, AnswerClaims(), share, failure=results.failure(task, why))
            for number, share in zip(numbers, _shared(spent, len(numbers)), strict=True)
        ]


def _shared(spent: Cost, count: int) -> list[Cost]:
    """Divide the cost of a call among its requests without a remainder."""
    return [Cost(*(part // count + (number < part % count) for part in spent)) for number in range(count)]


AskModels = Callable[[Sequence[PositionedRequest], int], Awaitable[Sequence[EnrichmentResult]]]
"""Calls the models with the tenant's settings as of a time (epoch ms). Returns one result per request, in order."""


class PendingRequest(NamedTuple):
    """A request that waits for a model. Requests with an equal `key` may share a call."""

    positioned: PositionedRequest
    append_ms: int  # of the request, epoch
    key: Hashable


EnrichmentItem = PendingRequest | tuple[EnrichmentOutput, ...]
"""A request, or the outputs of a record that needs no model."""

ToEnrich = EnrichmentItem | CallCompletion | Signal


@dataclass(frozen=True, slots=True)
class Enricher:
    """The configuration that all partitions of a process share."""

    runtime: Runtime
    ask: AskModels
    batch_size: int
    batch_wait_ms: int
    use_span: Callable[[Position], AbstractContextManager[object]]  # makes the span of a record the current one
    on_result: Callable[[EnrichmentRequest, EnrichmentResult], None]
    now_ms: Callable[[], int]  # returns the time in epoch milliseconds


class _Batch(NamedTuple):
    """Requests that wait for more requests of their key."""

    due_ms: int
    requests: list[PendingRequest]


class PartitionEnrichment:
    """One partition, from the signal that opens it to its last barrier."""

    def __init__(self, enricher: Enricher) -> None:
        self._enricher = enricher
        self._partition: int | None = None  # None while it is closed
        self._batches: dict[Hashable, _Batch] = {}  # in order of due time, because all wait equally long
        self._calls: dict[int, AsyncCall[tuple[PendingRequest, ...], Sequence[EnrichmentResult]]] = {}

    def on_batch(self, values: list[ToEnrich]) -> tuple[list[EnrichmentOutput | OutputBarrier], bool]:
        """Process values in order. Return outputs, and whether the partition is closed."""
        outputs: list[EnrichmentOutput | OutputBarrier] = []
        for value in values:
            match value:
                case PartitionStart():
                    self._partition = value.partition
                case Barrier():
                    outputs += self._on_barrier(value)
                case CallCompletion():
                    outputs += self._results(value.call)
                case PendingRequest():
                    self._add(value)
                case _:
                    outputs += value
        return outputs, self._partition is None

    def due_ms(self) -> int | None:
        return next((batch.due_ms for batch in self._batches.values()), None)

    def on_notify(self) -> list[EnrichmentOutput | OutputBarrier]:
        now_ms = self._enricher.now_ms()
        for key in [key for key, batch in self._batches.items() if batch.due_ms <= now_ms]:
            self._submit(self._batches.pop(key))
        return []

    def on_eof(self) -> list[EnrichmentOutput | OutputBarrier]:
        return []

    def _add(self, request: PendingRequest) -> None:
        due_ms = self._enricher.now_ms() + self._enricher.batch_wait_ms
        batch = self._batches.setdefault(request.key, _Batch(due_ms, []))
        batch.requests.append(request)
        if len(batch.requests) == self._enricher.batch_size:
            self._submit(self._batches.pop(request.key))

    def _submit(self, batch: _Batch) -> None:
        number = next(call_numbers)
        completion = CallCompletion(key_of_partition(self._number), number)
        call = self._calls[number] = AsyncCall(tuple(batch.requests), partial(_ask, self._enricher), completion)
        self._enricher.runtime.submit([call])

    def _on_barrier(self, barrier: Barrier) -> list[EnrichmentOutput | OutputBarrier]:
        """Return the progress at a barrier: the offsets of open requests. The last barrier closes the partition."""
        positions = sorted(self._open_positions())
        open_offsets = {positions[0].source: tuple(one.offset for one in positions)} if positions else {}
        progress = OutputBarrier(self._number, barrier.number, open_offsets, barrier.last, has_nothing_to_sync)
        if not barrier.last:
            return [progress]
        self._enricher.runtime.cancel(self._calls.values())
        self._batches.clear()
        self._calls.clear()
        self._partition = None
        return [*(Ack(source, offsets) for source, offsets in open_offsets.items()), progress]

    def _open_positions(self) -> Iterator[Position]:
        waiting = (batch.requests for batch in self._batches.values())
        for requests in (*waiting, *(call.item for call in self._calls.values())):
            yield from (request.positioned.position for request in requests)

    def _results(self, number: int) -> Iterator[EnrichmentOutput]:
        """Yield the outputs of a call; none for a call that was submitted before the partition was closed."""
        call = self._calls.pop(number, None)
        if call is None or call.result is None:
            return
        positioned = [request.positioned for request in call.item]
        answers = call.result
        if isinstance(answers, CallError):
            answers = [results.unanswered(one, f"{answers.kind} in our own code") for one in positioned]
        for one, answer in zip(positioned, answers, strict=True):
            self._enricher.on_result(one.request, answer)
            bare = results.unanswered(one, "the result is larger than the limit of its topic")
            yield ResultOutput(one.position, 0, answer.owner.record_key, _encoded(answer), _encoded(bare))
            yield Ack(one.position.source, (one.position.offset,))

    @property
    def _number(self) -> int:
        if self._partition is None:
            raise RuntimeError("the partition is not open")
        return self._partition


async def _ask(enricher: Enricher, requests: tuple[PendingRequest, ...]) -> Sequence[EnrichmentResult]:
    positioned = [request.positioned for request in requests]
    try:
        with enricher.use_span(positioned[0].position):
            answers = await enricher.ask(positioned, requests[-1].append_ms)
        by_request = {answer.request: answer for answer in answers}
        return [by_request[str(one.position)] for one in positioned]
    except Exception as error:
        report("ask", positioned[0].position, error)
        raise


def has_nothing_to_sync() -> bool:
    """Return true: this flow has no state to sync before a barrier."""
    return True


def _encoded(answer: EnrichmentResult) -> bytes:
    return answer.model_dump_json(exclude_unset=True).encode()
