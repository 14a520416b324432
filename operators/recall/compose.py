"""The response to a recall query (step 11): memories, scores, reasons, episodes, warnings and routing information."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from recallflow.fields import format_time
from recallflow.operators import redaction
from recallflow.operators.derived import known_summary
from recallflow.operators.graph.paths import Related
from recallflow.operators.graph.reader import NOTHING_KNOWN, is_live
from recallflow.operators.recall import model_calls, signal, why
from recallflow.operators.recall.context import About, context, excerpts, further_items, summaries_alone
from recallflow.operators.recall.deadline import REST, TARGET_MS, Step, tier_of
from recallflow.operators.recall.filters import superseded, valid
from recallflow.operators.recall.model_calls import ModelResults
from recallflow.operators.recall.moment import Moment, graph_at
from recallflow.operators.recall.ranking_input import Ranking, RankingInput, validate
from recallflow.operators.recall.relevance import Judged
from recallflow.operators.recall.stages import (
    Candidates,
    CategorySummaries,
    ComposedAnswer,
    Effects,
    Expanded,
    Permitted,
    QueryRun,
    Ranked,
    Recalled,
    Understood,
)
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.redaction import Redacted, RowsReader
from recallflow.operators.summaries import Summaries
from recallflow.queries import K_MAX, Filters
from recallflow.responses import (
    Explanation,
    RecalledEpisode,
    RecalledMemory,
    Response,
    Span,
    UpdatedBy,
    Warn,
    status_of,
    unchecked,
)
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import CONTRADICTS, NodeKey
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

EDGES_MOST = 64  # edges read per memory for contradictions: its newest, and those to similar memories

Rows = Sequence[MemoryRow | None]


class Particulars(NamedTuple):
    """Response fields of a memory that are not in its row."""

    episode_id: str | None
    excerpt: Span | None
    relevance: float
    current: bool


def particulars_of(
    index: OwnerIndex, places: Places, excerpts: Sequence[Span | None], relevance: Column, current: Sequence[bool]
) -> list[Particulars]:
    """Return the particulars of the memory at each position. All arguments but the index are in the order of
    `places`."""
    parts = zip(_episode_ids(index, places), excerpts, relevance.round(6).tolist(), current, strict=True)
    return [*map(Particulars._make, parts)]


def ranked_memories(
    ranking: Ranking,
    rows: Rows,
    particulars: Sequence[Particulars],
    explained: Sequence[dict[str, Any]],
    rerank_scores: Mapping[str, float],
) -> list[RecalledMemory]:
    """Return response memories in rank order. Memories whose text cannot be decrypted sort last. Rows deleted since
    ranking are skipped."""
    found: list[RecalledMemory] = []
    parts = zip(rows, ranking.scores.tolist(), particulars, explained, strict=True)
    for row, score, of_it, more in sorted(parts, key=lambda part: isinstance(part[0], Redacted)):
        if row is not None:
            given = rerank_scores.get(model_calls.rerank_key(row.id, row.version)) if rerank_scores else None
            if given is not None:
                more = more | {"rerank_score": round(given, 6)}
            found.append(_memory(row, of_it, score, len(found) + 1, more))
    return found


def expanded_memories(
    items: Sequence[Related],
    rows: Rows,
    particulars: Sequence[Particulars],
    explained: Sequence[dict[str, Any]],
    behind: int,
) -> list[RecalledMemory]:
    """Return response memories for graph expansion, with the score of their path. Rows deleted since ranking are
    skipped. `behind` is the number of ranked memories before them."""
    found: list[RecalledMemory] = []
    for row, item, of_it, more in zip(rows, items, particulars, explained, strict=True):
        if row is not None:
            found.append(_memory(row, of_it, item.score, behind + len(found) + 1, more))
    return found


def _episode_ids(index: OwnerIndex, places: Places) -> list[str | None]:
    """Return the id of each memory's episode, or None."""
    numbers = index.conversation.facts["episode"].take(places).tolist()
    return [None if (episode := index.episode(number)) is None else episode.id for number in numbers]


def _memory(row: MemoryRow, about: Particulars, score: float, rank: int, more: dict[str, Any]) -> RecalledMemory:
    return unchecked(
        RecalledMemory,
        id=row.id,
        version=row.version,
        current=about.current,
        content=row.content,
        summary=row.summary,
        kind=row.kind,
        layer=row.layer,
        category=row.category,
        role=row.role,
        name=row.name,
        tags=row.tags,
        entities=row.entities,
        session_id=row.session_id,
        project_id=row.project_id,
        episode_id=about.episode_id,
        created_at=format_time(row.created_ms),
        updated_at=format_time(row.updated_ms),
        importance=row.importance,
        confidence=row.confidence,
        score=round(score, 6),
        rank=rank,
        relevance=about.relevance,
        excerpt=about.excerpt,
        derived_from=row.derived_from,
        **more,
    )


