"""An owner's graph as one recall query uses it: nearness to entities, boosts, expansion, and what it knows of entities.

All of these are extras: where our own code fails in one, the answer goes without it and says so in a warning. A storage
error is no such failure; it stops the flow, as everywhere.

The ranking names a memory by its place (in conversation order), the graph by its `seq`; both meet here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from recallflow.errors import InvalidRecord
from recallflow.operators.events import Request
from recallflow.operators.graph import entities
from recallflow.operators.graph.entities import Known
from recallflow.operators.graph.expand import Expansion, Related, boosts, expand
from recallflow.operators.graph.gate import Compared, compare
from recallflow.operators.graph.paths import Seeds, Step, Walk
from recallflow.operators.graph.proximity import proximity
from recallflow.operators.graph.reader import Scope, read_once
from recallflow.operators.graph.rollout import STEP, Applied, Expansions
from recallflow.operators.guard import once
from recallflow.queries import HOPS_MIN
from recallflow.responses import Warn
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex

NOWHERE = -1
SEEDS = 10
# The signal is log-odds: paths begin with memories whose odds of being evidence are at least a twentieth of the best
# one's. What is not about the question leads to more of that.
SEED_ODDS = 3.0
BOOSTED_MAX = 50  # neighbours of the seeds that edges add to the scores of
# What names in texts, authors, episodes and likeness alone lead to is no better than what is ranked next: a larger k
# brings as much on every kind of chat. So it adds nothing.
WORKED_OUT_COUNTS = 0.0
LOOKED_AT = 100  # memories that fit best, whose links are read for those of common nodes

T = TypeVar("T")


@dataclass(kw_only=True)
class QueryGraph:
    """The graph at a query's moment, through the memories that the query permits.

    `semantic`: (n,) the signal of each place. `permitted`: the places that may be in the answer. `now_ms`: the time at
    which edges must hold. `warnings`: those for the response. `ran`: whether its links and edges were followed, which
    makes an answer one of the tier `graph`.
    """

    graph: OwnerGraph
    index: OwnerIndex
    semantic: Column
    permitted: Places
    now_ms: int
    expansions: Expansions
    request: Request
    warnings: list[Warn] = field(default_factory=list)
    ran: bool = False
    _entities: list[NodeKey] | None = None

    # ------------------------------------------------------------------ what a recall query asks

    def proximity(self, urns: Sequence[str], question: str) -> Column | None:
        """(n,) 1 / (1 + hops) of each place to the entities that the query gives or names, 0 where there is no way;
        None where the graph is off or failed."""

        def near() -> Column:
            about = self._about(urns, question)
            self.ran |= bool(about)
            return proximity(self._scope, self.index, about)

        return self._guarded(near, "nearness to entities")

    def warn_of_unknown(self, urns: Sequence[str]) -> None:
        """Warns of those URNs of a query that stand for nothing: they cannot change the answer."""

        def unknown() -> list[str]:
            return [urn for urn in urns if not entities.given(self._reader, [urn])]

        if found := self._guarded(unknown, "a look at its entities"):
            self.warnings.append(Warn(code="unknown_entity", detail=f"entity_urns: nobody knows {', '.join(found)}"))

    def boosts(self, hops: int) -> dict[int, float]:
        """Return the strength of edges, by place, to the memories that fit best by the signal and to their neighbours.

        A query that asks for one hop has none.
        """
        if hops <= HOPS_MIN:
            return {}

        def near() -> dict[int, float]:
            return boosts(Walk(self._scope, self.seeds(_best(self.semantic, self.permitted, SEEDS)), hops), BOOSTED_MAX)

        found = self._guarded(near, "neighbours of the candidates")
        self.ran |= found is not None
        return {int(self._place[seq]): boost for seq, boost in (found or {}).items()}

    def context(self, urns: Sequence[str], question: str, *, filtered: bool) -> Known:
        """What an assembled context says of the entities that the query gives or names, and of those near them.
        `filtered`: whether only what permitted memories tell is told."""

        def known() -> Known:
            permitted = self._scope.allowed if filtered else None
            return entities.context(self._reader, self._about(urns, question), self.now_ms, permitted)

        return self._guarded(known, "what it knows of entities") or entities.NOTHING_KNOWN

    def names(self, urns: Sequence[str], question: str, seq: int | None = None) -> list[str]:
        """The names of the entities that the query gives or names; of those alone that a memory is linked to."""

        def known() -> list[str]:
            linked = None if seq is None else {key for key, _ in self._reader.links(seq)}
            about = [key for key in self._about(urns, question) if linked is None or key in linked]
            nodes = [self._reader.node(key) for key in about]
            return [node.name for node in nodes if node is not None]

        return self._guarded(known, "the names of entities") or []

    def expand(
        self, ranked: Places, hops: int, *, no_time: bool, is_late: Callable[[], bool]
    ) -> tuple[Applied, Places]:
        """What goes behind the ranked memories, as far as the rollout lets it, and the places of that. `no_time`:
        whether the query has none for it; `is_late`: whether the answer is, by now."""
        applied = self.expansions.run(self.request, partial(self.measured, ranked, hops), no_time, is_late)
        self.warnings += applied.warnings
        self.ran |= applied.ran and not no_time
        return applied, self._places(applied.items)

    # ------------------------------------------------------------------ parts

    def measured(self, ranked: Places, hops: int, steps: list[Step] | None = None) -> tuple[Expansion, Compared | None]:
        """What the graph adds behind the ranked memories, whatever the rollout lets through, and how that compares with
        the baseline; `steps` as in `Walk`."""
        seqs = self.index.conversation.facts["seq"]
        answered = np.zeros(len(self._place), np.bool_)
        answered[seqs[ranked]] = True
        scope = replace(self._scope, fit=self._fit)
        expansion = expand(Walk(scope, self.seeds(ranked), hops, steps), besides={*seqs[ranked].tolist()})
        left_out = self.permitted[~answered[seqs[self.permitted]]]
        added = self._places(expansion.items)
        types = [item.why["edge_type"] for item in expansion.items]
        words = self.index.words.lengths()[self.index.conversation.slots[added]]
        return expansion, compare(self.semantic, left_out, added, types, words)

    def _places(self, items: Sequence[Related]) -> Places:
        return np.array([self._place[item.seq] for item in items], np.int64)

    def seeds(self, ranked: Places) -> Seeds:
        """The ranked memories that paths begin with, the best by the signal first."""
        near = ranked[self.semantic[ranked] >= self.semantic[ranked].max(initial=-np.inf) - SEED_ODDS][:SEEDS]
        near = near[np.lexsort((near, -self.semantic[near]))]
        seqs, slots = self.index.conversation.facts["seq"][near], self.index.conversation.slots[near]
        return {int(seq): self.index.ids[slot] for seq, slot in zip(seqs, slots, strict=True)}

    def _about(self, urns: Sequence[str], question: str) -> list[NodeKey]:
        """The entities that the query's URNs stand for, and those that its words name."""
        if self._entities is None:
            given, named = entities.given(self._reader, urns), entities.named(self._reader, question)
            self._entities = list(dict.fromkeys([*given, *named]))
        return self._entities

    def _guarded(self, work: Callable[[], T], what: str) -> T | None:
        if not self.expansions.enabled:
            return None
        try:
            return once(STEP, self.request.position, work)
        except InvalidRecord:
            self.warnings.append(Warn(code="graph_failed", detail=f"the graph failed: the answer goes without {what}"))
            return None

    @cached_property
    def _reader(self) -> OwnerGraph:
        return read_once(self.graph)

    @cached_property
    def _place(self) -> npt.NDArray[np.int64]:
        """By `seq`. Of several versions of a memory (a history) the last permitted one counts."""
        seqs = self.index.conversation.facts["seq"]
        table = np.full(int(seqs.max(initial=-1)) + 1, NOWHERE)
        table[seqs[self.permitted]] = self.permitted
        return table

    @cached_property
    def _scope(self) -> Scope:
        return Scope(
            graph=self._reader,
            now_ms=self.now_ms,
            allowed=lambda seq: self._place_of(seq) != NOWHERE,
            prefer=self._preference,
            best=lambda key: self._best_linked.get(key, ()),
        )

    def _place_of(self, seq: int) -> int:
        return int(self._place[seq]) if seq < len(self._place) else NOWHERE

    def _preference(self, seq: int) -> float:
        place = self._place_of(seq)
        return -np.inf if place == NOWHERE else float(self.semantic[place])

    def _fit(self, seq: int, given: bool) -> float:
        """The odds of a permitted memory to be evidence, beside the best one's; of links that were given."""
        return math.exp(self._preference(seq) - self._highest) * (1.0 if given else WORKED_OUT_COUNTS)

    @cached_property
    def _highest(self) -> float:
        return float(self.semantic[self.permitted].max())

    @cached_property
    def _best_linked(self) -> dict[NodeKey, list[int]]:
        """Of the memories that fit the question best, those linked to each shared node."""
        linked: dict[NodeKey, list[int]] = {}
        best = _best(self.semantic, self.permitted, LOOKED_AT)
        for seq in self.index.conversation.facts["seq"][best].tolist():
            for key, _ in self._reader.links(seq)[1:]:
                linked.setdefault(key, []).append(seq)
        return linked


def _best(signal: Column, places: Places, count: int) -> Places:
    """So many of the places, those with the highest signal, best first; earlier places first among equals."""
    values = signal[places]
    # Not all are sorted: an owner may have very many.
    floor = np.partition(values, -count)[-count] if len(values) > count else -np.inf
    fit = places[values >= floor]
    return fit[np.argsort(-signal[fit], kind="stable")][:count]
