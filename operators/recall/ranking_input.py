"""The input and the result of a ranking.

Ranking parameters are those of the query, which override the tenant's, which override the defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow import queries
from recallflow.control import RECALL_SETTINGS, ControlHistory, RecallSettings, TenantSettings
from recallflow.embedder import Matrix
from recallflow.fields import nearest
from recallflow.limits import QUERY_CHARACTERS, WHOLE_EPISODES_MAX
from recallflow.operators.recall.question import Question
from recallflow.parsing import unknown_fields
from recallflow.queries import BOOSTS, HOPS_MAX, HOPS_MIN, K_MAX, K_MIN, WEIGHTS, Decay, Mode, QueryEvent, Recall
from recallflow.responses import Warn
from recallflow.state.arrays import Column, Ints, Positions, Selection
from recallflow.state.index import OwnerIndex
from recallflow.state.usage import OwnerUsage

DECAYED_K = 20
_NOTHING_SET = RecallSettings()
DAY_MS = 86_400_000
NO_SEQS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Ranking parameters of one answer."""

    mode: Mode
    k: int = 10  # the maximum number of memories
    weights: Mapping[str, float] = field(default_factory=dict)  # by factor of the mode
    decay: Decay = field(default_factory=Decay)
    boosts: Mapping[str, float] = field(default_factory=dict)
    max_episodes: int | None = None  # the maximum number of episodes in the mode `episode`
    whole_episodes: bool = False  # whether whole episodes may exceed k

    @property
    def memories_max(self) -> int:
        return WHOLE_EPISODES_MAX if self.whole_episodes else self.k

    @property
    def wants_neighbours(self) -> bool:
        """Return whether edges between memories affect the ranking."""
        return self.mode in WEIGHTS and self.mode != "episode" and self.boosts.get("relationship", 1.0) > 0

    @property
    def wants_proximity(self) -> bool:
        """Return whether the ranking uses proximity to entities."""
        return self.weights.get("proximity", 0.0) > 0 or self.weights.get("mentions", 0.0) > 0


def query_warnings(query: Recall) -> list[Warn]:
    """Return warnings about values that are clamped, cut or have no effect."""
    warnings = []
    if not K_MIN <= query.k <= K_MAX:
        warnings.append(Warn(code="k_clamped", detail=f"k was {query.k}; it is limited to {K_MIN} to {K_MAX}"))
    if not HOPS_MIN <= query.traversal_depth <= HOPS_MAX:
        detail = f"traversal_depth was {query.traversal_depth}; it is limited to {HOPS_MIN} to {HOPS_MAX}"
        warnings.append(Warn(code="depth_clamped", detail=detail))
    if len(query.query.strip()) > QUERY_CHARACTERS:
        warnings.append(Warn(code="query_cut", detail=f"only the first {QUERY_CHARACTERS} characters were read"))
    return warnings + unread_field_warnings(query)


def unread_field_warnings(query: QueryEvent) -> list[Warn]:
    """Return warnings about fields of a query that have no effect."""
    warnings = []
    for name in unknown_fields(query):
        similar = nearest(name, type(query).model_fields)
        asks = f"; did you mean {similar}?" if similar else ""
        warnings.append(Warn(code="unknown_field", detail=f"{name} is not read{asks}"))
    if query.project_id is not None and not isinstance(query, Recall | queries.GraphTrace | queries.MemoriesList):
        detail = f"project_id is not read: {query.type} is about all projects"
        warnings.append(Warn(code="unknown_field", detail=detail))
    return warnings


def tenant_settings(decisions: ControlHistory, tenant_id: str, at_ms: int) -> RecallSettings:
    decided = decisions.as_of(tenant_id, "tenant.settings", RECALL_SETTINGS, at_ms)
    return RecallSettings.model_validate(decided.settings) if isinstance(decided, TenantSettings) else _NOTHING_SET