def relevance_warnings(inputs: RankingInput, judged: Judged, answered: int) -> list[Warn]:
    """Return a warning if the permitted memories are most likely irrelevant to the question."""
    least, permitted = inputs.query.min_relevance, len(inputs.allowed)
    if least is not None and permitted and not answered:
        detail = f"none of {permitted} memories has a relevance of {least:g}"
    elif judged.hopeless:
        detail = f"most likely none of {permitted} memories tells (answerable {judged.answerable:.2f})"
    else:
        return []
    return [Warn(code="nothing_relevant", detail=detail)]


def with_conflicts(memories: list[RecalledMemory], graph: OwnerGraph, moment: Moment) -> list[RecalledMemory]:
    """Return the memories with the ids of live contradicting memories in `conflicts_with`."""
    if not graph.has_stated():
        return memories
    found = []
    for memory in memories:
        others = sorted(
            edge.target.text
            for edge in graph.edges(NodeKey(memory.id, memory=True), EDGES_MOST)
            if edge.type == CONTRADICTS and is_live(edge, moment.now_ms)
        )
        found.append(memory.model_copy(update={"conflicts_with": others}) if others else memory)
    return found


def with_updates(
    memories: list[RecalledMemory], index: OwnerIndex, found: Mapping[int, Replacement]
) -> list[RecalledMemory]:
    """Return the memories with their update in `updated_by`. `found` holds updates by position."""
    if not found:
        return memories
    slots, created_ms = index.conversation.slots, index.conversation.facts["created_ms"]
    of = {
        index.ids[int(slots[place])]: UpdatedBy(
            id=index.ids[int(slots[one.by])],
            at=format_time(int(created_ms[one.by])),
            probability=round(one.probability, 4),
        )
        for place, one in found.items()
    }
    return [
        memory.model_copy(update={"updated_by": of[memory.id]}) if memory.id in of else memory for memory in memories
    ]


def ranking_warnings(inputs: RankingInput, ranking: Ranking, rows: Rows) -> list[Warn]:
    """Return warnings about missing memories, question words or graph, future event times, and unreadable rows."""
    conversation, tuning = inputs.index.conversation, inputs.tuning
    known, permitted = conversation.size, len(inputs.allowed)
    found: list[Warn] = []
    if tuning.wants_proximity and inputs.proximity is None:
        detail = "there is no graph to tell how near memories are to entities; it counts as 0"
        found.append(Warn(code="no_graph", detail=detail))
    if not known:
        found.append(Warn(code="no_memories", detail="nothing is remembered of this user"))
    elif not permitted:
        found.append(Warn(code="no_memories", detail=f"none of {known} memories may be in the answer"))
    elif "k" in inputs.query.model_fields_set and min(inputs.query.k, K_MAX) > permitted:
        detail = f"k was {inputs.query.k}; {permitted} of {known} memories may be in the answer"
        found.append(Warn(code="k_exceeds_memories", detail=detail))
    if not inputs.question.stems and tuning.mode != "recency":
        found.append(Warn(code="no_content_words", detail="the question has no words that tell what it is about"))
    if ahead := int((inputs.fact("created_ms", ranking.places) > inputs.now_ms).sum()):
        found.append(
            Warn(code="future_timestamp", detail=f"{ahead} memories lie after the query's time; counted as now")
        )
    if gone := sum(row is None for row in rows):
        found.append(Warn(code="rows_missing", detail=f"{gone} memories were found but are gone from the store"))
    return found + redaction.warn(rows)


def score_parts(ranking: Ranking) -> list[dict[str, dict[str, float]]]:
    """Return the fields of each memory's `Explanation`, best first."""
    count, weights = len(ranking.places), {name: round(weight, 6) for name, weight in ranking.weights.items()}
    factors, boosts = (
        np.round(np.array([*parts.values()]).reshape(len(parts), count), 6).T.tolist()
        for parts in (ranking.factors, ranking.boosts)
    )
    return [
        {
            "factors": dict(zip(ranking.factors, own, strict=True)),
            "weights": weights,
            "boosts": {name: boost for name, boost in zip(ranking.boosts, more, strict=True) if boost},
        }
        for own, more in zip(factors, boosts, strict=True)
    ]


