"""Composes the response and its routing information (step 11)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from recallflow.operators.graph.reader import NOTHING_KNOWN
from recallflow.operators.recall import compose, episode_list, explain, llm_steps, signal, why
from recallflow.operators.recall.context import About, context, further_items, summaries_alone
from recallflow.operators.recall.deadline import REST, TARGET_MS, Step, tier_of
from recallflow.operators.recall.excerpt import excerpts
from recallflow.operators.recall.filters import superseded, valid
from recallflow.operators.recall.moment import Moment, graph_at
from recallflow.operators.recall.ranking_input import validate
from recallflow.operators.recall.said import Said
from recallflow.operators.recall.stages import (
    Asked,
    Candidates,
    CategorySummaries,
    ComposedAnswer,
    Effects,
    Expanded,
    Permitted,
    Ranked,
    Recalled,
    Understood,
)
from recallflow.queries import Filters
from recallflow.responses import Explanation, RecalledMemory, Response, Warn, status_of, unchecked
from recallflow.state.arrays import Places
from recallflow.state.rows import MemoryRow


def compose_answer(
    asked: Asked,
    understood: Understood,
    permitted: Permitted,
    candidates: Candidates,
    ranked: Ranked,
    expanded: Expanded,
    summaries: CategorySummaries,
) -> ComposedAnswer:
    """Return the answer without the context."""
    query, index, ranking = asked.query, asked.index, ranked.ranking
    count, target_ms, scored = len(ranking.places), query.sla_target_ms, asked.said.scored
    rows = expanded.rows[:count]
    warnings = validate(query)
    if understood.dropped:
        detail = f"went without {' and '.join(understood.dropped)} to be done within {target_ms:g} ms"
        warnings.append(Warn(code="deadline", detail=detail))
    if scored is not None:
        warnings += scored.warnings
    warnings += [*permitted.warnings, *candidates.signal.warnings, *compose.warnings(ranked.inputs, ranking, rows)]
    shown = excerpts(index, understood.question, candidates.signal.vector, expanded.places, expanded.rows)
    items = () if expanded.applied is None else expanded.applied.items
    explained: list[dict[str, Any]] = [{} for _ in expanded.rows]
    if query.explain:
        explained = _explained(asked, understood, candidates, ranked, rows)
        explained += [{"why": reasons} for reasons in why.added(items, rows)]
    current = _current(asked, expanded.places)
    shown_with = compose.particulars(index, expanded.places, shown, expanded.relevance, current)
    memories = compose.ranked(
        ranking, rows, shown_with[:count], explained[:count], {} if scored is None else scored.scores
    )
    memories += compose.added(items, expanded.rows[count:], shown_with[count:], explained[count:], len(memories))
    memories = compose.with_conflicts(memories, asked.graph, asked.moment)
    memories = compose.with_updates(memories, index, ranked.updates)
    warnings += compose.relevance_warnings(ranked.inputs, ranked.judged, len(memories))
    episodes = None
    if understood.tuning.mode == "episode":
        hot, rows_of = asked.hot, asked.rows
        there = len(ranking.places) > 0
        episodes = episode_list.listed(hot, index, asked.moment, ranking, memories, rows_of) if there else []
    asked.laps.lap("compose")
    entities = NOTHING_KNOWN
    if llm_steps.context_tokens(query) is not None:
        filtered = query.filters != Filters() or query.project_id is not None
        entities = ranked.graph.context(query.entity_urns, understood.question.text, filtered=filtered)
    seqs = zip(ranked.inputs.fact("seq", expanded.places).tolist(), expanded.rows, strict=True)
    return ComposedAnswer(
        asked=asked,
        understood=understood,
        permitted=permitted,
        signal=candidates.signal._replace(columns=signal.NO_COLUMNS),
        graph_ran=ranked.graph.ran,
        tiebreak_applied=ranking.tiebreak_applied,
        answerable=ranked.judged.answerable,
        applied=expanded.applied,
        memories=memories,
        seqs={row.id: seq for seq, row in seqs if row is not None},
        added=frozenset(item.id for item in items),
        episodes=episodes,
        summaries=summaries,
        entities=entities,
        further=ranked.further,
        warnings=[*warnings, *summaries.warnings, *ranked.graph.warnings],
        change=asked.hot.next_change,
    )


def _explained(
    asked: Asked, understood: Understood, candidates: Candidates, ranked: Ranked, rows: Sequence[MemoryRow | None]
) -> list[dict[str, Any]]:
    """Return the reasons of each ranked memory, and the parts of its score."""
    query, scored, ranking = asked.query, asked.said.scored, ranked.ranking
    # Without the question's vector, similarity is spelling, for every model.
    kind = asked.engine.embedder.kind if candidates.signal.vector is not None else "spelling"
    names = partial(ranked.graph.names, query.entity_urns, understood.question.text)
    reasons = why.why(ranked.inputs, ranking, rows, candidates.signal.columns, kind, asked.rows, names)
    if scored is not None:
        why.say_reranked(reasons, scored.model, ranked.before)
    why.say_updates(reasons, ranking.places.tolist(), ranked.updates, asked.index, asked.rows)
    parts = [unchecked(Explanation, **part) for part in explain.explained(ranking)]
    return [{"explanation": part, "why": own} for part, own in zip(parts, reasons, strict=True)]


def finish(found: ComposedAnswer, said: Said, rewritten: list[str]) -> Recalled:
    """Return the response, with a context if the query requests one, and its effects.

    Args:
        said: the model results, including those about the context.
        rewritten: the subqueries.
    """
    asked, query, memories = found.asked, found.asked.query, found.memories
    warnings, optional = [*found.warnings], dict[str, Any]()
    if found.episodes is not None:
        optional["episodes"] = found.episodes
    if (max_tokens := llm_steps.context_tokens(query)) is not None:
        at_hand, question = found.summaries.at_hand, found.understood.question.text
        about = About(
            asked.index,
            query.filters,
            found.permitted,
            memories,
            further_items(asked, found.understood.question, found.signal.vector, found.further, memories),
            found.summaries.every,
            found.entities,
        )
        counter = asked.engine.shared.tokens()
        chosen = llm_steps.selected(said, asked.posed.categories, at_hand)
        enough = llm_steps.judged_sufficient(said, question, at_hand) if query.check_sufficiency else {}
        brief = summaries_alone(about, max_tokens, counter, enough, chosen)
        if brief is not None:
            memories, optional["context"] = [], brief
            optional |= {"episodes": []} if "episodes" in optional else {}
        else:
            optional["context"], missed = context(about, max_tokens, counter, asked.rows, chosen)
            warnings += missed
        if query.check_sufficiency:
            optional["sufficient"] = brief is not None
        asked.laps.lap("context")
    has_time, has_model = "llm" not in found.understood.dropped, "llm" in asked.engine.models
    warnings += llm_steps.warnings(query, said, has_model=has_model, has_time=has_time)
    response = _response(found, said, rewritten, memories, optional, warnings)
    effects = None
    if asked.moment.is_now:
        effects = Effects(tuple(found.seqs[memory.id] for memory in memories), query.session_id, asked.asked_ms)
    return Recalled(response, effects, found.added)


def _response(
    found: ComposedAnswer,
    said: Said,
    rewritten: list[str],
    memories: list[RecalledMemory],
    optional: dict[str, Any],
    warnings: list[Warn],
) -> Response:
    """Return the response with its routing information."""
    asked, understood, applied = found.asked, found.understood, found.applied
    laps, query = asked.laps, asked.query
    ran: dict[Step, bool] = {
        "dense": found.signal.embedded,
        "graph": found.graph_ran,
        "rerank": said.scored is not None,
        "llm": said.ran_llm,
    }
    tier = tier_of([step for step, did in ran.items() if did])
    target_ms, elapsed_ms = query.sla_target_ms or TARGET_MS[tier], laps.elapsed_ms()
    optional_ms = sum(laps.stages_ms.get(stage, 0.0) for stage in ("proximity", "boosts", "expand", "questions"))
    rest_ms = elapsed_ms - understood.at_ms - found.signal.took_ms - optional_ms - laps.waited_ms
    asked.engine.shared.costs.add(REST, rest_ms)
    routing: dict[str, Any] = {
        "mode": understood.tuning.mode,
        "index": "flat",
        "memories": len(asked.index),
        "permitted": len(found.permitted.places),
        "cache_hits": {name: int(name in found.signal.hits) for name in signal.CACHES},
        "stages_ms": laps.stages_ms,
    }
    if said.scored is not None:
        routing["rerank"] = said.scored.routing
    if said.ended:
        routing["models"] = said.routing
    if rewritten:
        routing["rewritten"] = rewritten
    if applied is not None and applied.routing is not None:
        routing["graph"] = applied.routing
    return unchecked(
        Response,
        query_id=asked.request.query_id,
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


def _current(asked: Asked, places: Places) -> list[bool]:
    """Return whether each position holds the latest version of its memory, valid now."""
    if asked.moment.is_now:
        return [True] * len(places)
    index, hot, facts = asked.index, asked.hot, asked.index.conversation.facts
    now = Moment.now(asked.asked_ms, asked.request.projects)
    late, holds = superseded(graph_at(hot, index, now), index, now), valid(index, now)
    found = []
    for place in places.tolist():
        stands = hot.current(index.ids[index.conversation.slots[place]])
        latest = stands is not None and stands.version == facts["version"][place]
        found.append(bool(latest and holds[place] and (late is None or not late[place])))
    return found
