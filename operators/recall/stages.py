"""What each step of a recall query gives, as a frozen value that the next ones need: `Posed → Asked → Understood →
Permitted → Candidates → Ranked → Expanded → Found`; and what recall needs beside an owner's state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from recallflow.control import RecallSettings
from recallflow.embedder import Embedder
from recallflow.language import Intent
from recallflow.operators.events import QueryContext
from recallflow.operators.graph.entities import EntityContext
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import AppliedExpansion, Expansions
from recallflow.operators.recall.deadline import Laps, Step
from recallflow.operators.recall.moment import Moment, graph_at, index_at
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.relevance import Judged
from recallflow.operators.recall.said import Kind, Said
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.signal import Signal
from recallflow.operators.recall.tuning import Tuning
from recallflow.operators.recall.updates import Replacement
from recallflow.queries import Recall
from recallflow.responses import RecalledEpisode, RecalledMemory, Response, Warn
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


@dataclass(frozen=True, slots=True)
class Engine:
    """What recall needs beside an owner's state: what a process shares, such as the model for questions; the rows'
    reader; the episode gap; a timer for what the response says of its own time (seconds, from any start); the state
    partition's graph expansions; and which models may be asked about a question."""

    shared: Shared
    rows: Callable[[HotOwner, OwnerIndex, list[int]], list[MemoryRow | None]]
    episode_gap_ms: int
    timer: Callable[[], float]
    expansions: Expansions
    models: frozenset[Kind] = frozenset()

    @property
    def embedder(self) -> Embedder:
        return self.shared.questions.embedder

    def at(self, hot: HotOwner, moment: Moment) -> tuple[OwnerIndex, OwnerGraph]:
        """An owner's index and graph as of a moment."""
        index = self.index_at(hot, moment)
        return index, graph_at(hot, index, moment)

    def index_at(self, hot: HotOwner, moment: Moment) -> OwnerIndex:
        """An owner's index as of a moment."""
        return index_at(hot, moment, self.embedder.name, self.embedder.dimension, self.episode_gap_ms)


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


class Posed(NamedTuple):
    """A query as it comes, asked at `asked_ms`: of whose memory, how the tenant has its rankings, and the tenant's
    categories with what belongs into them."""

    hot: HotOwner
    query: Recall
    request: QueryContext
    asked_ms: int
    tenant: RecallSettings
    categories: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query on its way: the moment it is about, and the owner's index and graph of then. `laps`: how long the steps
    took so far; `said`: what models said of it; `read`: the rows read so far, by slot."""

    engine: Engine
    posed: Posed
    moment: Moment
    index: OwnerIndex
    graph: OwnerGraph
    laps: Laps
    said: Said
    read: dict[int, MemoryRow | None] = field(default_factory=dict)

    @property
    def query(self) -> Recall:
        return self.posed.query

    @property
    def hot(self) -> HotOwner:
        return self.posed.hot

    @property
    def request(self) -> QueryContext:
        return self.posed.request

    @property
    def asked_ms(self) -> int:
        return self.posed.asked_ms

    def rows(self, slots: list[int]) -> list[MemoryRow | None]:
        """The rows of the index's slots."""
        if missing := [slot for slot in slots if slot not in self.read]:
            self.read.update(zip(missing, self.engine.rows(self.hot, self.index, missing), strict=True))
        return [self.read[slot] for slot in slots]


class Understood(NamedTuple):
    """Step 3: what is asked, how it is to be ranked, and which optional steps there is no time for; at so many ms from
    the query's beginning."""

    question: Question
    intent: Intent
    tuning: Tuning
    dropped: list[Step]
    at_ms: float


class Permitted(NamedTuple):
    """The places that may be in the answer, warnings of the filters, and how many memories they keep out."""

    places: Places
    warnings: list[Warn]
    kept_out: int


class Candidates(NamedTuple):
    """Step 4: the places that may be in the answer, and what the question means to each."""

    permitted: Places
    signal: Signal


class Ranked(NamedTuple):
    """Steps 6, 7 and 9: the scene that was ranked, and the order; the graph, as this query may use it; the ranks before
    a reranker changed them, if one did; how relevant what was ranked is; and by place which memory updates which."""

    scene: Scene
    ranking: Ranking
    graph: QueryGraph
    before: list[int]
    judged: Judged
    updates: Mapping[int, Replacement]


class Expanded(NamedTuple):
    """Steps 8, 5 and 10: the ranked places, then those that the graph adds behind them, with their relevance and their
    rows, opened."""

    places: Places
    relevance: Column
    rows: list[MemoryRow | None]
    applied: AppliedExpansion | None


class Told(NamedTuple):
    """The summaries by category: `every` one, and those `at_hand` for the answer, as the filters have it."""

    every: Mapping[str, str]
    at_hand: Mapping[str, str]
    warnings: list[Warn]


NOTHING_TOLD = Told({}, {}, [])


@dataclass(frozen=True, slots=True)
class Found:
    """Step 11: all that the response shows, but for the context. `seqs`: of the memories, by id; `added`: the ids of
    those that the graph adds; `episodes`: in the mode that has them; `summaries` and `entities`: for the context, if
    there is to be one; `change`: how many events the owner had by then. No column of the owner's memories is in it."""

    asked: Asked
    understood: Understood
    permitted: Permitted
    signal: Signal
    graph_ran: bool
    tiebreak_applied: bool
    answerable: float | None
    applied: AppliedExpansion | None
    memories: list[RecalledMemory]
    seqs: Mapping[str, int]
    added: frozenset[str]
    episodes: list[RecalledEpisode] | None
    summaries: Told
    entities: EntityContext
    warnings: list[Warn]
    change: int


Find = Callable[[], Found | None]
"""Finds what can be found of a question while models are asked about it, none where all is looked up later."""


def find_nothing() -> None:
    """Leaves all to be looked up later."""