def recalled_episodes(
    hot: HotOwner,
    index: OwnerIndex,
    moment: Moment,
    ranking: Ranking,
    memories: Sequence[RecalledMemory],
    rows: RowsReader,
) -> list[RecalledEpisode]:
    """Return the episodes of the ranked memories in the order of the answer. Memories without an episode are
    skipped."""
    conversation, returned = index.conversation, Counter(memory.episode_id for memory in memories)
    relevance = dict[int, float]()
    for segment, value in zip(conversation.segment[ranking.places].tolist(), ranking.factors["relevance"], strict=True):
        relevance.setdefault(segment, float(value))
    found, summaries, facts = list[RecalledEpisode](), Summaries(index, rows, len(relevance)), conversation.facts
    for segment, value in relevance.items():
        members = np.arange(conversation.starts[segment], conversation.ends[segment])
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
                summary=known_summary(hot, episode, moment.happened_by_ms) or summaries.of(members),
                relevance=round(value, 6),
                members_returned=returned[episode.id],
            )
        )
    return found


def compose_answer(
    run: QueryRun,
    understood: Understood,
    permitted: Permitted,
    candidates: Candidates,
    ranked: Ranked,
    expanded: Expanded,
    summaries: CategorySummaries,
) -> ComposedAnswer:
    """Return the answer without the context."""
    query, ranking, scored = run.query, ranked.ranking, run.results.scored
    warnings = validate(query)
    if understood.dropped:
        detail = f"went without {' and '.join(understood.dropped)} to be done within {query.sla_target_ms:g} ms"
        warnings.append(Warn(code="deadline", detail=detail))
    if scored is not None:
        warnings += scored.warnings
    warnings += [*permitted.warnings, *candidates.signal.warnings]
    warnings += ranking_warnings(ranked.inputs, ranking, expanded.rows[: len(ranking.places)])
    memories = _memories(run, understood, candidates, ranked, expanded)
    warnings += relevance_warnings(ranked.inputs, ranked.judged, len(memories))
    episodes = None
    if understood.tuning.mode == "episode":
        there = len(ranking.places) > 0
        episodes = recalled_episodes(run.hot, run.index, run.moment, ranking, memories, run.rows) if there else []
    run.timings.end("compose")
    entities = NOTHING_KNOWN
    if model_calls.context_tokens(query) is not None:
        filtered = query.filters != Filters() or query.project_id is not None
        entities = ranked.graph.context(query.entity_urns, understood.question.text, filtered=filtered)
    seqs = zip(ranked.inputs.fact("seq", expanded.places).tolist(), expanded.rows, strict=True)
    return ComposedAnswer(
        run=run,
        understood=understood,
        permitted=permitted,
        signal=candidates.signal._replace(columns=signal.NO_COLUMNS),
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
        change=run.hot.next_change,
    )


def _memories(
    run: QueryRun, understood: Understood, candidates: Candidates, ranked: Ranked, expanded: Expanded
) -> list[RecalledMemory]:
    """Return the ranked memories, then those from graph expansion."""
    index, ranking, items, places = run.index, ranked.ranking, expanded.items, expanded.places
    count, scored = len(ranking.places), run.results.scored
    rows, others = expanded.rows[:count], expanded.rows[count:]
    shown = excerpts(index, understood.question, candidates.signal.vector, places, expanded.rows)
    explained: list[dict[str, Any]] = [{} for _ in expanded.rows]
    if run.query.explain:
        explained = _explained(run, understood, candidates, ranked, rows)
        explained += [{"why": reasons} for reasons in why.added(items, rows)]
    about = particulars_of(index, places, shown, expanded.relevance, _current(run, places))
    scores = {} if scored is None else scored.scores
    memories = ranked_memories(ranking, rows, about[:count], explained[:count], scores)
    memories += expanded_memories(items, others, about[count:], explained[count:], len(memories))
    return with_updates(with_conflicts(memories, run.graph, run.moment), index, ranked.updates)


def _explained(
    run: QueryRun, understood: Understood, candidates: Candidates, ranked: Ranked, rows: Sequence[MemoryRow | None]
) -> list[dict[str, Any]]:
    """Return the reasons of each ranked memory, and the parts of its score."""
    query, scored, ranking = run.query, run.results.scored, ranked.ranking
    # Without the question's vector, similarity is spelling, for every model.
    kind = run.engine.embedder.kind if candidates.signal.vector is not None else "spelling"
    names = partial(ranked.graph.names, query.entity_urns, understood.question.text)
    reasons = why.why(ranked.inputs, ranking, rows, candidates.signal.columns, kind, run.rows, names)
    if scored is not None:
        why.say_reranked(reasons, scored.model, ranked.before)
    why.say_updates(reasons, ranking.places.tolist(), ranked.updates, run.index, run.rows)
    parts = [unchecked(Explanation, **part) for part in score_parts(ranking)]
    return [{"explanation": part, "why": own} for part, own in zip(parts, reasons, strict=True)]


