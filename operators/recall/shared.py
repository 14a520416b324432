"""What recall uses in all state partitions of a process alike. None of it is state: a query's answer is the same with
other caches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Self

from recallflow.embedder import Embedder, TokenCounter
from recallflow.operators.recall.candidates_cache import CandidatesCache
from recallflow.operators.recall.deadline import Costs
from recallflow.operators.recall.question_vectors import QuestionVectors
from recallflow.operators.recall.tokens import counter


@dataclass(frozen=True, slots=True)
class Shared:
    """The model for questions behind its cache; the candidates of questions asked before; what counts tokens, loaded on
    first use; and what steps took so far."""

    questions: QuestionVectors
    candidates: CandidatesCache
    tokens: Callable[[], TokenCounter]
    costs: Costs

    @classmethod
    def of(
        cls,
        embedder: Embedder,
        timer: Callable[[], float],
        fallback: Embedder | None = None,
        exact_tokens: Callable[[], TokenCounter | None] = lambda: None,
    ) -> Self:
        """`fallback`: what embeds where the model fails; none, too, where it is the model itself. `exact_tokens`: loads
        the counter to prefer to the embedder's, if there is one. `timer`: seconds, from any start."""
        other = None if fallback is None or fallback.name == embedder.name else fallback
        return cls(
            QuestionVectors(embedder, other, timer),
            CandidatesCache(),
            cache(lambda: counter(exact_tokens(), embedder)),
            Costs(),
        )
