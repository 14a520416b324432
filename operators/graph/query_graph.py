"""An owner's graph for one recall query: nearness to entities, boosts, expansion, and knowledge about entities.

All of these are optional: after an internal error, the answer lacks the result and has a warning. A storage error stops
the flow. The ranking identifies a memory by its position in conversation order, and the graph by its `seq`; this module
converts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recallflow.errors import InvalidRecord
from recallflow.graphs import Trace, TracedMemory, TracedStep
from recallflow.operators.events import Ask
from recallflow.operators.graph.paths import (
    Expansion,
    Related,
    Seeds,
    Vertex,
    Walk,
    WalkStep,
    boosts,
    edge_values,
    expand,
)
from recallflow.operators.graph.quality_gate import BaselineComparison, compare
from recallflow.operators.graph.reader import (
    NO_ENTITIES,
    EntityContext,
    TraversalScope,
    entity_context,
    given_entities,
    is_type_node,
    named_entities,
    other_end,
    read_once,
)
from recallflow.operators.graph.rollout import STEP, AppliedExpansion, Expansions, Fallback
from recallflow.operators.guard import once
from recallflow.queries import HOPS_MIN
from recallflow.responses import Warn
from recallflow.state.arrays import Column, Positions
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from recallflow.stepped import spend

HOPS = 3
MEMBERS_MAX = 2_000  # the newest memories of an entity; older ones do not count as near
READS_MAX = 16  # nodes and memories that are read, the nearest first; a limit of the cost of a query


def proximity(scope: TraversalScope, index: OwnerIndex, entities: Sequence[NodeKey]) -> npt.NDArray[np.floating[Any]]:
    """Return (n,) in conversation order: 1 / (1 + hops), with 0 hops for memories linked to one of the entities. It is
    0 for memories that are more than three hops away, or not reached within the limits."""
    seqs = index.conversation.facts["seq"]
    by_seq = np.zeros(int(seqs.max(initial=-1)) + 1)
    for seq, hops in _Search(scope).hops(entities).items():
        if seq < len(by_seq):  # an index of an earlier moment is shorter
            by_seq[seq] = 1 / (1 + hops)
    found: npt.NDArray[np.floating[Any]] = by_seq[seqs]
    return found


class _Search:
    """A breadth-first search that counts hops as `Neighbourhood` does, from shared nodes, for distances only."""

    def __init__(self, scope: TraversalScope) -> None:
        self._scope, self._graph = scope, scope.graph
        self._reads = 0
        self._hops: dict[int, int] = {}
        self._nodes: set[NodeKey] = set()

    def hops(self, entities: Sequence[NodeKey]) -> dict[int, int]:
        """Return the hops of each memory (`seq`)."""
        memories: list[int] = []
        nodes: list[NodeKey] = []
        self._add_nodes(entities, nodes)
        for hop in range(HOPS + 1):
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for key in nodes:
                if self._count_read():
                    self._add_memories(hop, self._members(key, hop), memories)
                    self._add_edges(hop, key, memories, next_nodes)
            for seq in memories if hop < HOPS else ():
                if self._count_read() and (links := self._graph.links(seq)):
                    self._add_nodes([key for key, _ in links], next_nodes)
                    self._add_edges(hop + 1, links[0][0], next_memories, next_nodes)
            memories, nodes = next_memories, next_nodes
        return self._hops

    def _members(self, key: NodeKey, hop: int) -> list[int]:
        if hop == 0:
            return self._graph.members(key, MEMBERS_MAX)
        return self._scope.linked(key)[: self._scope.bounds.fan_out]

    def _add_edges(self, hop: int, own: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        edges = self._graph.edges(own, self._scope.bounds.fan_out)
        others = [other_end(edge, own) for edge in edges if self._scope.is_valid(edge)]
        self._add_memories(hop, [seq for key in others if key.memory for seq in self._graph.members(key, 1)], memories)
        self._add_nodes(others, nodes)

    def _add_memories(self, hop: int, found: Iterable[int], memories: list[int]) -> None:
        for seq in found:
            if seq not in self._hops:
                self._hops[seq] = hop
                memories.append(seq)

    def _add_nodes(self, found: Iterable[NodeKey], nodes: list[NodeKey]) -> None:
        """Add shared nodes that paths may visit."""
        for key in found:
            if not key.memory and key not in self._nodes:
                self._nodes.add(key)
                if not is_type_node(key) and not self._graph.is_archived(key):
                    nodes.append(key)

    def _count_read(self) -> bool:
        """Count a read. Return whether it is within the limit."""
        self._reads += 1
        return self._reads <= READS_MAX


NO_PLACE = -1
SEEDS = 10
# The signal is log-odds: paths start at memories whose odds of being evidence are at least a twentieth of the best
# one's. Irrelevant memories would lead to more irrelevant ones.
SEED_SPREAD = 3.0
BOOSTED_MAX = 50  # boosted neighbours of the seeds
# Memories reached only over names in texts, authors, episodes and similarity are not added. They are no better than the
# next ranked memories: a larger k has the same effect on every kind of chat.
DERIVED_FACTOR = 0.0
PREFERRED_MAX = 100  # best memories whose links are read, for shared nodes with many memories

T = TypeVar("T")


@dataclass(kw_only=True)
class QueryGraph:
    """The graph at a query's moment, restricted to the memories that the query permits."""

    graph: OwnerGraph
    index: OwnerIndex
    semantic: Column  # (n,) the signal of each position
    permitted: Positions  # the positions that may be in the answer
    now_ms: int  # the time at which edges must be valid
    expansions: Expansions
    ask: Ask
    warnings: list[Warn] = field(default_factory=list)  # warnings for the response
    ran: bool = False  # whether the graph was traversed; then the answer has the tier `graph`
    _entities: list[NodeKey] | None = None

    def proximity(self, urns: Sequence[str], question: str) -> Column | None:
        """Return (n,) 1 / (1 + hops) of each position to the entities that the query gives or names, 0 without a path;
        None if the graph is off or failed."""

        def near() -> Column:
            about = self._query_entities(urns, question)
            self.ran |= bool(about)
            return proximity(self._scope, self.index, about)

        return self._guarded(near, "nearness to entities")

    def warn_of_unknown(self, urns: Sequence[str]) -> None:
        """Add a warning for URNs of a query that no node has, because they have no effect."""

        def unknown() -> list[str]:
            return [urn for urn in urns if not given_entities(self._reader, [urn])]

        if found := self._guarded(unknown, "the check of entity_urns"):
            self.warnings.append(
                Warn(code="unknown_entity", detail=f"entity_urns: no entity has the URN {', '.join(found)}")
            )

    def boosts(self, hops: int) -> dict[int, float]:
        """Return the boosts of the best memories and their neighbours, by position; none for one hop."""
        if hops <= HOPS_MIN:
            return {}

        def near() -> dict[int, float]:
            return boosts(Walk(self._scope, self.seeds(_best(self.semantic, self.permitted, SEEDS)), hops), BOOSTED_MAX)

        found = self._guarded(near, "neighbours of the candidates")
        self.ran |= found is not None
        return {int(self._position_of_seq[seq]): boost for seq, boost in (found or {}).items()}

    def context(self, urns: Sequence[str], question: str, *, filtered: bool) -> EntityContext:
        """Return knowledge about the query's entities and those near them. `filtered`: from permitted memories only."""

        def known() -> EntityContext:
            permitted = self._scope.allowed if filtered else None
            return entity_context(self._reader, self._query_entities(urns, question), self.now_ms, permitted)

        return self._guarded(known, "knowledge about entities") or NO_ENTITIES

    def names(self, urns: Sequence[str], question: str, seq: int | None = None) -> list[str]:
        """Return the names of the entities that the query gives or names; optionally only those linked to a memory."""

        def known() -> list[str]:
            linked = None if seq is None else {key for key, _ in self._reader.links(seq)}
            about = [key for key in self._query_entities(urns, question) if linked is None or key in linked]
            nodes = [self._reader.node(key) for key in about]
            return [node.name for node in nodes if node is not None]

        return self._guarded(known, "the names of entities") or []

    def expand(
        self, ranked: Positions, hops: int, *, no_time: bool, is_late: Callable[[], bool]
    ) -> tuple[AppliedExpansion, Positions]:
        """Return the expansion after the ranked memories, subject to the rollout, and its positions. `no_time`: the
        query's deadline leaves no time for it. `is_late` returns whether the deadline has passed."""
        applied = self.expansions.run(self.ask, partial(self.measured, ranked, hops), no_time, is_late)
        self.warnings += applied.warnings
        self.ran |= applied.ran and not no_time
        return applied, self._positions(applied.items)

    def measured(
        self, ranked: Positions, hops: int, steps: list[WalkStep] | None = None
    ) -> tuple[Expansion, BaselineComparison | None]:
        """Return the expansion after the ranked memories, whatever the rollout is, and its comparison with the
        baseline. `steps`: see `Walk`."""
        seqs = self.index.conversation.facts["seq"]
        answered = np.zeros(len(self._position_of_seq), np.bool_)
        answered[seqs[ranked]] = True
        scope = replace(self._scope, fit=self._fit)
        expansion = expand(Walk(scope, self.seeds(ranked), hops, steps), exclude={*seqs[ranked].tolist()})
        left_out = self.permitted[~answered[seqs[self.permitted]]]
        added = self._positions(expansion.items)
        types = [item.why["edge_type"] for item in expansion.items]
        words = self.index.words.lengths()[self.index.conversation.slots[added]]
        return expansion, compare(self.semantic, left_out, added, types, words)

    def _positions(self, items: Sequence[Related]) -> Positions:
        return np.array([self._position_of_seq[item.seq] for item in items], np.int64)

    def seeds(self, ranked: Positions) -> Seeds:
        """Return the ranked memories at which paths start, best signal first."""
        near = ranked[self.semantic[ranked] >= self.semantic[ranked].max(initial=-np.inf) - SEED_SPREAD][:SEEDS]
        near = near[np.lexsort((near, -self.semantic[near]))]
        seqs, slots = self.index.conversation.facts["seq"][near], self.index.conversation.slots[near]
        return {int(seq): self.index.ids[slot] for seq, slot in zip(seqs, slots, strict=True)}

    def _query_entities(self, urns: Sequence[str], question: str) -> list[NodeKey]:
        """Return the entities of the query's URNs, and those named in its text."""
        if self._entities is None:
            given, named = given_entities(self._reader, urns), named_entities(self._reader, question)
            self._entities = list(dict.fromkeys([*given, *named]))
        return self._entities

    def _guarded(self, work: Callable[[], T], what: str) -> T | None:
        if not self.expansions.enabled:
            return None
        try:
            return once(STEP, self.ask.record.position, work)
        except InvalidRecord:
            self.warnings.append(Warn(code="graph_failed", detail=f"the graph failed: the answer lacks {what}"))
            return None

    @cached_property
    def _reader(self) -> OwnerGraph:
        return read_once(self.graph)

    @cached_property
    def _position_of_seq(self) -> npt.NDArray[np.int64]:
        """The position of each `seq`. Of several versions of a memory (a history), the last permitted one counts."""
        seqs = self.index.conversation.facts["seq"]
        table = np.full(int(seqs.max(initial=-1)) + 1, NO_PLACE)
        table[seqs[self.permitted]] = self.permitted
        return table

    @cached_property
    def _scope(self) -> TraversalScope:
        return TraversalScope(
            graph=self._reader,
            now_ms=self.now_ms,
            allowed=lambda seq: self._place_of(seq) != NO_PLACE,
            prefer=self._preference,
            best=lambda key: self._best_linked.get(key, ()),
        )

    def _place_of(self, seq: int) -> int:
        return int(self._position_of_seq[seq]) if seq < len(self._position_of_seq) else NO_PLACE

    def _preference(self, seq: int) -> float:
        position = self._place_of(seq)
        return -np.inf if position == NO_PLACE else float(self.semantic[position])

    def _fit(self, seq: int, attached: bool) -> float:
        """Return the odds of a memory relative to the best permitted one, times `DERIVED_FACTOR` if it is not
        `attached`."""
        return math.exp(self._preference(seq) - self._best_signal) * (1.0 if attached else DERIVED_FACTOR)

    @cached_property
    def _best_signal(self) -> float:
        return float(self.semantic[self.permitted].max())

    @cached_property
    def _best_linked(self) -> dict[NodeKey, list[int]]:
        """The best memories by signal, by shared node."""
        linked: dict[NodeKey, list[int]] = {}
        best = _best(self.semantic, self.permitted, PREFERRED_MAX)
        for seq in self.index.conversation.facts["seq"][best].tolist():
            for key, _ in self._reader.links(seq)[1:]:
                linked.setdefault(key, []).append(seq)
        return linked


