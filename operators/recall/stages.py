"""The result types of the recall steps, and the engine that runs them.

The steps are `RecallRequest → QueryRun → Permitted → Signal → Ranked → Expanded → ComposedAnswer`.
Each result is a frozen value for the next step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recallflow.control import RecallSettings
from recallflow.embedder import Embedder, Matrix
from recallflow.language.tables import Intent
from recallflow.operators.events import Ask
from recallflow.operators.graph.paths import RelatedMemory
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.reader import EntityContext
from recallflow.operators.graph.rollout import AppliedExpansion, Expansions
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.deadline import Step, StepTimings
from recallflow.operators.recall.model_calls import ModelKind, ModelResults
from recallflow.operators.recall.moment import Moment, graph_at, index_at
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.ranking_input import Ranking, RankingInput, Tuning
from recallflow.operators.recall.relevance import Judgement
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.updates import Replacement
from recallflow.queries import Recall
from recallflow.responses import RecalledEpisode, RecalledMemory, Warn
from recallflow.state.arrays import Column, Positions
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


@dataclass(frozen=True, slots=True)
class Engine:
    """Dependencies of recall other than an owner's state."""

    shared: Shared  # objects that all partitions of a process share, such as the question model
    rows: Callable[[HotOwner, OwnerIndex, list[int]], list[MemoryRow | None]]  # reads rows by slot
    episode_gap_ms: int
    timer: Callable[[], float]  # seconds from any origin, for the durations in responses
    expansions: Expansions  # graph expansions of the state partition
    models: frozenset[ModelKind] = frozenset()  # the kinds of models that queries may use

    @property
    def embedder(self) -> Embedder:
        return self.shared.questions.embedder

    def at(self, hot: HotOwner, moment: Moment) -> tuple[OwnerIndex, OwnerGraph]:
        index = self.index_at(hot, moment)
        return index, graph_at(hot, index, moment)

    def index_at(self, hot: HotOwner, moment: Moment) -> OwnerIndex:
        return index_at(hot, moment, self.embedder.name, self.embedder.dimension, self.episode_gap_ms)


class Effects(NamedTuple):
    """State changes after an answer is emitted (step 12): the memories were returned at this time, in this session."""

    seqs: tuple[int, ...]
    session_id: str | None
    at_ms: int


class RecallRequest(NamedTuple):
    """A received query with its owner and the tenant's settings."""

    hot: HotOwner
    query: Recall
    ask: Ask
    tenant: RecallSettings
    categories: Mapping[str, str]  # the tenant's categories with their descriptions


@dataclass(frozen=True, slots=True)
class QueryRun:
    """A query in progress, with the analysed question and its ranking parameters (step 3)."""

    engine: Engine
    request: RecallRequest
    moment: Moment  # the time the query is about; `index` and `graph` are as of this moment
    index: OwnerIndex
    graph: OwnerGraph
    timings: StepTimings  # durations of the completed steps
    results: ModelResults  # the model results so far
    row_cache: dict[int, MemoryRow | None]  # by slot
    question: Question
    intent: Intent
    tuning: Tuning
    dropped: list[Step]  # optional steps omitted for lack of time
    analysis_ms: float  # the time from the start of the query to the end of its analysis

    @property
    def query(self) -> Recall:
        return self.request.query

    def rows(self, slots: list[int]) -> list[MemoryRow | None]:
        if missing := [slot for slot in slots if slot not in self.row_cache]:
            self.row_cache.update(zip(missing, self.engine.rows(self.request.hot, self.index, missing), strict=True))
        return [self.row_cache[slot] for slot in slots]


class Permitted(NamedTuple):
    """The positions that may be in the answer."""

    positions: Positions
    warnings: list[Warn]  # of the filters
    excluded_count: int  # the number of memories that the filters exclude


NO_COLUMNS = Columns({}, {})


class Signal(NamedTuple):
    """Step 4: the columns of a question, and how they were computed."""

    columns: Columns = NO_COLUMNS  # empty in modes that do not rank by meaning
    vector: Matrix | None = None  # the question's vector, if the model returned one
    uses_vectors: bool = False  # whether any vectors contributed
    cache_hits: tuple[str, ...] = ()  # the caches that had a hit
    took_ms: float = 0.0  # the model's time
    warnings: tuple[Warn, ...] = ()


class FurtherMemories(NamedTuple):
    """Ranked memories beyond the answer, best first, for a context with room."""

    positions: Positions
    scores: Column
    replaced_at: Mapping[int, str]  # the time (RFC 3339) at which another memory replaced a statement, by position


NO_FURTHER = FurtherMemories(np.zeros(0, np.int64), np.zeros(0), {})


class Ranked(NamedTuple):
    """Steps 6, 7 and 9: the ranking with its input."""

    inputs: RankingInput
    ranking: Ranking
    graph: QueryGraph  # the graph as this query uses it
    judged: Judgement  # the relevance of the ranked memories
    updates: Mapping[int, Replacement]  # the memory that updates it, by position of an updated memory
    further: FurtherMemories  # ranked memories beyond the answer, if the query wants a context


class Expanded(NamedTuple):
    """Steps 8, 5 and 10: the ranked positions, then those from graph expansion, with their relevance and decrypted
    rows."""

    positions: Positions
    relevance: Column
    rows: list[MemoryRow | None]
    applied: AppliedExpansion | None

    @property
    def items(self) -> Sequence[RelatedMemory]:
        return () if self.applied is None else self.applied.items


class CategorySummaries(NamedTuple):
    by_category: Mapping[str, str]  # all summaries
    available: Mapping[str, str]  # the summaries that pass the filters
    warnings: list[Warn]


NO_SUMMARIES = CategorySummaries({}, {}, [])


@dataclass(frozen=True, slots=True)
class ComposedAnswer:
    """Step 11: the response without its context. It refers to no column of the owner's memories, which are large."""

    run: QueryRun
    permitted: Permitted
    signal: Signal
    graph_ran: bool
    tiebreak_applied: bool
    answerable: float | None
    applied: AppliedExpansion | None
    memories: list[RecalledMemory]
    seqs: Mapping[str, int]  # `seq` of the memories by id
    added: frozenset[str]  # ids of the memories from graph expansion
    episodes: list[RecalledEpisode] | None  # in the mode `episode`, else None
    summaries: CategorySummaries  # for the context
    entities: EntityContext  # for the context
    further: FurtherMemories  # for the context
    warnings: list[Warn]
    change_count: int  # the number of the owner's events so far


# Composes an answer while models process the query's requests. It is None if the answer must wait for their results.
AnswerComposer = Callable[[], ComposedAnswer]
