"""An owner's graph for one recall query: nearness to entities, boosts, expansion, and knowledge about entities.

All of these are optional: after an internal error, the answer lacks the result and has a warning. A storage error stops
the flow. This module converts the ranking's positions (in conversation order) to the graph's `seq`, and back."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np

from recallflow.errors import InvalidRecord
from recallflow.graphs import Trace, TracedMemory, TracedStep
from recallflow.operators.events import Ask
from recallflow.operators.graph import paths, reader
from recallflow.operators.graph.quality_gate import BaselineComparison, compare
from recallflow.operators.graph.rollout import STEP, AppliedExpansion, Expansions, Fallback
from recallflow.operators.guard import try_once
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
STEPS_MAX = 1_000


def proximity(scope: reader.TraversalScope, index: OwnerIndex, entities: Sequence[NodeKey]) -> Column:
    """Return (n,) in conversation order: 1 / (1 + hops), with 0 hops for memories linked to one of the entities. The
    value is 0 for memories that are more than three hops away, or not reached within the limits."""
    seqs = index.conversation.facts["seq"]
    by_seq = np.zeros(int(seqs.max(initial=-1)) + 1)
    for seq, hops in _Search(scope).hops(entities).items():
        if seq < len(by_seq):  # an index of an earlier moment is shorter
            by_seq[seq] = 1 / (1 + hops)
    return by_seq[seqs]


class _Search:
    """A breadth-first search from shared nodes, which yields only distances. It counts hops like `Neighbourhood`."""

    def __init__(self, scope: reader.TraversalScope) -> None:
        self._scope, self._graph = scope, scope.graph
        self._reads = 0
        self._hops: dict[int, int] = {}
        self._nodes: set[NodeKey] = set()

    def hops(self, entities: Sequence[NodeKey]) -> dict[int, int]:
        """Return the hops of each memory (`seq`)."""
        memories: list[int] = []
        nodes: list[NodeKey] = []
        fan_out = self._scope.bounds.fan_out
        self._add_nodes(entities, nodes)
        for hop in range(HOPS + 1):
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for key in nodes:
                if self._count_read():
                    linked = self._scope.linked(key)[:fan_out] if hop else self._graph.members(key, MEMBERS_MAX)
                    self._add_memories(hop, linked, memories)
                    self._add_edges(hop, key, memories, next_nodes)
            for seq in memories if hop < HOPS else ():
                if self._count_read() and (links := self._graph.links(seq)):
                    self._add_nodes([key for key, _ in links], next_nodes)
                    self._add_edges(hop + 1, links[0][0], next_memories, next_nodes)
            memories, nodes = next_memories, next_nodes
        return self._hops

    def _add_edges(self, hop: int, own: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        edges = self._graph.edges(own, self._scope.bounds.fan_out)
        others = [reader.other_end(edge, own) for edge in edges if self._scope.is_valid(edge)]
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
                if not reader.is_type_node(key) and not self._graph.is_archived(key):
                    nodes.append(key)

    def _count_read(self) -> bool:
        """Count a read. Return whether it is within the limit."""
        self._reads += 1
        return self._reads <= READS_MAX


NO_POSITION = -1
SEEDS = 10  # memories at which paths start
# Seeds have at least a twentieth of the best memory's odds of being evidence: the signal is log-odds, and e^-3 is about
# 1/20. Irrelevant seeds would lead to more irrelevant memories.
SEED_SPREAD = 3.0
BOOSTED_MAX = 50  # boosted neighbours of the seeds
PREFERRED_MAX = 100  # the best memories; their links are preferred at shared nodes with many memories
T = TypeVar("T")


@dataclass(kw_only=True)
class QueryGraph:
    """The graph at a query's moment, restricted to the memories that the query permits."""

    graph: OwnerGraph
    index: OwnerIndex
    signal: Column  # (n,) the score of each position before graph features, as log-odds
    permitted: Positions  # the positions that may be in the answer
    now_ms: int  # the time at which edges must be valid
    expansions: Expansions
    ask: Ask
    warnings: list[Warn] = field(default_factory=list)  # warnings for the response
    ran: bool = False  # whether the graph was traversed; then the answer has the tier `graph`
    _entities: list[NodeKey] | None = None  # of the query; None until they are looked up

    def proximity(self, urns: Sequence[str], question: str) -> Column | None:
        """Return (n,) 1 / (1 + hops) from positions to the query's entities, 0 without a path; None without a graph."""

        def proximities() -> Column:
            about = self._query_entities(urns, question)
            self.ran |= bool(about)
            return proximity(self._scope, self.index, about)

        return self._guarded(proximities, "nearness to entities")

    def warn_of_unknown(self, urns: Sequence[str]) -> None:
        """Add a warning for URNs of a query that no node has, because they have no effect."""

        missing = self._guarded(
            lambda: [urn for urn in urns if not reader.given_entities(self._cached, [urn])], "the check of entity_urns"
        )
        if missing:
            detail = f"entity_urns: no entity has the URN {', '.join(missing)}"
            self.warnings.append(Warn(code="unknown_entity", detail=detail))

    def boosts(self, hops: int) -> dict[int, float]:
        """Return the boosts of the best memories and their neighbours, by position; none for one hop."""
        if hops <= HOPS_MIN:
            return {}

        def boosts() -> dict[int, float]:
            seeds = self.seeds(_best(self.signal, self.permitted, SEEDS))
            return paths.boosts(paths.Walk(self._scope, seeds, hops), BOOSTED_MAX)

        by_seq = self._guarded(boosts, "neighbours of the candidates")
        self.ran |= by_seq is not None
        return {int(self._position_of_seq[seq]): boost for seq, boost in (by_seq or {}).items()}

    def context(self, urns: Sequence[str], question: str, *, filtered: bool) -> reader.EntityContext:
        """Return knowledge about the query's entities and nearby ones. `filtered`: only from permitted memories."""

        def context() -> reader.EntityContext:
            permitted = self._scope.allowed if filtered else None
            return reader.entity_context(self._cached, self._query_entities(urns, question), self.now_ms, permitted)

        return self._guarded(context, "knowledge about entities") or reader.NO_ENTITIES

    def names(self, urns: Sequence[str], question: str, seq: int | None = None) -> list[str]:
        """Return the names of the query's entities; with `seq`, only of those linked to that memory."""

        def names() -> list[str]:
            linked = None if seq is None else {key for key, _ in self._cached.links(seq)}
            about = [key for key in self._query_entities(urns, question) if linked is None or key in linked]
            return [node.name for node in map(self._cached.node, about) if node is not None]

        return self._guarded(names, "the names of entities") or []

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
        self, ranked: Positions, hops: int, steps: list[paths.WalkStep] | None = None
    ) -> tuple[paths.Expansion, BaselineComparison | None]:
        """Return the expansion after the ranked memories and its comparison with the baseline. `steps`: see `Walk`."""
        seqs = self.index.conversation.facts["seq"]
        is_ranked = np.zeros(len(self._position_of_seq), np.bool_)
        is_ranked[seqs[ranked]] = True
        scope = replace(self._scope, fit=self._fit)
        expansion = paths.expand(paths.Walk(scope, self.seeds(ranked), hops, steps), exclude={*seqs[ranked].tolist()})
        left_out = self.permitted[~is_ranked[seqs[self.permitted]]]
        added = self._positions(expansion.items)
        types = [item.why["edge_type"] for item in expansion.items]
        words = self.index.words.lengths()[self.index.conversation.slots[added]]
        return expansion, compare(self.signal, left_out, added, types, words)

    def _positions(self, items: Sequence[paths.RelatedMemory]) -> Positions:
        return np.array([self._position_of_seq[item.seq] for item in items], np.int64)

    def seeds(self, ranked: Positions) -> paths.Seeds:
        """Return the ranked memories at which paths start, best signal first."""
        best = ranked[self.signal[ranked] >= self.signal[ranked].max(initial=-np.inf) - SEED_SPREAD][:SEEDS]
        best = best[np.lexsort((best, -self.signal[best]))]
        seqs, slots = self.index.conversation.facts["seq"][best], self.index.conversation.slots[best]
        return {int(seq): self.index.ids[slot] for seq, slot in zip(seqs, slots, strict=True)}

    def _query_entities(self, urns: Sequence[str], question: str) -> list[NodeKey]:
        """Return the entities of the query's URNs, and the entities named in its text."""
        if self._entities is None:
            of_urns, named = reader.given_entities(self._cached, urns), reader.named_entities(self._cached, question)
            self._entities = list(dict.fromkeys([*of_urns, *named]))
        return self._entities

    def _guarded(self, work: Callable[[], T], part: str) -> T | None:
        """Return the result of work; None if the graph is off, or after a failure, which adds a warning of `part`."""
        if not self.expansions.enabled:
            return None
        try:
            return try_once(STEP, self.ask.record.position, work)
        except InvalidRecord:
            self.warnings.append(Warn(code="graph_failed", detail=f"the graph failed: the answer lacks {part}"))
            return None

    @cached_property
    def _cached(self) -> OwnerGraph:
        return reader.with_read_cache(self.graph)

    @cached_property
    def _position_of_seq(self) -> Positions:
        """The permitted position of each `seq`; of a memory's last permitted version, if an index has several."""
        seqs = self.index.conversation.facts["seq"]
        table = np.full(int(seqs.max(initial=-1)) + 1, NO_POSITION)
        table[seqs[self.permitted]] = self.permitted
        return table

    @cached_property
    def _scope(self) -> reader.TraversalScope:
        return reader.TraversalScope(
            graph=self._cached,
            now_ms=self.now_ms,
            allowed=lambda seq: self._position(seq) != NO_POSITION,
            prefer=self._preference,
            best=lambda key: self._best_linked.get(key, ()),
        )

    def _position(self, seq: int) -> int:
        return int(self._position_of_seq[seq]) if seq < len(self._position_of_seq) else NO_POSITION

    def _preference(self, seq: int) -> float:
        position = self._position(seq)
        return -np.inf if position == NO_POSITION else float(self.signal[position])

    def _fit(self, seq: int, by_event: bool) -> float:
        """Return a memory's odds relative to the best permitted one; 0 over derived connections only, because adding
        such memories had the same effect as a larger k on every kind of chat."""
        return math.exp(self._preference(seq) - self._best_signal) if by_event else 0.0

    @cached_property
    def _best_signal(self) -> float:
        return float(self.signal[self.permitted].max())

    @cached_property
    def _best_linked(self) -> dict[NodeKey, list[int]]:
        """The best memories by signal, by shared node."""
        linked: dict[NodeKey, list[int]] = {}
        best = _best(self.signal, self.permitted, PREFERRED_MAX)
        for seq in self.index.conversation.facts["seq"][best].tolist():
            for key, _ in self._cached.links(seq)[1:]:
                linked.setdefault(key, []).append(seq)
        return linked