def _best(signal: Column, positions: Positions, count: int) -> Positions:
    """Return the positions with the highest signal, best first, ties by earlier position."""
    values = signal[positions]
    # A partition avoids sorting all positions of a large owner.
    floor = np.partition(values, -count)[-count] if len(values) > count else -np.inf
    fit = positions[values >= floor]
    return fit[np.argsort(-signal[fit], kind="stable")][:count]


STEPS_MAX = 1_000


def trace(graph: QueryGraph, ranked: Positions, scores: Column, hops: int, fallback: Fallback | None) -> Trace:
    """Return the trace of an expansion after the ranked memories, given as positions and scores, best first."""
    steps: list[WalkStep] = []
    expansion, _ = graph.measured(ranked, hops, steps)
    score = dict(zip(graph.index.conversation.facts["seq"][ranked], scores, strict=True))
    return Trace(
        seeds=[TracedMemory(id=id_, score=round(float(score[seq]), 6)) for seq, id_ in graph.seeds(ranked).items()],
        steps=[_traced(graph, step) for step in steps[:STEPS_MAX]],
        left_out=max(0, len(steps) - STEPS_MAX),
        expanded=[TracedMemory(id=item.id, score=round(item.score, 6), why=item.why) for item in expansion.items],
        caps=asdict(expansion.caps),
        fallback=fallback,
    )


def _traced(graph: QueryGraph, step: WalkStep) -> TracedStep:
    spend(1)
    source, target = _name(graph, step.source), _name(graph, step.target)
    score = None if step.score is None else round(step.score, 6)
    return TracedStep(
        hop=step.hops, source=source, target=target, **edge_values(step.edge), score=score, outcome=step.outcome
    )


def _name(graph: QueryGraph, vertex: Vertex) -> str:
    """Return the key of a vertex, from the index for a memory. The graph lacks memories whose graph write failed, and
    the index of an earlier moment lacks later memories."""
    if not isinstance(vertex, int):
        return str(vertex)
    if (slot := graph.index.slot(vertex)) is not None:
        return str(NodeKey(graph.index.ids[slot], memory=True))
    return str(graph.graph.links(vertex)[0][0])
