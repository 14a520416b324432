"""Responses to queries, from committed records, and their effects: the memories' usage, and what a session returned.

Effects are applied exactly once. They are committed with the next event or at the next sync: a query alone does not
write to disk. A query may be answered again after a crash. Its mark, a stored record, then shows that its effects are
stored, because effects and mark are one atomic write. A repeated query id has no effects either; the owner's newest 64
ids are stored to detect it.

A query of a finite log needs no mark, because its position is stored with its effects. Other queries may be answered
after later ones, so that a position does not suffice. A mark can be deleted once its query's offset is committed. That
is certain after two barriers of the partition, so marks have generations, one per interval between barriers."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from recallflow import queries
from recallflow.control import categories
from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed
from recallflow.graphs import Facts
from recallflow.operators import redaction
from recallflow.operators.answers import explore as explorer
from recallflow.operators.answers import lookups
from recallflow.operators.answers.facts import FactSearch
from recallflow.operators.answers.models import ModelCalls
from recallflow.operators.erase import erasure_state
from recallflow.operators.events import Ask
from recallflow.operators.grants import check_all_projects
from recallflow.operators.graph.query_graph import trace
from recallflow.operators.graph.rollout import Expansions, status
from recallflow.operators.quotas import UserLimits
from recallflow.operators.recall import model_calls
from recallflow.operators.recall.model_calls import NO_RESULTS, ModelKind, ModelRequests, ModelResults
from recallflow.operators.recall.moment import Moment, graph_at
from recallflow.operators.recall.pipeline import plan_embedding, plan_model_calls, ranked_only, recall
from recallflow.operators.recall.ranking_input import tenant_settings, unread_field_warnings
from recallflow.operators.recall.shared import QuestionVector, Shared
from recallflow.operators.recall.stages import AnswerComposer, ComposedAnswer, Effects, Engine, RecallRequest
from recallflow.operators.rules import Rules
from recallflow.records import Record
from recallflow.responses import Response
from recallflow.state import keys
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.index import OwnerIndex
from recallflow.state.partition import Partition, Values
from recallflow.state.rows import Entry, MemoryRow
from recallflow.state.usage import Usage, encode_seqs

ROWS_AT_ONCE = 256
HISTORY_EDGES = 100  # edges in `memory.history`: the memory's newest, and edges to similar memories
# Fields that a recall query takes from a `graph.facts` or `graph.trace` query.
_FACTS_FIELDS = ("query", "tenant_id", "user_id", "environment", "timestamp", "as_of")
_TRACE_FIELDS = (*_FACTS_FIELDS, "project_id", "k", "mode", "filters", "traversal_depth")
RETURNED_MAX = 200  # the newest returned memories stored per session
QUERY_IDS_MAX = 64  # the newest ones stored per owner
_QUERY_ID_BYTES = 8


class Answerer:
    """The answers to queries of one state partition."""

    def __init__(
        self,
        partition: Partition,
        owners: Owners,
        shared: Shared,
        rules: Rules,
        timer: Callable[[], float],
        expansions: Expansions,
        models: frozenset[ModelKind] = frozenset(),
    ) -> None:
        """`models` are the kinds of models that may be called for a query."""
        self._partition, self._owners = partition, owners
        self._decisions = rules.decisions
        self._engine = Engine(shared, self._rows, rules.episode_gap_ms, timer, expansions, models)

    @property
    def embedder(self) -> Embedder:
        return self._engine.embedder

    def answer(
        self,
        ask: Ask,
        results: ModelResults = NO_RESULTS,
        composed: ComposedAnswer | None = None,
        has_event: Callable[[], bool] = lambda: False,
    ) -> tuple[Response, Effects | None]:
        """Return a query's response and its effects. Raise InvalidRecord if there is no answer. `results` are those of
        model calls, `composed` is the answer that was composed meanwhile. `has_event`: see `recall`."""
        if isinstance(ask.query, queries.Recall):
            return recall(self._engine, self._to_request(ask.query, ask), results, composed, has_event)
        return self._look_up(ask, results).warned(unread_field_warnings(ask.query)), None

    def plan_model_calls(
        self, ask: Ask, results: ModelResults, composed: ComposedAnswer | None
    ) -> tuple[ModelRequests, AnswerComposer | None]:
        """Return the model requests that precede an answer, and a function that composes the answer meanwhile."""
        match query := ask.query:
            case queries.Recall():
                return plan_model_calls(self._engine, self._to_request(query, ask), results, composed)
            case queries.GraphTrace() | queries.GraphFacts() if "embed" in self._engine.models:
                ranked_query = _trace_recall(query) if isinstance(query, queries.GraphTrace) else _facts_recall(query)
                if ranked_query is not None:
                    return plan_embedding(self._engine, self._to_request(ranked_query, ask), results), None
        return ModelRequests(), None

    def receive(
        self, results: ModelResults, requests: ModelRequests, calls: ModelCalls, took_ms: float
    ) -> ModelResults:
        """Return a query's results after a round of model calls. Vectors and costs are kept for later queries."""
        costs, questions = self._engine.shared.costs, self._engine.shared.questions
        if step_times_ms := [calls[step].took_ms for step in requests.prompts]:
            costs.add("llm", max(step_times_ms))
        if "rerank" in calls:
            costs.add("rerank", calls["rerank"].took_ms)
        vectors = dict[str, QuestionVector]()
        for number, text in enumerate(requests.texts):
            embedded = calls["embed"]
            outcome = embedded.result[number] if embedded.failure is None else embedded.failure
            vectors[text] = questions.receive(text, outcome, embedded.took_ms)
        return replace(
            results,
            calls={**results.calls, **calls},
            vectors={**results.vectors, **vectors},
            candidates=len(requests.candidates) or results.candidates,
            dropped=requests.dropped,
            took_ms=results.took_ms + took_ms,
        )

    def is_still_valid(self, composed: ComposedAnswer) -> bool:
        """Return whether no event of the owner was applied since the answer was composed."""
        with suppress(DecryptionFailed):
            return self._owners.get(composed.run.request.hot.owner).next_change == composed.change_count
        return False

    def _to_request(self, query: queries.Recall, ask: Ask) -> RecallRequest:
        tenant_id, at_ms = ask.owner.tenant_id, ask.record.append_ms
        tenant = tenant_settings(self._decisions, tenant_id, at_ms)
        has_context = model_calls.context_tokens(query) is not None
        shown = categories(self._decisions, tenant_id, at_ms) if has_context else []
        descriptions = {category.name: category.description for category in shown}
        return RecallRequest(self._owners.get(ask.owner), query, ask, tenant, descriptions)

    def _facts(self, query: queries.GraphFacts, ask: Ask, results: ModelResults) -> Facts:
        hot, moment = self._owners.get(ask.owner), Moment.of(query, ask.asked_ms, ask.projects)
        best_seqs: list[int] = []
        if (recall_query := _facts_recall(query)) is not None:
            ranked = ranked_only(self._engine, self._to_request(recall_query, ask), results)
            index, graph = ranked.inputs.index, ranked.graph.graph
            best_seqs = index.conversation.facts["seq"][ranked.ranking.positions].tolist()
        else:
            index, graph = self._engine.at(hot, moment)
        return FactSearch(graph, index, partial(self._rows, hot, index), query, moment).run(best_seqs)

    def _look_up(self, ask: Ask, results: ModelResults) -> Response:
        hot, query_id, now_ms = self._owners.get(ask.owner), ask.query_id, ask.asked_ms
        match query := ask.query:
            case queries.MemoryGet():
                *_, latest = self._versions(hot, query.memory_id, ask.projects)
                record = self._partition.get(keys.usage(hot.key, latest.seq))
                usage = lookups.usage(Usage.decode(record) if record else Usage())
                return lookups.versions(query_id, [latest], ask.projects).model_copy(update={"usage": usage})
            case queries.MemoryHistory():
                history = lookups.versions(query_id, self._versions(hot, query.memory_id, ask.projects), ask.projects)
                now = Moment(now_ms, projects=ask.projects)
                graph = hot.stored_graph if ask.projects is None else graph_at(hot, self._index(ask), now)
                edges = graph.edges(NodeKey(query.memory_id, memory=True), HISTORY_EDGES)
                return history.model_copy(update={"edges": [explorer.explored_edge(edge, now_ms) for edge in edges]})
            case queries.EpisodesList():
                index = self._index(ask)
                rows = partial(self._rows, hot, index)
                episodes = lookups.list_episodes(hot, index, rows, query, now_ms, self._engine.episode_gap_ms)
                return Response(query_id=query_id, status="ok", episodes=episodes)
            case queries.GraphStatus():
                check_all_projects(ask)
                report = status(hot.stored_graph, self._engine.expansions, hot.owner.tenant_id, ask.record.append_ms)
                return Response(query_id=query_id, status="ok", graph_status=report)
            case queries.GraphTrace():
                ranked = ranked_only(self._engine, self._to_request(_trace_recall(query), ask), results)
                fallback = self._engine.expansions.fallback(ask.owner.tenant_id, ask.record.append_ms)
                positions, scores = ranked.ranking.positions, ranked.ranking.scores
                traced = trace(ranked.graph, positions, scores, query.traversal_depth, fallback)
                return Response(query_id=query_id, status="ok", graph_trace=traced)
            case queries.MemoriesList() | queries.GraphExplore():
                moment = Moment.of(query, now_ms, ask.projects)
                index, graph = self._engine.at(hot, moment)
                rows = partial(self._rows, hot, index)
                if isinstance(query, queries.MemoriesList):
                    return lookups.list_memories(query_id, hot, index, graph, rows, query, moment)
                if query.whole:
                    subgraph = explorer.page(hot, index, graph, rows, query, moment)
                else:
                    subgraph = explorer.explore(graph, index, rows, query.nodes, query.hops, moment)
                return Response(query_id=query_id, status="ok", subgraph=subgraph)
            case queries.GraphFacts():
                return Response(query_id=query_id, status="ok", graph_facts=self._facts(query, ask, results))
            case queries.UserStats():
                limits = UserLimits.of(self._decisions, hot.owner.tenant_id, ask.record)
                totals = hot.counts if ask.projects is None else None
                counts = lookups.stats(self._index(ask), totals, limits, now_ms)
                if totals is not None and (state := erasure_state(self._partition, hot)) is not None:
                    counts["erasure"] = state
                return Response(query_id=query_id, status="ok", stats=counts)
        raise TypeError(f"unknown query type {query.type}")

    def _versions(self, hot: HotOwner, memory_id: str, projects: tuple[str, ...] | None) -> list[MemoryRow]:
        """Return all versions of a memory, oldest first. Raise InvalidRecord if there is none in a readable project."""
        name, head = hot.stored_name(memory_id), hot.memory_head(memory_id)
        if head is None or head.forgotten:
            raise lookups.not_found(memory_id)
        row_keys = [keys.row(hot.key, name, version) for version in range(head.version + 1)]
        rows = [
            redaction.version(memory_id, head.seq, version) if isinstance(row, DecryptionFailed) else row
            for version, row in enumerate(self._read(row_keys))
            if row is not None
        ]
        if projects is None:
            return rows
        if not any(row.project_id in projects for row in rows):
            raise lookups.not_found(memory_id)
        return [self._without_other_projects(hot, row, projects) for row in rows]

    def _without_other_projects(self, hot: HotOwner, row: MemoryRow, projects: tuple[str, ...]) -> MemoryRow:
        """Return a memory without references to memories of other projects."""

        def is_readable(source: dict[str, Any]) -> bool:
            head = hot.memory_head(source["memory_id"])
            entry = None if head is None else self._value_or_error(keys.entry(hot.key, head.seq))
            return (Entry.decode(entry).project_id if isinstance(entry, bytes) else None) in projects

        origin = row.derived_from
        if origin is None:
            return row
        others = [other for other in origin.get("others", []) if is_readable(other)]
        readable = {name: value for name, value in (origin | {"others": others}).items() if value}
        return replace(row, derived_from=readable if is_readable(origin) else None)

    def _rows(self, hot: HotOwner, index: OwnerIndex, slots: list[int]) -> list[MemoryRow | None]:
        """Return the rows of slots, each in the index's version. Rows that cannot be decrypted are redacted."""
        versions = index.facts["version"][slots].tolist()
        row_keys = [
            keys.row(hot.key, hot.stored_name(index.ids[slot]), version)
            for slot, version in zip(slots, versions, strict=True)
        ]
        rows = [
            redaction.memory(index, slot) if isinstance(row, DecryptionFailed) else row
            for slot, row in zip(slots, self._read(row_keys), strict=True)
        ]
        if (projects := index.projects) is None:
            return rows
        return [None if row is None else self._without_other_projects(hot, row, projects) for row in rows]

    def _read(self, row_keys: list[bytes]) -> list[MemoryRow | DecryptionFailed | None]:
        """Return the rows of keys, read in batches. If one cannot be decrypted, its batch is read one by one."""
        rows: list[MemoryRow | DecryptionFailed | None] = []
        for start in range(0, len(row_keys), ROWS_AT_ONCE):
            part = row_keys[start : start + ROWS_AT_ONCE]
            values: Iterable[bytes | DecryptionFailed | None]
            try:
                values = self._partition.get_many(part)
            except DecryptionFailed:
                values = map(self._value_or_error, part)
            rows += [MemoryRow.decode(value) if isinstance(value, bytes) else value for value in values]
        return rows

    def _value_or_error(self, key: bytes) -> bytes | DecryptionFailed | None:
        try:
            return self._partition.get(key)
        except DecryptionFailed as error:
            return error

    def _index(self, ask: Ask) -> OwnerIndex:
        """Return the current index of the memories that the sender may read."""
        return self._engine.index_at(self._owners.get(ask.owner), Moment(ask.asked_ms, projects=ask.projects))


