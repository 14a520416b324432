"""What the graph does for one recall query: nearness to entities, candidates' neighbours, expansion, entity context.

Each is an extra: where our own code fails in it, the answer goes without, and says so. A storage error is no such
failure; it stops the flow, as everywhere.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from recallflow.errors import InvalidRecord
from recallflow.operators.graph.expand import HOPS_MIN
from recallflow.operators.graph.gate import Places, Signal
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import STEP, Applied, Expansions, Request
from recallflow.operators.guard import once
from recallflow.responses import Warn
from recallflow.state.graph_codec import NodeKey

JOINED_MAX = 50  # neighbours that candidates bring

T = TypeVar("T")


class GraphSteps:
    """One query's steps on the graph. `warnings`: what the response is to say of them; `ran`: whether edges were
    followed to other memories, which makes an answer one of the tier `graph`."""

    def __init__(self, graph: QueryGraph, expansions: Expansions, request: Request) -> None:
        self.warnings: list[Warn] = []
        self.ran = False
        self._graph = graph
        self._expansions = expansions
        self._request = request
        self._entities: list[NodeKey] | None = None

    def proximity(self, urns: Sequence[str], question: str) -> Signal | None:
        """(n,) 1 / (1 + hops) of each place to the entities that the query gives or names; None where nothing tells."""
        return self._guarded(lambda: self._graph.proximity(self._about(urns, question)), "nearness to entities")

    def relationship(self, hops: int) -> dict[int, float]:
        """What edges add to scores, by place: of memories that fit best, and of their neighbours up to `hops`. One hop
        asks for none."""
        if hops <= HOPS_MIN:
            return {}
        joined = self._guarded(lambda: self._graph.neighbours(hops, JOINED_MAX), "neighbours of the candidates")
        self.ran |= joined is not None
        return {} if joined is None else joined.boosts

    def context(self, urns: Sequence[str], question: str) -> list[dict[str, Any]]:
        """What there is to tell of the entities that the query gives or names."""
        return (
            self._guarded(lambda: self._graph.context(self._about(urns, question)), "what it knows of entities") or []
        )

    def expand(self, ranked: Places, hops: int, *, late: bool) -> tuple[Applied, Places]:
        """What goes behind the ranked memories, as far as the rollout lets it, and the places of it. `late`: the query
        has no time for it."""
        expand, compare = partial(self._graph.expand, ranked, hops), partial(self._graph.compare, ranked)
        applied = self._expansions.run(self._request, expand, compare, late=late)
        self.warnings += applied.warnings
        self.ran |= applied.ran
        return applied, self._graph.places([item.seq for item in applied.items])

    def _about(self, urns: Sequence[str], question: str) -> list[NodeKey]:
        if self._entities is None:
            self._entities = self._graph.entities(urns, question)
        return self._entities

    def _guarded(self, work: Callable[[], T], what: str) -> T | None:
        if not self._expansions.enabled:
            return None
        try:
            return once(STEP, self._request.position, work)
        except InvalidRecord:
            self.warnings.append(Warn(code="graph_failed", detail=f"the graph failed: the answer goes without {what}"))
            return None
