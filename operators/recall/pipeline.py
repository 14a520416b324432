"""The way from a recall query to its response, in the twelve steps of docs/recall.md.

Step 2 (authorise) is a step of the dataflow before the state; everything here is about an owner who may be asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from recallflow.control import RecallSettings
from recallflow.embedder import Embedder
from recallflow.limits import PARTICIPANTS_MAX, QUERY_CHARACTERS
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import Applied, Expansions, Request
from recallflow.operators.recall import compose, context, signal
from recallflow.operators.recall.deadline import REST, TARGET_MS, Deadline, Step, tier_of
from recallflow.operators.recall.filters import allowed
from recallflow.operators.recall.intent import intent_of, mode_for
from recallflow.operators.recall.laps import Laps
from recallflow.operators.recall.modes import rank
from recallflow.operators.recall.moment import Moment, index_at
from recallflow.operators.recall.question import Question, understand
from recallflow.operators.recall.request import graph_missed, scarce, validate
from recallflow.operators.recall.revisions import conflicts, superseded
from recallflow.operators.recall.scene import NO_SEQS, Ranking, Scene
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.tuning import Tuning, tuned
from recallflow.queries import Recall
from recallflow.responses import Context, Response, Warn, status_of
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


@dataclass(frozen=True, slots=True)
class Engine:
    """What recall needs beside an owner's state: what a process shares, such as the model for questions; the rows'
    reader, the episode gap, a timer for what the response tells of its own time (seconds, from any start), and the
    state partition's graph expansions."""

    shared: Shared
    rows: Callable[[HotOwner, OwnerIndex, list[int]], list[MemoryRow | None]]
    episode_gap_ms: int
    timer: Callable[[], float]
    expansions: Expansions

    @property
    def embedder(self) -> Embedder:
        return self.shared.questions.embedder


class Effects(NamedTuple):
    """What an answer leaves behind once it has been handed on (step 12): these memories were returned at that time, in
    that session."""

    seqs: tuple[int, ...]
    session_id: str | None
    at_ms: int


class Recalled(NamedTuple):
    """An answer; its effects, none where it was about another moment than now; and what it was ranked from."""

    response: Response
    effects: Effects | None
    ranking: Ranking
    graph: QueryGraph


def recall(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, tenant: RecallSettings
) -> Recalled:
    """One query's answer, ranked as the tenant and the query have it; asked at `asked_ms`. Raises InvalidRecord for
    what cannot be answered."""
    run = _Run(engine, hot, query, request, asked_ms)
    run.understand(tenant)
    run.find_candidates()
    run.rank()
    run.expand()
    run.fetch()
    run.compose()
    return Recalled(run.response(), run.effects(), run.ranking, run.graph)


