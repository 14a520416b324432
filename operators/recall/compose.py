"""The response to a recall query (step 11): memories, scores, reasons, episodes, warnings and routing information."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from recallflow.fields import format_time
from recallflow.operators import redaction
from recallflow.operators.derived import known_summary
from recallflow.operators.graph.reader import NO_ENTITIES, is_live
from recallflow.operators.recall import model_calls, why
from recallflow.operators.recall.context import context, excerpts, summaries_alone
from recallflow.operators.recall.deadline import REST, TARGET_MS, Step, tier_of
from recallflow.operators.recall.filters import superseded, valid
from recallflow.operators.recall.model_calls import ModelResults
from recallflow.operators.recall.moment import Moment, graph_at
from recallflow.operators.recall.ranking_input import Ranking, RankingInput, query_warnings
from recallflow.operators.recall.relevance import Judgement
from recallflow.operators.recall.stages import (
    NO_COLUMNS,
    CategorySummaries,
    ComposedAnswer,
    Effects,
    Expanded,
    Permitted,
    QueryRun,
    Ranked,
    Signal,
)
from recallflow.operators.redaction import Redacted
from recallflow.operators.summaries import Summaries
from recallflow.queries import K_MAX, Filters
from recallflow.responses import (
    Explanation,
    RecalledEpisode,
    RecalledMemory,
    Response,
    UpdatedBy,
    Warn,
    status_of,
    unchecked,
)
from recallflow.state.arrays import Positions
from recallflow.state.graph_codec import CONTRADICTS, NodeKey
from recallflow.state.rows import MemoryRow

CACHES = ("question_vector", "candidates")
EDGES_MAX = 64  # read per memory for contradictions: its newest edges, and those to similar memories
_SAME_FIELDS = tuple(RecalledMemory.model_fields.keys() & MemoryRow.__dataclass_fields__.keys())
_same_fields = attrgetter(*_SAME_FIELDS)
Rows = Sequence[MemoryRow | None]
ResponseAndEffects = tuple[Response, Effects | None]  # without effects if the query is about a past moment


def ranking_warnings(inputs: RankingInput, ranking: Ranking, rows: Rows, judged: Judgement, count: int) -> list[Warn]:
    """Return warnings about missing memories, question words or graph, future event times, unreadable rows, and
    memories that are most likely irrelevant. `count` is the number of memories in the answer."""
    conversation, tuning = inputs.index.conversation, inputs.tuning
    known, permitted = conversation.size, len(inputs.allowed)
    found: list[Warn] = []
    if tuning.wants_proximity and inputs.proximity is None:
        detail = "there is no graph, so the proximity of memories to entities counts as 0"
        found.append(Warn(code="no_graph", detail=detail))
    if not known:
        found.append(Warn(code="no_memories", detail="there are no memories of this user"))
    elif not permitted:
        found.append(Warn(code="no_memories", detail=f"none of {known} memories is valid and passes the filters"))
    elif "k" in inputs.query.model_fields_set and min(inputs.query.k, K_MAX) > permitted:
        detail = f"k is {inputs.query.k}, but {permitted} of {known} memories are valid and pass the filters"
        found.append(Warn(code="k_exceeds_memories", detail=detail))
    if not inputs.question.stems and tuning.mode != "recency":
        found.append(Warn(code="no_content_words", detail="the question has no content words"))
    if ahead := int((inputs.fact("created_ms", ranking.positions) > inputs.now_ms).sum()):
        detail = f"{ahead} memories have event times after the query's; their age counts as 0"
        found.append(Warn(code="future_timestamp", detail=detail))
    if gone := sum(row is None for row in rows):
        found.append(Warn(code="rows_missing", detail=f"{gone} ranked memories are no longer stored"))
    found += redaction.warnings_of(rows)
    if (min_relevance := inputs.query.min_relevance) is not None and permitted and not count:
        detail = f"none of {permitted} memories has a relevance of {min_relevance:g} or more"
        found.append(Warn(code="nothing_relevant", detail=detail))
    elif judged.is_unanswerable:
        detail = f"most likely none of {permitted} memories holds the answer (answerable {judged.answerable:.2f})"
        found.append(Warn(code="nothing_relevant", detail=detail))
    return found


def _episodes(run: QueryRun, ranking: Ranking, memories: Sequence[RecalledMemory]) -> list[RecalledEpisode]:
    """Return the episodes of the ranked memories in the order of the answer. Memories without an episode are
    skipped."""
    index, conversation = run.index, run.index.conversation
    returned = Counter(memory.episode_id for memory in memories)
    relevance = dict[int, float]()
    ordinals = conversation.episode_ordinal[ranking.positions].tolist()
    for ordinal, value in zip(ordinals, ranking.factors["relevance"], strict=True):
        relevance.setdefault(ordinal, float(value))
    found, summaries, facts = list[RecalledEpisode](), Summaries(index, run.rows, len(relevance)), conversation.facts
    for ordinal, value in relevance.items():
        members = np.arange(conversation.starts[ordinal], conversation.ends[ordinal])
        episode = index.episode(int(facts["episode"][members[0]]))
        if episode is None or not returned[episode.id]:
            continue
        found.append(
            RecalledEpisode(
                id=episode.id,
                session_id=episode.session_id,
                start=format_time(episode.start_ms),
                end=format_time(episode.last_ms),
                size=len(np.unique(facts["seq"][members])),
                summary=known_summary(run.request.hot, episode, run.moment.happened_by_ms) or summaries.of(members),
                relevance=round(value, 6),
                members_returned=returned[episode.id],
            )
        )
    return found


def compose_answer(
    run: QueryRun,
    permitted: Permitted,
    signal: Signal,
    ranked: Ranked,
    expanded: Expanded,
    summaries: CategorySummaries,
) -> ComposedAnswer:
    """Return the answer without the context."""
    query, ranking, reranked = run.query, ranked.ranking, run.results.calls.get("rerank")
    warnings = query_warnings(query)
    if run.dropped:
        detail = f"skipped {' and '.join(run.dropped)} to finish within {query.sla_target_ms:g} ms"
        warnings.append(Warn(code="deadline", detail=detail))
    if reranked is not None and reranked.failure is not None:
        detail = f"{reranked.model}: {reranked.failure}; the memories keep the order of the first ranking"
        warnings.append(Warn(code="rerank_failed", detail=detail))
    warnings += [*permitted.warnings, *signal.warnings]
    memories, rows = _memories(run, signal, ranked, expanded), expanded.rows[: len(ranking.positions)]
    warnings += ranking_warnings(ranked.inputs, ranking, rows, ranked.judged, len(memories))
    episodes = None
    if run.tuning.mode == "episode":
        episodes = _episodes(run, ranking, memories) if len(ranking.positions) else []
    run.timings.end("compose")
    entities = NO_ENTITIES
    if model_calls.context_tokens(query) is not None:
        filtered = query.filters != Filters() or query.project_id is not None
        entities = ranked.graph.context(query.entity_urns, run.question.text, filtered=filtered)
    seqs = zip(ranked.inputs.fact("seq", expanded.positions).tolist(), expanded.rows, strict=True)
    return ComposedAnswer(
        run=run,
        permitted=permitted,
        signal=signal._replace(columns=NO_COLUMNS),
        graph_ran=ranked.graph.ran,
        tiebreak_applied=ranking.tiebreak_applied,
        answerable=ranked.judged.answerable,
        applied=expanded.applied,
        memories=memories,
        seqs={row.id: seq for seq, row in seqs if row is not None},
        added=frozenset(item.id for item in expanded.items),
        episodes=episodes,
        summaries=summaries,
        entities=entities,
        further=ranked.further,
        warnings=[*warnings, *summaries.warnings, *ranked.graph.warnings],
        change_count=run.request.hot.next_change,
    )


def _memories(run: QueryRun, signal: Signal, ranked: Ranked, expanded: Expanded) -> list[RecalledMemory]:
    """Return the ranked memories, then those from graph expansion with the score of their path. Ranked memories whose
    text cannot be decrypted sort last among these. Rows deleted since ranking are skipped."""
    index, positions, rows, count = run.index, expanded.positions, expanded.rows, len(ranked.ranking.positions)
    more: list[dict[str, Any]] = [{} for _ in rows]
    if run.query.explain:
        more = _explained(run, signal, ranked, rows[:count])
        more += [{"why": reasons} for reasons in why.added(expanded.items, rows[:count])]
    rerank_scores = run.results.rerank_scores
    episodes = map(index.episode, index.conversation.facts["episode"].take(positions).tolist())
    about = zip(
        _current(run, positions),
        (None if episode is None else episode.id for episode in episodes),
        [*ranked.ranking.scores.tolist(), *(item.score for item in expanded.items)],
        expanded.relevance.round(6).tolist(),
        excerpts(index, run.question, signal.vector, positions, rows),
        more,
        strict=True,
    )
    slots, created_ms = index.conversation.slots, index.conversation.facts["created_ms"]
    has_edges = run.graph.has_stated_edges()
    updates = {
        index.ids[int(slots[position])]: UpdatedBy(
            id=index.ids[int(slots[one.by])],
            at=format_time(int(created_ms[one.by])),
            probability=round(one.probability, 4),
        )
        for position, one in ranked.updates.items()
    }
    parts = [*zip(rows, about, strict=True)]
    parts[:count] = sorted(parts[:count], key=lambda part: isinstance(part[0], Redacted))
    found: list[RecalledMemory] = []
    for at, (row, (current, episode_id, score, relevance, excerpt, optional)) in enumerate(parts):
        if row is None:
            continue
        if at < count and (key := model_calls.rerank_key(row.id, row.version)) in rerank_scores:
            optional["rerank_score"] = round(rerank_scores[key], 6)
        if has_edges:
            edges = run.graph.edges(NodeKey(row.id, memory=True), EDGES_MAX)
            opposing = (edge for edge in edges if edge.type == CONTRADICTS and is_live(edge, run.moment.now_ms))
            if others := sorted(edge.target.text for edge in opposing):
                optional["conflicts_with"] = others
        if row.id in updates:
            optional["updated_by"] = updates[row.id]
        memory = unchecked(
            RecalledMemory,
            **dict(zip(_SAME_FIELDS, _same_fields(row), strict=True)),
            current=current,
            episode_id=episode_id,
            created_at=format_time(row.created_ms),
            updated_at=format_time(row.updated_ms),
            score=round(score, 6),
            rank=len(found) + 1,
            relevance=relevance,
            excerpt=excerpt,
            **optional,
        )
        found.append(memory)
    return found


def _explained(run: QueryRun, signal: Signal, ranked: Ranked, rows: Rows) -> list[dict[str, Any]]:
    """Return the reasons of each ranked memory, and the parts of its score."""
    query, ranking = run.query, ranked.ranking
    # Without the question's vector, texts are compared by their spelling, whatever the embedder.
    kind = run.engine.embedder.kind if signal.vector is not None else "spelling"
    names = partial(ranked.graph.names, query.entity_urns, run.question.text)
    reasons = why.why(ranked.inputs, ranking, rows, signal.columns, kind, run.rows, names)
    if ranking.first_ranks is not None:
        why.add_reranker(reasons, run.results.calls["rerank"].model, ranking.first_ranks.tolist())
    why.add_updates(reasons, ranking.positions.tolist(), ranked.updates, run.index, run.rows)
    count, weights = len(ranking.positions), {name: round(weight, 6) for name, weight in ranking.weights.items()}
    factors, boosts = (
        np.round(np.array([*parts.values()]).reshape(len(parts), count), 6).T.tolist()
        for parts in (ranking.factors, ranking.boosts)
    )
    explained = []
    for values, gains, memory_reasons in zip(factors, boosts, reasons, strict=True):
        added = {name: boost for name, boost in zip(ranking.boosts, gains, strict=True) if boost}
        factors_of = dict(zip(ranking.factors, values, strict=True))
        explanation = unchecked(Explanation, factors=factors_of, weights=weights, boosts=added)
        explained.append({"explanation": explanation, "why": memory_reasons})
    return explained


def finish(answer: ComposedAnswer, results: ModelResults, rewritten: list[str], left_out: int) -> ResponseAndEffects:
    """Return the response, with a context if the query requests one, and its effects. `rewritten` are the
    answered subqueries, and `left_out` is the number of the others."""
    run, query, memories = answer.run, answer.run.query, answer.memories
    warnings, fields = [*answer.warnings], dict[str, Any]()
    if answer.episodes is not None:
        fields["episodes"] = answer.episodes
    if (max_tokens := model_calls.context_tokens(query)) is not None:
        available_summaries, question = answer.summaries.available, run.question.text
        counter = run.engine.shared.tokens()
        chosen = model_calls.selected_categories(results, run.request.categories, available_summaries)
        sufficient = {}
        if query.check_sufficiency:
            sufficient = model_calls.sufficient_summaries(results, question, available_summaries)
        summary_context = summaries_alone(answer, max_tokens, counter, sufficient, chosen)
        if summary_context is not None:
            memories, fields["context"] = [], summary_context
            fields |= {"episodes": []} if "episodes" in fields else {}
        else:
            fields["context"], context_warnings = context(answer, max_tokens, counter, chosen)
            warnings += context_warnings
        if query.check_sufficiency:
            fields["sufficient"] = summary_context is not None
        run.timings.end("context")
    has_time, has_model = "llm" not in run.dropped, "llm" in run.engine.models
    warnings += model_calls.llm_warnings(query, results, left_out, has_model=has_model, has_time=has_time)
    response = _response(answer, results, rewritten, fields | {"memories": memories}, warnings)
    effects = None
    if run.moment.is_now:
        seqs = tuple(answer.seqs[memory.id] for memory in memories)
        effects = Effects(seqs, query.session_id, run.request.ask.asked_ms)
    ranked = [memory.id for memory in memories if memory.id not in answer.added]
    added = [memory.id for memory in memories if memory.id in answer.added]
    run.engine.expansions.answered(run.request.ask, ranked, added)
    return response, effects


def _response(
    answer: ComposedAnswer, results: ModelResults, rewritten: list[str], fields: dict[str, Any], warnings: list[Warn]
) -> Response:
    run, applied = answer.run, answer.applied
    timings, query = run.timings, run.query
    ran: dict[Step, bool] = {
        "dense": answer.signal.uses_vectors,
        "graph": answer.graph_ran,
        "rerank": "rerank" in results.calls,
        "llm": results.ran_llm,
    }
    tier = tier_of([step for step, did in ran.items() if did])
    target_ms, elapsed_ms = query.sla_target_ms or TARGET_MS[tier], timings.elapsed_ms()
    optional_ms = sum(timings.stages_ms.get(stage, 0.0) for stage in ("proximity", "boosts", "expand", "questions"))
    rest_ms = elapsed_ms - run.analysis_ms - answer.signal.took_ms - optional_ms - timings.waited_ms
    run.engine.shared.costs.add(REST, rest_ms)
    routing: dict[str, Any] = {
        "mode": run.tuning.mode,
        "index": "flat",
        "memories": len(run.index),
        "permitted": len(answer.permitted.positions),
        "cache_hits": {name: int(name in answer.signal.cache_hits) for name in CACHES},
        "stages_ms": timings.stages_ms,
    }
    routing |= results.routing
    if rewritten:
        routing["rewritten"] = rewritten
    if applied is not None and applied.routing is not None:
        routing["graph"] = applied.routing
    return unchecked(
        Response,
        query_id=run.request.ask.query_id,
        status=status_of(warnings),
        answerable=None if answer.answerable is None else round(answer.answerable, 6),
        query_intent=run.intent,
        computation_tier=tier,
        sla_target_ms=target_ms,
        sla_met=elapsed_ms <= target_ms,
        processing_time_ms=round(elapsed_ms, 3),
        routing_info=routing,
        tiebreak_applied=answer.tiebreak_applied,
        fallback=None if applied is None else applied.fallback,
        warnings=warnings,
        **fields,
    )


def _current(run: QueryRun, positions: Positions) -> list[bool]:
    """Return whether each position holds the latest version of its memory, and that version is valid now."""
    if run.moment.is_now:
        return [True] * len(positions)
    index, hot, facts = run.index, run.request.hot, run.index.conversation.facts
    now = Moment(run.request.ask.asked_ms, projects=run.request.ask.projects)
    is_superseded, is_valid = superseded(graph_at(hot, index, now), index, now), valid(index, now)
    found = []
    for position in positions.tolist():
        head = hot.memory_head(index.ids[index.conversation.slots[position]])
        latest = head is not None and head.version == facts["version"][position]
        found.append(bool(latest and is_valid[position] and (is_superseded is None or not is_superseded[position])))
    return found