def finish(found: ComposedAnswer, results: ModelResults, rewritten: list[str]) -> Recalled:
    """Return the response, with a context if the query requests one, and its effects. `rewritten` are the
    subqueries."""
    run, query, memories = found.run, found.run.query, found.memories
    warnings, optional = [*found.warnings], dict[str, Any]()
    if found.episodes is not None:
        optional["episodes"] = found.episodes
    if (max_tokens := model_calls.context_tokens(query)) is not None:
        at_hand, question = found.summaries.at_hand, found.understood.question.text
        about = About(
            run.index,
            query.filters,
            found.permitted,
            memories,
            further_items(run, found.understood.question, found.signal.vector, found.further, memories),
            found.summaries.every,
            found.entities,
        )
        counter = run.engine.shared.tokens()
        chosen = model_calls.selected_categories(results, run.request.categories, at_hand)
        enough = model_calls.sufficient_summaries(results, question, at_hand) if query.check_sufficiency else {}
        brief = summaries_alone(about, max_tokens, counter, enough, chosen)
        if brief is not None:
            memories, optional["context"] = [], brief
            optional |= {"episodes": []} if "episodes" in optional else {}
        else:
            optional["context"], missed = context(about, max_tokens, counter, run.rows, chosen)
            warnings += missed
        if query.check_sufficiency:
            optional["sufficient"] = brief is not None
        run.timings.end("context")
    has_time, has_model = "llm" not in found.understood.dropped, "llm" in run.engine.models
    warnings += model_calls.llm_warnings(query, results, has_model=has_model, has_time=has_time)
    response = _response(found, results, rewritten, memories, optional, warnings)
    effects = None
    if run.moment.is_now:
        effects = Effects(tuple(found.seqs[memory.id] for memory in memories), query.session_id, run.asked_ms)
    return Recalled(response, effects, found.added)


def _response(
    found: ComposedAnswer,
    results: ModelResults,
    rewritten: list[str],
    memories: list[RecalledMemory],
    optional: dict[str, Any],
    warnings: list[Warn],
) -> Response:
    """Return the response with its routing information."""
    run, understood, applied = found.run, found.understood, found.applied
    timings, query = run.timings, run.query
    ran: dict[Step, bool] = {
        "dense": found.signal.embedded,
        "graph": found.graph_ran,
        "rerank": results.scored is not None,
        "llm": results.ran_llm,
    }
    tier = tier_of([step for step, did in ran.items() if did])
    target_ms, elapsed_ms = query.sla_target_ms or TARGET_MS[tier], timings.elapsed_ms()
    optional_ms = sum(timings.stages_ms.get(stage, 0.0) for stage in ("proximity", "boosts", "expand", "questions"))
    rest_ms = elapsed_ms - understood.at_ms - found.signal.took_ms - optional_ms - timings.waited_ms
    run.engine.shared.costs.add(REST, rest_ms)
    routing: dict[str, Any] = {
        "mode": understood.tuning.mode,
        "index": "flat",
        "memories": len(run.index),
        "permitted": len(found.permitted.places),
        "cache_hits": {name: int(name in found.signal.hits) for name in signal.CACHES},
        "stages_ms": timings.stages_ms,
    }
    if results.scored is not None:
        routing["rerank"] = results.scored.routing
    if results.ended:
        routing["models"] = results.routing
    if rewritten:
        routing["rewritten"] = rewritten
    if applied is not None and applied.routing is not None:
        routing["graph"] = applied.routing
    return unchecked(
        Response,
        query_id=run.context.query_id,
        status=status_of(warnings),
        memories=memories,
        answerable=None if found.answerable is None else round(found.answerable, 6),
        query_intent=understood.intent,
        computation_tier=tier,
        sla_target_ms=target_ms,
        sla_met=elapsed_ms <= target_ms,
        processing_time_ms=round(elapsed_ms, 3),
        routing_info=routing,
        tiebreak_applied=found.tiebreak_applied,
        fallback=None if applied is None else applied.fallback,
        warnings=warnings,
        **optional,
    )


def _current(run: QueryRun, places: Places) -> list[bool]:
    """Return whether each position holds the latest version of its memory, valid now."""
    if run.moment.is_now:
        return [True] * len(places)
    index, hot, facts = run.index, run.hot, run.index.conversation.facts
    now = Moment.now(run.asked_ms, run.context.projects)
    late, holds = superseded(graph_at(hot, index, now), index, now), valid(index, now)
    found = []
    for place in places.tolist():
        stands = hot.current(index.ids[index.conversation.slots[place]])
        latest = stands is not None and stands.version == facts["version"][place]
        found.append(bool(latest and holds[place] and (late is None or not late[place])))
    return found