def _best(signal: Column, positions: Positions, count: int) -> Positions:
    """Return the positions with the highest signal, best first, ties by earlier position."""
    values = signal[positions]
    # A partition avoids sorting all positions of a large owner.
    floor = np.partition(values, -count)[-count] if len(values) > count else -np.inf
    fit = positions[values >= floor]
    return fit[np.argsort(-signal[fit], kind="stable")][:count]


def trace(graph: QueryGraph, ranked: Positions, scores: Column, hops: int, fallback: Fallback | None) -> Trace:
    """Return the trace of an expansion after the ranked memories, given as positions and scores, best first."""
    steps: list[paths.WalkStep] = []
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


def _traced(graph: QueryGraph, step: paths.WalkStep) -> TracedStep:
    spend(1)
    source, target = _vertex_key(graph, step.source), _vertex_key(graph, step.target)
    score = None if step.score is None else round(step.score, 6)
    return TracedStep(
        hop=step.hops, source=source, target=target, **paths.edge_values(step.edge), score=score, outcome=step.outcome
    )


def _vertex_key(graph: QueryGraph, vertex: paths.Vertex) -> str:
    """Return the key of a vertex, from the index for a memory. The graph lacks memories whose graph write failed, and
    the index of an earlier moment lacks later memories."""
    if not isinstance(vertex, int):
        return str(vertex)
    if (slot := graph.index.slot(vertex)) is not None:
        return str(NodeKey(graph.index.ids[slot], memory=True))
    return str(graph.graph.links(vertex)[0][0])
