"""What each step of a recall query gives, as a frozen value that the next ones need: `Asked → Understood → Candidates →
Ranked → Expanded → Composed`; and what recall needs beside an owner's state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from recallflow.embedder import Embedder
from recallflow.language import Intent
from recallflow.operators.events import Request
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import Applied, Expansions
from recallflow.operators.recall.deadline import Laps, Step
from recallflow.operators.recall.moment import Moment, graph_at, index_at
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.relevance import Judged
from recallflow.operators.recall.rerank import Scored
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.signal import Signal
from recallflow.operators.recall.tuning import Tuning
from recallflow.queries import Recall
from recallflow.responses import RecalledMemory, Response, Warn
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


@dataclass(frozen=True, slots=True)
class Engine:
    """What recall needs beside an owner's state: what a process shares, such as the model for questions; the rows'
    reader; the episode gap; a timer for what the response says of its own time (seconds, from any start); the state
    partition's graph expansions; and whether there is a reranker."""

    shared: Shared
    rows: Callable[[HotOwner, OwnerIndex, list[int]], list[MemoryRow | None]]
    episode_gap_ms: int
    timer: Callable[[], float]
    expansions: Expansions
    reranks: bool = False

    @property
    def embedder(self) -> Embedder:
        return self.shared.questions.embedder

    def at(self, hot: HotOwner, moment: Moment) -> tuple[OwnerIndex, OwnerGraph]:
        """An owner's index and graph as of a moment."""
        index = index_at(hot, moment, self.embedder.name, self.embedder.dimension, self.episode_gap_ms)
        return index, graph_at(hot, index, moment)


class Effects(NamedTuple):
    """What changes once an answer has been handed on (step 12): these memories were returned at that time, in that
    session."""

    seqs: tuple[int, ...]
    session_id: str | None
    at_ms: int


class Recalled(NamedTuple):
    """An answer; its effects, none where it was about another moment than now; and the ids of the memories that the
    graph added."""

    response: Response
    effects: Effects | None
    added: frozenset[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query on its way: the moment it is about, and the owner's index and graph of then. `laps`: how long the steps
    took so far; `scored`: what a reranker said of its candidates, if it was asked."""

    engine: Engine
    hot: HotOwner
    query: Recall
    request: Request
    asked_ms: int
    moment: Moment
    index: OwnerIndex
    graph: OwnerGraph
    laps: Laps
    scored: Scored | None = None

    def rows(self, slots: list[int]) -> list[MemoryRow | None]:
        """The rows of the index's slots."""
        return self.engine.rows(self.hot, self.index, slots)


class Understood(NamedTuple):
    """Step 3: what is asked, how it is to be ranked, and which optional steps there is no time for; at so many ms from
    the query's beginning."""

    question: Question
    intent: Intent
    tuning: Tuning
    dropped: list[Step]
    at_ms: float


class Candidates(NamedTuple):
    """Step 4: the places that may be in the answer, what the question means to each, warnings of the filters, and how
    many memories they keep out."""

    permitted: Places
    signal: Signal
    warnings: list[Warn]
    kept_out: int


class Ranked(NamedTuple):
    """Steps 6, 7 and 9: the scene that was ranked, and the order; the graph, as this query may use it; the ranks before
    a reranker changed them, if one did; and how relevant what was ranked is."""

    scene: Scene
    ranking: Ranking
    graph: QueryGraph
    before: list[int]
    judged: Judged


class Expanded(NamedTuple):
    """Steps 8, 5 and 10: the ranked places, then those that the graph adds behind them, with their relevance and their
    rows, opened."""

    places: Places
    relevance: Column
    rows: list[MemoryRow | None]
    applied: Applied | None


class Composed(NamedTuple):
    """Step 11: what the response shows. `optional`: its fields that a query has to ask for."""

    memories: list[RecalledMemory]
    optional: dict[str, Any]
    warnings: list[Warn]
