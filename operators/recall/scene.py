"""What a mode ranks, and what comes of it."""

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
    """Places best first, with their scores and what the scores are made of (all arrays in the order of `places`):
    Σ weight · factor + Σ boosts; without weights, the product of the factors.

    Of all that was looked at, not of what is answered alone: `middles`, of each factor; and `unit`, what one unit of
    the signal's log-odds adds to a score."""

    places: Places
    scores: Column
    factors: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    boosts: dict[str, Column] = field(default_factory=dict)
    tiebreak_applied: bool = False
    middles: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unit: float = 1.0

    def only(self, chosen: Chosen) -> "Ranking":
        """The chosen places alone, in the order chosen."""
        factors, boosts = (
            {name: values[chosen] for name, values in parts.items()} for parts in (self.factors, self.boosts)
        )
        return replace(self, places=self.places[chosen], scores=self.scores[chosen], factors=factors, boosts=boosts)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a mode ranks: one owner's memories, the question, and the time it is asked at. A place is a memory's in
    conversation order (see `Conversation`).

    `semantic`: (n,) log-odds per place; `allowed`: places that may be in the answer; `relevance`: that of places;
    `vector`: (dimension,) of the question, L2-normalised, where it was embedded; `proximity`: (n,) 1/(1 + hops) to the
    entities asked for, 0 where there is no way, None without a graph; `relationship`: strength, 0 to 1, of edges from
    other candidates to a place; `usage`: what queries and feedback made of the memories, None where the answer is about
    another moment than now; `returned`: `seq` of what was returned earlier in the query's session.
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
        """The `count` allowed places with the highest signal, best first; earlier places first among equals."""
        if count not in self._best:
            self._best[count] = self._find_best(count)
        return self._best[count]

    def _find_best(self, count: int) -> Places:
        if (more := next((places for known, places in self._best.items() if known > count), None)) is not None:
            return more[:count]
        signal, among = self.semantic[self.allowed], self.allowed
        if count < len(signal) // 4:  # of a large owner, to find them is faster than to sort all
            among = np.flatnonzero(signal >= np.partition(signal, -count)[-count])
            signal, among = signal[among], self.allowed[among]
        return among[np.argsort(-signal, kind="stable")[:count]]

    def fact(self, name: str, places: Places) -> npt.NDArray[Any]:
        """One column of what is known of each place's memory."""
        column: npt.NDArray[Any] = self.index.conversation.facts[name][places]
        return column

    def age_days(self, places: Places) -> Column:
        """Age of each place's memory in days, never negative: the future counts as now."""
        ages: Column = np.maximum(self.now_ms - self.fact("created_ms", places), 0) / DAY_MS
        return ages
