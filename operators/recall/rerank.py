"""The second pass: what a reranker says of the best candidates, once it has said it.

A reranker is slow. The question's candidates are ranked as ever and given to it; when its numbers are there, the
question is ranked anew, from what is remembered then, and the numbers order the candidates. So an answer holds nothing
that was forgotten meanwhile, and partition logic remains a function of its inputs: the numbers are one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from recallflow.operators.recall.scene import Ranking
from recallflow.operators.redaction import is_readable
from recallflow.queries import Mode
from recallflow.responses import Warn
from recallflow.state.rows import MemoryRow

BEST = 30  # candidates
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # the others are ordered by what they say
TEXT_CHARACTERS = 2_000  # of each: cross-encoders read 512 tokens

NO_SCORES: Mapping[str, float] = MappingProxyType({})


class Text(NamedTuple):
    """A candidate as a reranker reads it."""

    id: str
    shown: str


@dataclass(frozen=True, slots=True)
class Scored:
    """What came of it: the reranker's name, how many texts it was given, the time from asking to having, and scores by
    `key`; or why there are none."""

    model: str
    candidates: int
    took_ms: float
    scores: Mapping[str, float] = field(default_factory=lambda: NO_SCORES)
    problem: str | None = None

    @property
    def routing(self) -> dict[str, Any]:
        """Its cost, as the response shows it."""
        return {"model": self.model, "candidates": self.candidates, "took_ms": round(self.took_ms, 3)}

    @property
    def warnings(self) -> list[Warn]:
        if self.problem is None:
            return []
        return [Warn(code="rerank_failed", detail=f"{self.model}: {self.problem}; the first pass alone ordered these")]


def key(memory_id: str, version: int) -> str:
    """What stands for a version of a memory: of a history there may be several in an answer."""
    return f"{version} {memory_id}"


def texts(rows: Sequence[MemoryRow | None]) -> list[Text]:
    """The candidates that have a text, best first."""
    return [
        Text(
            key(row.id, row.version),
            f"{row.author}: {row.content[:TEXT_CHARACTERS]}" if row.author else row.content[:TEXT_CHARACTERS],
        )
        for row in rows
        if is_readable(row)
    ]


def reordered(ranking: Ranking, ids: Sequence[str], scores: Mapping[str, float], k: int) -> tuple[Ranking, list[int]]:
    """The best k of a ranking of `ids`, by score, and the rank of each before; those without a score come behind, in
    the order they had."""
    by_score = sorted(range(len(ids)), key=lambda at: (ids[at] not in scores, -scores.get(ids[at], 0.0), at))
    order = np.array(by_score[:k], np.int64)
    return ranking.only(order), [at + 1 for at in by_score[:k]]
