"""The input and the result of a ranking mode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.tuning import Tuning
from recallflow.queries import Recall
from recallflow.state.arrays import Chosen, Column, Places
from recallflow.state.index import OwnerIndex
from recallflow.state.usage import OwnerUsage

DAY_MS = 86_400_000
NO_SEQS: Places = np.zeros(0, np.int64)


@dataclass(slots=True)
class Ranking:
    """Positions in rank order, with their scores and score parts. All arrays are in the order of `places`.

    A score is Σ weight · factor + Σ boosts, or the product of the factors if there are no weights.

    Attributes:
        middles: the median of each factor over all candidates.
        unit: the score of one unit of the signal's log-odds.
    """

    places: Places
    scores: Column
    factors: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    boosts: dict[str, Column] = field(default_factory=dict)
    tiebreak_applied: bool = False
    middles: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unit: float = 1.0

    def only(self, chosen: Chosen) -> "Ranking":
        """Return the ranking of the chosen positions, in their order."""
        factors, boosts = (
            {name: values[chosen] for name, values in parts.items()} for parts in (self.factors, self.boosts)
        )
        return replace(self, places=self.places[chosen], scores=self.scores[chosen], factors=factors, boosts=boosts)


@dataclass(frozen=True, slots=True)
class Scene:
    """The input of a ranking mode: one owner's memories, the question, and the time of the query. A place is a memory's
    position in conversation order (see `Conversation`).

    Attributes:
        semantic: (n,) log-odds per position.
        allowed: positions that may be in the answer.
        relevance: returns the relevance of positions.
        vector: (dimension,) of the question, L2-normalised; None if it has none.
        proximity: (n,) 1/(1 + hops) to the requested entities, 0 without a path; None without a graph.
        relationship: strength, 0 to 1, of edges from other candidates, by position.
        usage: usage and feedback of the memories; None if the query is about a past moment.
        returned: `seq` of memories returned earlier in the query's session.
    """

    index: OwnerIndex
    question: Question
    query: Recall
    now_ms: int
    semantic: Column
    allowed: Places
    tuning: Tuning
    relevance: Callable[[Places], Column]
    vector: Matrix | None = None
    proximity: Column | None = None
    relationship: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    usage: OwnerUsage | None = None
    returned: Places = field(default_factory=lambda: NO_SEQS)
    _best: dict[int, Places] = field(default_factory=dict)  # by count, see `best`

    def best(self, count: int) -> Places:
        """Return the `count` allowed positions with the highest signal, best first. Ties keep conversation order."""
        if count not in self._best:
            self._best[count] = self._find_best(count)
        return self._best[count]

    def _find_best(self, count: int) -> Places:
        if (more := next((places for known, places in self._best.items() if known > count), None)) is not None:
            return more[:count]
        signal, among = self.semantic[self.allowed], self.allowed
        if count < len(signal) // 4:  # partition is faster than a full sort for large owners
            among = np.flatnonzero(signal >= np.partition(signal, -count)[-count])
            signal, among = signal[among], self.allowed[among]
        return among[np.argsort(-signal, kind="stable")[:count]]

    def fact(self, name: str, places: Places) -> npt.NDArray[Any]:
        """Return one column of the facts of each position's memory."""
        column: npt.NDArray[Any] = self.index.conversation.facts[name][places]
        return column

    def age_days(self, places: Places) -> Column:
        """Return the age of each position's memory in days. Future memories have the age 0."""
        ages: Column = np.maximum(self.now_ms - self.fact("created_ms", places), 0) / DAY_MS
        return ages
