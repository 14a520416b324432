"""Calls of a reranker with a circuit breaker and a limit of concurrent queries."""

import math
from collections.abc import Callable, Sequence

from recallflow.errors import RerankerError
from recallflow.llm import FAILURES, LEFT_ALONE_S, Breaker, Reranker

AT_ONCE = 16  # queries


class Scorer:
    """The reranker calls of a process, on the async loop thread."""

    def __init__(self, reranker: Reranker, now_s: Callable[[], float]) -> None:
        """`now_s` returns seconds of any origin, for the circuit breaker."""
        self.model = reranker.name
        self._reranker = reranker
        self._breaker = Breaker(now_s)
        self._under_way = 0

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score for each text.

        Raises:
            RerankerError: the reranker is busy, its circuit breaker is open, or its scores are invalid.
            Exception: any other error of the call.
        """
        if self._under_way >= AT_ONCE:
            raise RerankerError(f"{AT_ONCE} questions are with it already")
        if self._breaker.begin() > 0:
            raise RerankerError(f"it failed {FAILURES} times in a row, and is left alone for {LEFT_ALONE_S:g} s")
        self._under_way += 1
        try:
            scores = await self._reranker.score(question, texts)
            if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
                problem = f"it gave {len(scores)} numbers for {len(texts)} texts, or some that are none"
                raise RerankerError(problem)  # noqa: TRY301 it counts as any other failure
        except BaseException:  # a timeout cancels the call
            self._breaker.failed()
            raise
        finally:
            self._under_way -= 1
        self._breaker.succeeded()
        return scores
