"""Calls of one service: retried where useful, and refused by an open circuit breaker or a spent budget."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from recallflow.connectors.llm.connection import CallFailed
from recallflow.connectors.llm.policy import Meter, Policy, TokenBudget
from recallflow.errors import EmbedderError, ModelError
from recallflow.llm import FAILURES, Breaker, Completion, Embedded, Spent, Task
from recallflow.tracing import model_call

Answer = TypeVar("Answer", Completion, Embedded)

WAITS_MOST_S = 86_400.0
MALFORMED_MOST = 2  # a model that returns malformed JSON twice repeats it

_log = logging.getLogger(__name__)


class ModelCalls:
    """Calls of one model. Use it on one event loop."""

    def __init__(self, model: str, policy: Policy) -> None:
        self.meter = Meter(model)
        self._policy = policy
        self._breaker = Breaker(policy.around.now_s)
        self._budget = TokenBudget(policy.limit, policy.around.epoch_s, policy.spending)
        self._under_way = 0
        self._is_limited = False  # whether the last failure was a rate limit

    async def call(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Spent]:
        """Return the result of an attempt, and the cost of all attempts. `tokens` is the estimated cost of one.
        Raise ModelError."""
        with model_call("embeddings" if task == "embed" else "chat", self.meter.model) as span:
            answer, spent = await self._counted(tenant_id, task, tokens, attempt)
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": spent.prompt_tokens,
                    "gen_ai.usage.output_tokens": spent.completion_tokens,
                    "recallflow.task": task,
                    "recallflow.attempts": spent.calls,
                }
            )
            return answer, spent

    async def _counted(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Spent]:
        try:
            self._check_capacity()
            reserved = self._budget.reserve(tenant_id, tokens)
            spent = Spent()

            def spend(cost: Spent) -> None:
                nonlocal spent
                spent = spent.plus(cost)
                self.meter.spend(tenant_id, task, cost)

            self._under_way += 1
            try:
                return await self._try(attempt, spend), spent
            except ModelError as error:
                error.spent = spent
                raise
            finally:
                self._under_way -= 1
                self._budget.give_back(reserved, spent.tokens)
        except asyncio.CancelledError:
            self.meter.fail(task, "timeout")  # the caller stopped waiting
            raise
        except (ModelError, EmbedderError) as error:
            self.meter.fail(task, error.code if isinstance(error, ModelError) else "malformed")
            raise

    def close(self) -> None:
        self._budget.write()

    def _check_capacity(self) -> None:
        capacity = self._policy.capacity
        if capacity is not None and self._under_way >= capacity:
            raise ModelError("busy", f"{capacity:,} calls are under way already")

    async def _try(self, attempt: Callable[[], Awaitable[Answer]], spend: Callable[[Spent], None]) -> Answer:
        failures = malformed = 0
        began_s = self._policy.around.now_s()
        while True:
            is_trial = await self._turn()
            try:
                answer = await self._attempt(attempt)
            except CallFailed as error:
                spend(error.spent)
                # While the service is down, waiting calls probe it without using up attempts, so an outage of hours
                # loses nothing. This ends after a day, because the call itself may cause the failure.
                waited_s = self._policy.around.now_s() - began_s
                if waited_s < WAITS_MOST_S:
                    if is_trial and self._policy.waits == "always" and error.of_service:
                        continue
                    if self._policy.waits == "for a limit" and error.code == "rate_limited":
                        await self._policy.around.sleep(self._policy.wait_s(1, error.retry_after))
                        continue
                failures += 1
                malformed += error.code == "malformed"
                if not error.may_pass or failures >= self._policy.attempts or malformed >= MALFORMED_MOST:
                    raise
                wait_s = self._policy.wait_s(failures, error.retry_after)
            except BaseException:  # even after a cancellation, the service was called and may charge for it
                spend(Spent(1))
                raise
            else:
                spend(answer.spent)
                return answer
            await self._policy.around.sleep(wait_s)

    async def _turn(self) -> bool:
        """Wait until the service may be called; return whether the call is a probe. Raise ModelError for calls that
        do not wait."""
        while (left_s := self._breaker.begin()) > 0:
            waits = self._policy.waits
            if waits == "never" or (waits == "for a limit" and not self._is_limited):
                raise ModelError("left_alone", f"it failed {FAILURES} times in a row, and is left alone for a while")
            await self._policy.around.sleep(left_s)
        return self._breaker.is_open

    async def _attempt(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            answer = await attempt()
        except CallFailed as error:
            if error.of_service:
                self._is_limited = error.code == "rate_limited"
                self._failed(str(error), error.retry_after)
            else:
                self._answered()
            raise
        except BaseException as error:  # a probe has ended: the breaker waits for its end
            late = isinstance(error, asyncio.CancelledError)
            self._failed("timeout: no answer in time" if late else type(error).__name__, None)
            raise
        self._answered()
        return answer

    def _failed(self, problem: str, retry_after: str | None) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(self._policy.asked_s(retry_after))
        self.meter.left_alone = self._breaker.is_open
        if self._breaker.is_open and not was_open:
            _log.warning("model %s is left alone for a while: %s", self.meter.model, problem)

    def _answered(self) -> None:
        if self._breaker.is_open:
            _log.warning("model %s answers again", self.meter.model)
        self._breaker.succeeded()
        self.meter.left_alone = False