class _Run:
    """One query on its way through the steps, in the order of `recall`. `warnings` gathers what the response tells of
    them, `laps` how long each took."""

    def __init__(self, engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int) -> None:
        self._engine, self._hot, self._query, self._request, self._asked_ms = engine, hot, query, request, asked_ms
        self._laps = Laps(engine.timer)
        self._deadline = Deadline(engine.timer, query.sla_target_ms, engine.shared.costs)
        # 1. validate
        self._warnings: list[Warn] = validate(query)
        self._moment = Moment.of(query, asked_ms)
        embedder = engine.embedder
        self._index = index_at(hot, self._moment, embedder.name, embedder.dimension, engine.episode_gap_ms)
        self._read_rows = partial(engine.rows, hot, self._index)
        self._laps.lap("index")

    def understand(self, tenant: RecallSettings) -> None:
        """3. What is asked, in which mode, and what the time left forbids."""
        self._question = understand(self._query.query.strip()[:QUERY_CHARACTERS], participants(self._index))
        self._intent = intent_of(self._question)
        self._tuning = tuned(self._query, mode_for(self._query.mode, self._intent), tenant)
        self._dropped: list[Step] = []
        if self._query.sla_target_ms is not None:  # without a target nothing is dropped, whatever is ahead
            ahead = optional_steps(self._engine, self._query, self._tuning, self._question)
            self._dropped = self._deadline.drops(ahead)
            self._warnings += self._deadline.warn(self._dropped)
        self._laps.lap("understand")
        self._understood_ms = self._laps.elapsed_ms()

    def find_candidates(self) -> None:
        """4. Which memories may be in the answer, with the filters pushed down, and what the question means to each."""
        out = superseded(self._hot.graph, self._index, self._moment)
        self._permitted = np.flatnonzero(allowed(self._index, self._query.filters, self._moment) & ~out)
        self._meant: signal.Signal | None = None
        if self._tuning.mode != "recency" and self._index.conversation.size:
            shared, index, question = self._engine.shared, self._index, self._question
            if "dense" in self._dropped:
                self._meant = signal.worded(shared, index, question, self._permitted)
            else:
                self._meant = signal.read(shared, index, question, self._permitted, self._read_rows)
            self._warnings += self._meant.warnings
        self._columns = self._meant.columns if self._meant else None
        self._laps.lap("candidates")

    def rank(self) -> None:
        """6., 7., 9. Factors, tie-break, boosts; 8. the graph, as far as ranking asks for it."""
        query, moment, index, tuning = self._query, self._moment, self._index, self._tuning
        semantic = self._columns.score() if self._columns else np.zeros(index.conversation.size)
        self.graph = QueryGraph(
            graph=self._hot.graph,
            index=index,
            semantic=semantic,
            permitted=self._permitted,
            now_ms=moment.now_ms,
            known_by_ms=moment.known_by_ms,
            expansions=self._engine.expansions,
            request=self._request,
        )
        session_id = query.session_id if moment.is_now else None
        self._scene = Scene(
            index=index,
            question=self._question,
            query=query,
            now_ms=moment.now_ms,
            semantic=semantic,
            allowed=self._permitted,
            tuning=tuning,
            vector=self._meant.vector if self._meant else None,
            proximity=self.graph.proximity(query.entity_urns, self._question.text) if tuning.wants_proximity else None,
            relationship=self.graph.boosts(query.traversal_depth),
            usage=self._hot.usage() if moment.is_now else None,
            returned=NO_SEQS if session_id is None else self._hot.returned(session_id),
        )
        self._warnings += graph_missed(self._scene) + scarce(self._scene)
        self.ranking = rank(self._scene) if len(self._permitted) else Ranking(self._permitted, np.zeros(0))
        self._laps.lap("rank")

    def expand(self) -> None:
        """8. What the graph puts behind the ranked memories."""
        self._applied: Applied | None = None
        self._places = self.ranking.places
        if self._query.strategy != "hybrid_graph":
            return
        late = "graph" in self._dropped
        self._applied, added = self.graph.expand(self.ranking.places, self._query.traversal_depth, late=late)
        self._places = np.concatenate([self.ranking.places, added])
        took_ms = self._laps.lap("expand")
        if self._applied.ran:
            self._engine.shared.costs.took("graph", took_ms)

    def fetch(self) -> None:
        """5., 10. Rows, opened: only of what is answered, as ranking reads none."""
        self._rows = self._read_rows([int(slot) for slot in self._index.conversation.slots[self._places]])
        self._laps.lap("fetch")

    def compose(self) -> None:
        """11. What the response shows."""
        ranked, graph, index = len(self.ranking.places), self._hot.graph, self._index
        rows = self._rows[:ranked]
        self._warnings += compose.afterthoughts(index, self.ranking, rows, self._moment.now_ms)
        memories = compose.memories(index, self.ranking, rows, self._columns)
        if self._applied is not None:
            added = self._places[ranked:], self._applied.items, self._rows[ranked:]
            memories += compose.expanded(index, *added, len(memories))
        self._memories = compose.flagged(memories, conflicts(graph, [m.id for m in memories], self._moment))
        self._optional: dict[str, Any] = {}
        if self._query.explain:
            kind = self._engine.embedder.kind
            self._optional |= compose.explanations(self._scene, self.ranking, rows, self._columns, kind)
        self._laps.lap("compose")
        if self._query.max_tokens is not None:
            self._optional["context"] = self._context(self._query.max_tokens)
            self._laps.lap("context")
        self._warnings += self.graph.warnings

    def _context(self, max_tokens: int) -> Context:
        about = context.About(
            self._hot, self._index, self._moment, self._query.filters, self._permitted, self._memories
        )
        entities = self.graph.context(self._query.entity_urns, self._question.text)
        counter = self._engine.shared.tokens()
        found, missed = context.context(about, max_tokens, counter, self._read_rows, entities)
        self._warnings += missed
        return found

    def response(self) -> Response:
        """What is told of the answer and of how it came about."""
        meant, applied = self._meant, self._applied
        ran: dict[Step, bool] = {"dense": bool(meant and meant.embedded), "graph": self.graph.ran}
        tier = tier_of([step for step, did in ran.items() if did])
        target_ms = self._query.sla_target_ms or TARGET_MS[tier]
        elapsed_ms = self._laps.elapsed_ms()
        rest_ms = elapsed_ms - self._understood_ms - (meant.took_ms if meant else 0.0)
        self._engine.shared.costs.took(REST, rest_ms)
        return Response(
            query_id=self._request.query_id,
            status=status_of(self._warnings),
            memories=self._memories,
            query_intent=self._intent,
            computation_tier=tier,
            sla_target_ms=target_ms,
            sla_met=elapsed_ms <= target_ms,
            processing_time_ms=round(elapsed_ms, 3),
            routing_info=self._routing(),
            tiebreak_applied=self.ranking.tiebreak_applied,
            fallback=None if applied is None else applied.fallback,
            warnings=self._warnings,
            **self._optional,
        )

    def _routing(self) -> dict[str, Any]:
        meant, applied = self._meant, self._applied
        return {
            "mode": self._tuning.mode,
            "index": "flat",
            "memories": len(self._index),
            "permitted": len(self._permitted),
            "cache_hits": {name: int(meant is not None and name in meant.hits) for name in signal.CACHES},
            "stages_ms": self._laps.stages_ms,
            **({"graph": applied.routing} if applied is not None and applied.routing is not None else {}),
        }

    def effects(self) -> Effects | None:
        """12. What the answer leaves behind."""
        if not self._moment.is_now:
            return None
        returned = zip(self._scene.fact("seq", self._places), self._rows, strict=True)
        return Effects(
            tuple(int(seq) for seq, row in returned if row is not None), self._query.session_id, self._asked_ms
        )


def optional_steps(engine: Engine, query: Recall, tuning: Tuning, question: Question) -> list[Step]:
    """What a query may go without where its time is short; a vector that is at hand takes none."""
    steps: list[Step] = ["graph"] if query.strategy == "hybrid_graph" else []
    asks_meaning = tuning.mode != "recency" and engine.shared.questions.cached(question.own_words) is None
    return [*steps, "dense"] if asks_meaning else steps


def participants(index: OwnerIndex) -> list[str]:
    """Everyone who wrote a current memory; of very many, those who wrote the most."""
    now = index.conversation
    authors = now.authors[now.authors >= 0]
    if len(authors) > PARTICIPANTS_MAX:
        wrote = np.bincount(now.facts["author"] + 1)[authors + 1]
        authors = np.sort(authors[np.argsort(-wrote, kind="stable")[:PARTICIPANTS_MAX]])
    return [index.names.strings[author] for author in authors]