def _trace_recall(query: queries.GraphTrace) -> queries.Recall:
    """Return the recall query whose ranking a trace shows."""
    return queries.Recall(type="recall", **{name: getattr(query, name) for name in _TRACE_FIELDS})


def _facts_recall(query: queries.GraphFacts) -> queries.Recall | None:
    """Return the recall query that ranks the memories for facts; None if entities or no text are given."""
    if query.query is None or query.entities:
        return None
    return queries.Recall(type="recall", k=queries.K_MAX, **{name: getattr(query, name) for name in _FACTS_FIELDS})


class EffectLog:
    """The effects of a partition's answers, with marks of the queries whose effects are stored."""

    def __init__(self, partition: Partition, owners: Owners, rules: Rules) -> None:
        """Load the stored marks. Marks of an earlier run join the current generation, because their age is unknown."""
        self._partition, self._owners, self._input_ends = partition, owners, rules.input_ends
        self._has_marks = rules.is_replayable and not rules.input_ends  # otherwise no query needs one
        stored = dict(partition.scan_readable(keys.EFFECTS)) if self._has_marks else {}
        # By key, of each interval between barriers, the oldest first.
        self._generations = deque[dict[bytes, bytes]]([{}, {}, stored])

    def stage(self, ask: Ask, effects: Effects) -> None:
        """Stage the effects of an answer unless they are stored."""
        position = ask.record.position if self._input_ends else None
        if position is not None and self._partition.is_applied(position):
            return
        hot, staged = self._owners.get(ask.owner), self._new_mark(ask.record) if self._has_marks else {}
        if staged is None:
            return
        if effects.seqs and (ask.query.id is None or self._add_query_id(hot, ask.query.id, staged)):
            usages = hot.usage().record_returns(effects.seqs, effects.at_ms)
            staged |= {keys.usage(hot.key, seq): record for seq, record in zip(effects.seqs, usages, strict=True)}
            if effects.session_id is not None:
                returned_again = set(effects.seqs)
                earlier = (seq for seq in hot.returned_seqs(effects.session_id).tolist() if seq not in returned_again)
                returned = [*earlier, *effects.seqs][-RETURNED_MAX:]  # distinct, the latest last
                staged[keys.session(hot.key, hot.stored_name(effects.session_id))] = encode_seqs(returned)
        self._partition.stage(staged, position, can_wait=True)

    def _new_mark(self, record: Record) -> Values | None:
        """Return the mark to store with a query's effects; None if they are stored already."""
        keyring, position = self._partition.keyring, record.position
        key = keys.effects(keyring.name(b"", position.source), position.offset)
        # The mark has a digest of the query, because a replaced input file may have another query at this position.
        content = keyring.digest(b"", record.value)
        for generation in self._generations:
            if generation.get(key) == content:
                return None
            generation.pop(key, None)
        self._generations[-1][key] = content
        return {key: content}

    def forget_marks(self) -> None:
        """Begin a generation of marks at a barrier, and delete the oldest one."""
        if self._has_marks:
            self._generations.append({})
            self._partition.stage(dict.fromkeys(self._generations.popleft()))

    def _add_query_id(self, hot: HotOwner, query_id: str, staged: Values) -> bool:
        """Add a query id to the owner's latest ones in `staged`. Return whether it is new."""
        key, name = keys.query_ids(hot.key), hot.stored_name(query_id)[:_QUERY_ID_BYTES]
        names = self._partition.get(key) or b""
        if name in names:  # a match across two names is as unlikely as a hash collision
            return False
        staged[key] = (names + name)[-QUERY_IDS_MAX * _QUERY_ID_BYTES :]
        return True
