"""Model calls for queries on the async loop, for all state partitions of a process: a language model, an embedding
service, a reranker.

Each call has one attempt, because the query waits; without a result the query is answered anyway. All calls of a query
start and return together: a hanging model delays its query by one timeout, and other queries not at all. Queries above
`QUERIES_MAX` are answered without models."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from recallflow import llm
from recallflow.errors import EmbedderError, ModelError, RerankerError
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.recall.model_calls import CallResult, ModelKind, ModelRequests, ModelStep
from recallflow.records import Position

QUERIES_MAX, RERANKED_QUERIES_MAX = 100, 16  # queries whose calls run at the same time
DEFECT = "our own code failed"
_MARGIN_S = 1.0  # difference of the time limits of a query and of its calls
T = TypeVar("T", covariant=True)
_log = logging.getLogger(__name__)
ModelCalls = Mapping[ModelStep, CallResult]


class TimedModel(NamedTuple, Generic[T]):
    """A model with the time limit of a call."""

    model: T
    timeout_s: float


class ModelJob(NamedTuple):
    """The model calls of one query, identified by its position."""

    tenant_id: str
    requests: ModelRequests
    position: Position


class Models(AbstractContextManager["Models"]):
    """The models of a process. Close it after the dataflow."""

    def __init__(
        self,
        language: TimedModel[llm.LanguageModel] | None = None,
        embeddings: TimedModel[llm.EmbeddingService] | None = None,
        reranker: TimedModel[llm.Reranker] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        call_context: Callable[[Position], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        """`now_s` returns seconds of any origin. The calls for the query at a position run within `call_context`."""
        self._call_context = call_context
        self._language, self._embeddings, self._now_s = language, embeddings, now_s
        self._reranker, self._breaker, self._reranking = reranker, llm.Breaker(now_s), 0
        limits = [timed.timeout_s for timed in (language, embeddings, reranker) if timed is not None]
        # Calls over the limit fail at once, so that no call waits for capacity.
        self.runtime = Runtime(Completions(), 2 * QUERIES_MAX, max(limits) + _MARGIN_S)
        self._running = 0

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    @property
    def kinds(self) -> frozenset[ModelKind]:
        models: dict[ModelKind, object] = {"llm": self._language, "embed": self._embeddings, "rerank": self._reranker}
        return frozenset(kind for kind, model in models.items() if model is not None)

    def unanswered(self, requests: ModelRequests) -> ModelCalls:
        """Return the results of a query after an internal error."""
        steps: list[ModelStep] = [*requests.prompts, *(["embed"] if requests.texts else ())]
        failed = {step: CallResult("", 0.0, failure="unavailable") for step in steps}
        return failed | ({"rerank": CallResult("", 0.0, failure=DEFECT)} if requests.candidates else {})

    # ---------------------------------------------------------------------- on the loop thread

    async def ask(self, job: ModelJob) -> ModelCalls:
        """Run all requested calls concurrently. A model error becomes part of the result."""
        self._running += 1
        # Decided before the calls start: queries that arrive later must not count against this one.
        is_crowded = self._running > QUERIES_MAX
        tenant_id, requests, position = job
        calls: dict[ModelStep, Awaitable[CallResult]] = {}
        for step, prompt in requests.prompts.items():
            assert self._language is not None  # noqa: S101 prompts need a model
            complete = partial(self._language.model.complete, tenant_id, prompt)
            calls[step] = self._call(step, self._language, complete, is_crowded, prompt)
        if requests.texts:
            assert self._embeddings is not None  # noqa: S101 vectors need a service
            embed = partial(self._embeddings.model.embed, tenant_id, requests.texts)
            calls["embed"] = self._call("embed", self._embeddings, embed, is_crowded)
        if requests.candidates:
            calls["rerank"] = self._score(requests.question, requests.candidates)
        try:
            with self._call_context(position):
                results = await asyncio.gather(*calls.values())
        finally:
            self._running -= 1
        return dict(zip(calls, results, strict=True))

    async def _call(
        self,
        step: ModelStep,
        timed: TimedModel[llm.LanguageModel | llm.EmbeddingService],
        call: Callable[[], Awaitable[llm.Completion | llm.Embeddings]],
        is_crowded: bool,
        prompt: llm.Prompt | None = None,
    ) -> CallResult:
        (model, timeout_s), began_s = timed, self._now_s()
        result: Any = None
        failure = None
        try:
            async with asyncio.timeout(timeout_s):
                if is_crowded:
                    raise ModelError("busy", f"{QUERIES_MAX} other queries wait for models")  # noqa: TRY301
                result, (_, *tokens) = await call()
        except Exception as raised:  # noqa: BLE001 the query is answered after any error of a model
            error = _model_error(step, raised)
            failure, (_, *tokens) = error.code, error.spent
        return CallResult(model.name, self._ms_since(began_s), result, failure, sum(tokens), prompt)

    async def _score(self, question: str, candidates: Mapping[str, str]) -> CallResult:
        assert self._reranker is not None  # noqa: S101 scores need a reranker
        (reranker, timeout_s), began_s = self._reranker, self._now_s()
        failure, result = None, None
        try:
            async with asyncio.timeout(timeout_s):
                scores = await self._scores(reranker, question, [*candidates.values()])
            result = dict(zip(candidates, scores, strict=True))
        except TimeoutError:
            failure = f"no result within {timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 the query is answered after any error of a model
            # The message of another error may quote a memory, or a key.
            failure = str(error) if isinstance(error, RerankerError) else type(error).__name__
        return CallResult(reranker.name, self._ms_since(began_s), result, failure)

    async def _scores(self, reranker: llm.Reranker, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a reranker's score for each text. Raise RerankerError if it is busy, its circuit breaker is open, or
        its scores are invalid."""
        if self._reranking >= RERANKED_QUERIES_MAX:
            raise RerankerError(f"it is busy with {RERANKED_QUERIES_MAX} other queries")
        if self._breaker.begin() > 0:
            raise RerankerError(f"it failed {llm.FAILURES} times in a row, and is not called for {llm.OPEN_S:g} s")
        self._reranking += 1
        try:
            scores = await reranker.score(question, texts)
            if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
                problem = f"it returned {len(scores)} scores for {len(texts)} texts, or a score that is not finite"
                raise RerankerError(problem)  # noqa: TRY301 it counts as any other failure
        except BaseException:  # a timeout cancels the call
            self._breaker.failed()
            raise
        finally:
            self._reranking -= 1
        self._breaker.succeeded()
        return scores

    def _ms_since(self, began_s: float) -> float:
        return (self._now_s() - began_s) * 1000


def _model_error(step: ModelStep, error: Exception) -> ModelError:
    """Return the error of a call as a ModelError without the message of another error, which may quote a memory."""
    if isinstance(error, ModelError):
        return error
    if isinstance(error, TimeoutError):
        return ModelError("timeout", "no answer in time")
    if isinstance(error, EmbedderError):
        return ModelError("malformed", "vectors of another size")
    _log.error("%s: our own code failed at a call (%s)", step, type(error).__name__)
    return ModelError("unavailable", DEFECT)
