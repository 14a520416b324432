"""Asks a reranker on the loop thread of async calls, for all state partitions of a process.

It is asked for as long as it answers: after failures in a row it is left alone for a while. Where too many questions
are with it already, a further one goes without.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from recallflow.breaker import FAILURES, LEFT_ALONE_S, Breaker
from recallflow.errors import RerankerError
from recallflow.operators.async_call import Completions, Retry, Runtime
from recallflow.operators.async_call.logic import numbers
from recallflow.reranker import Reranker

AT_ONCE = 16  # questions


class Job(NamedTuple):
    """A question, and the texts to score."""

    question: str
    texts: tuple[str, ...]


class Scorer:
    """One for a process; close it after the dataflow."""

    def __init__(
        self,
        reranker: Reranker,
        timeout_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s`: seconds from any start, for how long a reranker is left alone."""
        self.model = reranker.name
        self.step = next(numbers)
        # One attempt: who asks waits, and has an answer without it.
        self.runtime = Runtime(Completions(), timeout_s=timeout_s, retry=Retry(attempts=1))
        self._reranker = reranker
        self._breaker = Breaker(now_s)
        self._under_way = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    # ── from here on, on the loop thread ──

    async def score(self, job: Job) -> Sequence[float]:
        """A number for each text. Raises RerankerError, or whatever else went wrong."""
        if self._under_way >= AT_ONCE:
            raise RerankerError(f"{AT_ONCE} questions are with it already")
        if self._breaker.begin() > 0:
            raise RerankerError(f"it failed {FAILURES} times in a row, and is left alone for {LEFT_ALONE_S:g} s")
        self._under_way += 1
        try:
            scores = await self._reranker.score(job.question, job.texts)
            if len(scores) != len(job.texts) or not all(map(math.isfinite, scores)):
                problem = f"it gave {len(scores)} numbers for {len(job.texts)} texts, or some that are none"
                raise RerankerError(problem)  # noqa: TRY301 it counts as any other failure
        except BaseException:  # a timeout cancels
            self._breaker.failed()
            raise
        finally:
            self._under_way -= 1
        self._breaker.succeeded()
        return scores