def ranking_parameters(query: Recall, mode: Mode, tenant: RecallSettings) -> Tuning:
    """Return the ranking parameters of a query. `mode` is the resolved one, not `auto`. In `hybrid`, proximity has a
    weight only if the query requests entities or sets that weight."""
    k = DECAYED_K if mode == "decayed" and "k" not in query.model_fields_set else min(max(query.k, K_MIN), K_MAX)
    weights, decay = _overridden(WEIGHTS, query, mode, tenant), query.decay
    if mode == "hybrid" and not query.entity_urns and "proximity" not in (query.weights or {}):
        weights.pop("proximity", None)
    if tenant.decay.model_fields_set:
        fields = [name for name in Decay.model_fields if name in decay.model_fields_set]
        decay = tenant.decay.model_copy(update={name: getattr(decay, name) for name in fields})
    boosts, whole_episodes = _overridden(BOOSTS, query, mode, tenant), mode == "episode" and query.whole_episodes
    return Tuning(mode, k, weights, decay, boosts, query.max_episodes, whole_episodes)


def _overridden(
    defaults: Mapping[Mode, Mapping[str, float]], query: Recall, mode: Mode, tenant: RecallSettings
) -> dict[str, float]:
    """Return the mode's values by name: the query's override the tenant's, which override the defaults."""
    found = dict(defaults.get(mode, {}))
    of_tenant = next((given for name, given in tenant.weights.items() if name == mode), {})
    return found | {name: weight for name, weight in (of_tenant | (query.weights or {})).items() if name in found}


@dataclass(slots=True)
class Ranking:
    """Positions in rank order, with their scores and score parts. All arrays are in their order. A score is
    Σ weight · factor + Σ boosts, or the product of the factors if there are no weights."""

    positions: Positions
    scores: Column
    factors: dict[str, Column] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    boosts: dict[str, Column] = field(default_factory=dict)
    tiebreak_applied: bool = False
    # the median of each factor over all candidates
    medians: Mapping[str, float] = field(default_factory=dict)
    unit: float = 1.0  # the score of one unit of the signal's log-odds
    first_ranks: Ints | None = None  # the ranks before a reranker, if one ran

    def only(self, chosen: Selection) -> "Ranking":
        return replace(
            self,
            positions=self.positions[chosen],
            scores=self.scores[chosen],
            factors={name: values[chosen] for name, values in self.factors.items()},
            boosts={name: values[chosen] for name, values in self.boosts.items()},
            first_ranks=None if self.first_ranks is None else self.first_ranks[chosen],
        )


@dataclass(frozen=True, slots=True)
class RankingInput:
    """The input of a ranking mode: one owner's memories, the question, and the time of the query. A position is an
    index in conversation order (see `Conversation`)."""

    index: OwnerIndex
    question: Question
    query: Recall
    now_ms: int
    semantic: Column  # (n,) log-odds per position
    allowed: Positions  # positions that may be in the answer
    tuning: Tuning
    relevance: Callable[[Positions], Column]  # returns the relevance of positions
    vector: Matrix | None = None  # (dimension,) of the question, L2-normalised; None if it has none
    # (n,) 1/(1 + hops) to the requested entities, 0 without a path; None without a graph
    proximity: Column | None = None
    # strength, 0 to 1, of edges from other candidates, by position
    relationship: Mapping[int, float] = field(default_factory=dict)
    usage: OwnerUsage | None = None  # usage and feedback of the memories; None if the query is about a past moment
    # `seq` of memories returned earlier in the query's session
    returned: Ints = field(default_factory=lambda: NO_SEQS)
    _best: dict[int, Positions] = field(default_factory=dict)  # by count, see `best`

    def best(self, count: int) -> Positions:
        """Return the `count` allowed positions with the highest signal, best first. Ties keep conversation order."""
        if (cached := next((best for number, best in self._best.items() if number >= count), None)) is not None:
            return cached[:count]
        signal, among = self.semantic[self.allowed], self.allowed
        if count < len(signal) // 4:  # partition is faster than a full sort for large owners
            among = np.flatnonzero(signal >= np.partition(signal, -count)[-count])
            signal, among = signal[among], self.allowed[among]
        found = self._best[count] = among[np.argsort(-signal, kind="stable")[:count]]
        return found

    def fact(self, name: str, positions: Positions) -> npt.NDArray[Any]:
        return self.index.conversation.facts[name][positions]

    def near(self, positions: Positions) -> Column:
        """Return the proximity of each position, or zeros without a graph."""
        return np.zeros(len(positions)) if self.proximity is None else self.proximity[positions]

    def age_days(self, positions: Positions) -> Column:
        """Return the age of each position's memory in days. Future memories have the age 0."""
        ages: Column = np.maximum(self.now_ms - self.fact("created_ms", positions), 0) / DAY_MS
        return ages
