"""An owner's graph as one query may use it: at its moment, through the memories that it permits.

The ranking speaks of places (in conversation order), the graph of `seq`: this is where the two meet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.operators.graph import entities as found
from recallflow.operators.graph.expand import EXPANSION_K, Expansion, Scope, Seed, expand, neighbours
from recallflow.operators.graph.gate import Compared, Places, Signal, compare
from recallflow.operators.graph.proximity import proximity
from recallflow.operators.graph.reader import Caps, GraphReader, ReadOnce
from recallflow.operators.graph.traverse import Watch
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex

NOWHERE = -1
SEEDS = 10
# The signal is log-odds: edges are followed from memories whose odds of being evidence are at least a twentieth of the
# best one's. What is not about the question leads to more of that.
SEED_ODDS = 3.0


class Joined(NamedTuple):
    """Neighbours: places to rank as well, best first; what edges add to the score of each place; bounds."""

    places: Places
    boosts: dict[int, float]
    caps: Caps


@dataclass(frozen=True)
class QueryGraph:
    """`semantic`: (n,) what the ranking makes of each place; `permitted`: places that may be in the answer; times in
    epoch ms: `now_ms` when edges must hold, `known_by_ms` after which none may have come in."""

    graph: GraphReader
    index: OwnerIndex
    semantic: Signal
    permitted: Places
    now_ms: int
    known_by_ms: int | None = None

    # ------------------------------------------------------------------ entities

    def entities(self, urns: Sequence[str], question: str) -> list[NodeKey]:
        """Those a query is about: what its URNs stand for, and what its words name."""
        finder = found.Finder(self.graph)
        return list(dict.fromkeys([*finder.given(urns), *finder.named(question)]))

    def proximity(self, entities: Sequence[NodeKey]) -> Signal:
        """(n,) 1 / (1 + hops) of each place to the nearest of the entities; 0 where there is no way."""
        return proximity(self.graph, self.index, entities, self.now_ms)

    def context(self, entities: Sequence[NodeKey]) -> list[dict[str, Any]]:
        """What an assembled context tells of the entities, and of those near them."""
        return found.context(self.graph, entities, self.now_ms)

    # ------------------------------------------------------------------ memories

    def neighbours(self, hops: int, limit: int) -> Joined:
        """What the graph adds before anything is ranked: around the memories that fit best, by the signal alone."""
        signal = self.semantic[self.permitted]
        # Not all are sorted: an owner may have very many.
        floor = np.partition(signal, -SEEDS)[-SEEDS] if len(signal) > SEEDS else -np.inf
        fit = self.permitted[signal >= floor]
        best = fit[np.argsort(-self.semantic[fit], kind="stable")]
        near = neighbours(self._scope, self.seeds(best), hops, limit)
        boosts = {int(self._place[seq]): boost for seq, boost in near.boosts.items()}
        return Joined(self.places(near.joined), boosts, near.caps)

    def expand(self, ranked: Places, hops: int, limit: int = EXPANSION_K, watch: Watch | None = None) -> Expansion:
        """What the graph adds behind the ranked memories."""
        answered = {int(seq) for seq in self.index.conversation.facts["seq"][ranked]}
        return expand(self._scope, self.seeds(ranked), hops, limit, answered, watch)

    def compare(self, ranked: Places, expansion: Expansion) -> Compared | None:
        """What the graph adds, beside what the ranking would have added."""
        seqs = self.index.conversation.facts["seq"]
        answered = np.zeros(len(self._place), np.bool_)
        answered[seqs[ranked]] = True
        left_out = self.permitted[~answered[seqs[self.permitted]]]
        return compare(self.semantic, left_out, self.places([item.seq for item in expansion.items]))

    def places(self, seqs: Sequence[int]) -> Places:
        """The permitted places of memories; each has one."""
        return self._place[np.array(seqs, np.int64)] if seqs else np.zeros(0, np.int64)

    def memory_id(self, seq: int) -> str:
        """What a memory of the graph is called; the graph may know more than an index of an earlier moment."""
        own, *_ = self.graph.links(seq)
        return own[0].text

    def ids(self, places: Places) -> list[str]:
        return [self.index.ids[slot] for slot in self.index.conversation.slots[places]]

    def seeds(self, ranked: Places) -> list[Seed]:
        """Those of the ranked memories that edges are followed from, the best by the signal first."""
        near = ranked[self.semantic[ranked] >= self.semantic[ranked].max(initial=-np.inf) - SEED_ODDS][:SEEDS]
        near = near[np.lexsort((near, -self.semantic[near]))]
        seqs = self.index.conversation.facts["seq"][near]
        return [Seed(int(seq), memory_id) for seq, memory_id in zip(seqs, self.ids(near), strict=True)]

    @cached_property
    def _place(self) -> npt.NDArray[np.int64]:
        """By `seq`. Of several versions of a memory (a history) the last permitted one counts."""
        seqs = self.index.conversation.facts["seq"]
        table = np.full(int(seqs.max(initial=-1)) + 1, NOWHERE)
        table[seqs[self.permitted]] = self.permitted
        return table

    @cached_property
    def _scope(self) -> Scope:
        place, semantic = self._place, self.semantic
        return Scope(
            graph=ReadOnce(self.graph),
            memories=len(self.index),
            now_ms=self.now_ms,
            known_by_ms=self.known_by_ms,
            allowed=lambda seq: seq < len(place) and place[seq] != NOWHERE,
            prefer=lambda seq: float(semantic[place[seq]]),
        )
