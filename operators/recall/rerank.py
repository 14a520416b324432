"""The second pass: orders the best candidates by a reranker's scores.

A reranker is slow, so that the query is ranked twice. The first ranking selects the candidates for the reranker. When
its scores arrive, the query is ranked again from the current state, and the scores order the candidates. An answer
therefore never holds a memory that was deleted in between. The scores are an input, so that partition logic stays a
function of its inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from recallflow.operators.recall.ranking_input import Ranking
from recallflow.operators.redaction import is_readable
from recallflow.queries import Mode
from recallflow.responses import Warn
from recallflow.state.rows import MemoryRow

BEST = 30  # candidates
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # the other modes define an order of their text
TEXT_CHARACTERS = 2_000  # per candidate: cross-encoders read 512 tokens

NO_SCORES: Mapping[str, float] = MappingProxyType({})


class Text(NamedTuple):
    """A candidate's text for the reranker."""

    id: str
    shown: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a reranker call, or the problem that prevented one.

    Attributes:
        model: the reranker's name.
        candidates: the number of texts in the call.
        took_ms: the time from the call to its result.
        scores: by `key`.
        problem: the error; None on success.
    """

    model: str
    candidates: int
    took_ms: float
    scores: Mapping[str, float] = field(default_factory=lambda: NO_SCORES)
    problem: str | None = None

    @property
    def routing(self) -> dict[str, Any]:
        """Return the call's cost for `routing_info`."""
        return {"model": self.model, "candidates": self.candidates, "took_ms": round(self.took_ms, 3)}

    @property
    def warnings(self) -> list[Warn]:
        if self.problem is None:
            return []
        return [Warn(code="rerank_failed", detail=f"{self.model}: {self.problem}; the first pass alone ordered these")]


def key(memory_id: str, version: int) -> str:
    """Return a key of one version of a memory. With history an answer may hold several versions."""
    return f"{version} {memory_id}"


def texts(rows: Sequence[MemoryRow | None]) -> list[Text]:
    """Return the candidates with a readable text, best first."""
    return [
        Text(
            key(row.id, row.version),
            f"{row.author}: {row.content[:TEXT_CHARACTERS]}" if row.author else row.content[:TEXT_CHARACTERS],
        )
        for row in rows
        if is_readable(row)
    ]


def reordered(ranking: Ranking, ids: Sequence[str], scores: Mapping[str, float], k: int) -> tuple[Ranking, list[int]]:
    """Return the best k of a ranking of `ids` by score, and the previous rank of each. Candidates without a score
    follow in their previous order."""
    by_score = sorted(range(len(ids)), key=lambda at: (ids[at] not in scores, -scores.get(ids[at], 0.0), at))
    order = np.array(by_score[:k], np.int64)
    return ranking.only(order), [at + 1 for at in by_score[:k]]
