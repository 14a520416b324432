"""Model calls for queries on the async loop, for all state partitions of a process: a language model, an embedding
service, a reranker.

Each call has one attempt, because the query waits; without a result it is answered anyway. All calls of a query start
and return together, so a hanging model costs its query one timeout, and others nothing. Over the capacity, further
queries are answered without models."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from recallflow.errors import EmbedderError, ModelError, RerankerError
from recallflow.llm import (
    FAILURES,
    OPEN_S,
    Breaker,
    Completion,
    Embeddings,
    EmbeddingService,
    LanguageModel,
    Prompt,
    Reranker,
)
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.recall.model_calls import Ended, Kind, ModelStep, Scored, Wanted
from recallflow.records import Position

AT_ONCE, SCORED_AT_ONCE = 100, 16  # queries
DEFECT = "our own code failed"
_LATER_S = 1.0  # the time limit of a query exceeds that of its calls by this

T = TypeVar("T", covariant=True)

_log = logging.getLogger(__name__)


class Within(NamedTuple, Generic[T]):
    """A model with the time limit of a call."""

    model: T
    timeout_s: float


class ModelJob(NamedTuple):
    """The model calls of one query, identified by its position."""

    tenant_id: str
    wanted: Wanted
    position: Position


class ModelAnswers(NamedTuple):
    ended: Mapping[ModelStep, Ended]  # calls of the language model and the embedding service, by step
    scored: Scored | None = None  # the reranker's result


class Models:
    """The models of a process. Close it after the dataflow."""

    def __init__(
        self,
        language: Within[LanguageModel] | None = None,
        embeddings: Within[EmbeddingService] | None = None,
        reranker: Within[Reranker] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        around: Callable[[Position], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        """`now_s` returns seconds of any origin; `around` the context of the calls for the query at a position."""
        self._around = around
        self._language, self._embeddings, self._now_s = language, embeddings, now_s
        self._reranker, self._breaker, self._scoring = reranker, Breaker(now_s), 0
        limits = [within.timeout_s for within in (language, embeddings, reranker) if within is not None]
        # Calls over the limit fail at once, so that no call waits for capacity.
        capacity, timeout_s = 2 * AT_ONCE, max(limits) + _LATER_S
        self.runtime = Runtime(Completions(), capacity, timeout_s)
        self._under_way = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    @property
    def there(self) -> frozenset[Kind]:
        there: dict[Kind, object] = {"llm": self._language, "embed": self._embeddings, "rerank": self._reranker}
        return frozenset(kind for kind, within in there.items() if within is not None)

    def unanswered(self, wanted: Wanted) -> ModelAnswers:
        """Return the results of a query after an internal error."""
        steps: list[ModelStep] = [*wanted.prompts, *(["embed"] if wanted.texts else ())]
        ended = {step: Ended("", 0.0, failure="unavailable") for step in steps}
        count = len(wanted.candidates)
        return ModelAnswers(ended, Scored("", count, 0.0, problem=DEFECT) if count else None)

    # ---------------------------------------------------------------------- on the loop thread

    async def ask(self, job: ModelJob) -> ModelAnswers:
        """Run all requested calls concurrently. A model error becomes part of the result."""
        self._under_way += 1
        # Decided before the calls start: queries that arrive later must not count against this one.
        is_crowded = self._under_way > AT_ONCE
        tenant_id, wanted, position = job
        calls: dict[ModelStep, Awaitable[Ended]] = {}
        for step, prompt in wanted.prompts.items():
            assert self._language is not None  # noqa: S101 prompts need a model
            complete = partial(self._language.model.complete, tenant_id, prompt)
            calls[step] = self._call(step, self._language, complete, is_crowded, prompt)
        if wanted.texts:
            assert self._embeddings is not None  # noqa: S101 vectors need a service
            embed = partial(self._embeddings.model.embed, tenant_id, wanted.texts)
            calls["embed"] = self._call("embed", self._embeddings, embed, is_crowded)
        try:
            with self._around(position):
                scored, *ended = await asyncio.gather(self._score(wanted.question, wanted.candidates), *calls.values())
        finally:
            self._under_way -= 1
        return ModelAnswers(dict(zip(calls, ended, strict=True)), scored)

    async def _call(
        self,
        step: ModelStep,
        within: Within[LanguageModel | EmbeddingService],
        call: Callable[[], Awaitable[Completion | Embeddings]],
        is_crowded: bool,
        about: Prompt | None = None,
    ) -> Ended:
        (model, timeout_s), began_s = within, self._now_s()
        result: Any = None
        failure = None
        try:
            async with asyncio.timeout(timeout_s):
                if is_crowded:
                    raise ModelError("busy", f"{AT_ONCE} questions are with models already")  # noqa: TRY301
                result, (_, *tokens) = await call()
        except Exception as raised:  # noqa: BLE001 the query is answered after any error of a model
            error = _model_error(step, raised)
            failure, (_, *tokens) = error.code, error.spent
        return Ended(model.name, self._ms_since(began_s), result, failure, sum(tokens), about)

    async def _score(self, question: str, candidates: Mapping[str, str]) -> Scored | None:
        if not candidates:
            return None
        assert self._reranker is not None  # noqa: S101 scores need a reranker
        (reranker, timeout_s), began_s = self._reranker, self._now_s()
        problem, scores = None, dict[str, float]()
        try:
            async with asyncio.timeout(timeout_s):
                given = await self._scores(reranker, question, [*candidates.values()])
            scores = dict(zip(candidates, given, strict=True))
        except TimeoutError:
            problem = f"no result within {timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 as above
            problem = str(error) or type(error).__name__
        return Scored(reranker.name, len(candidates), self._ms_since(began_s), scores, problem)

    async def _scores(self, reranker: Reranker, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a reranker's score for each text. Raise RerankerError if it is busy, its circuit breaker is open, or
        its scores are invalid."""
        if self._scoring >= SCORED_AT_ONCE:
            raise RerankerError(f"{SCORED_AT_ONCE} questions are with it already")
        if self._breaker.begin() > 0:
            raise RerankerError(f"it failed {FAILURES} times in a row, and is left alone for {OPEN_S:g} s")
        self._scoring += 1
        try:
            scores = await reranker.score(question, texts)
            if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
                problem = f"it gave {len(scores)} numbers for {len(texts)} texts, or some that are none"
                raise RerankerError(problem)  # noqa: TRY301 it counts as any other failure
        except BaseException:  # a timeout cancels the call
            self._breaker.failed()
            raise
        finally:
            self._scoring -= 1
        self._breaker.succeeded()
        return scores

    def _ms_since(self, began_s: float) -> float:
        return (self._now_s() - began_s) * 1000


def _model_error(step: ModelStep, error: Exception) -> ModelError:
    """Return an error description without texts, which may quote a memory."""
    if isinstance(error, ModelError):
        return error
    if isinstance(error, TimeoutError):
        return ModelError("timeout", "no answer in time")
    if isinstance(error, EmbedderError):
        return ModelError("malformed", "vectors of another size")
    _log.error("%s: our own code failed at a call (%s)", step, type(error).__name__)
    return ModelError("unavailable", DEFECT)
