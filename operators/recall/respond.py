"""Puts together what the response shows, and says how it came about (step 11)."""

from functools import partial
from typing import Any

from recallflow.operators.recall import compose, episode_list, signal, why
from recallflow.operators.recall.context import About, context
from recallflow.operators.recall.deadline import REST, TARGET_MS, Step, tier_of
from recallflow.operators.recall.excerpt import excerpts
from recallflow.operators.recall.filters import superseded, valid
from recallflow.operators.recall.moment import Moment
from recallflow.operators.recall.stages import Asked, Candidates, Composed, Expanded, Ranked, Understood
from recallflow.operators.recall.tuning import validate
from recallflow.queries import Filters
from recallflow.responses import Response, Warn, status_of
from recallflow.state.arrays import Places


def compose_answer(
    asked: Asked, understood: Understood, candidates: Candidates, ranked: Ranked, expanded: Expanded
) -> Composed:
    query, index, columns, ranking = asked.query, asked.index, candidates.signal.columns, ranked.ranking
    count, target_ms = len(ranking.places), query.sla_target_ms
    rows = expanded.rows[:count]
    warnings = validate(query)
    if understood.dropped:
        detail = f"went without {' and '.join(understood.dropped)} to be done within {target_ms:g} ms"
        warnings.append(Warn(code="deadline", detail=detail))
    if asked.scored is not None:
        warnings += asked.scored.warnings
    warnings += [*candidates.warnings, *candidates.signal.warnings, *compose.warnings(ranked.scene, ranking, rows)]
    shown = excerpts(index, understood.question, candidates.signal.vector, expanded.places, expanded.rows)
    # Without the question's vector, what is alike is spelt alike, whatever the model.
    kind = asked.engine.embedder.kind if candidates.signal.vector is not None else "spelling"
    names = partial(ranked.graph.names, query.entity_urns, understood.question.text)
    reasons = why.why(ranked.scene, ranking, rows, columns, kind, asked.rows, names)
    if asked.scored is not None:
        why.say_reranked(reasons, asked.scored.model, ranked.before)
    items = () if expanded.applied is None else expanded.applied.items
    reasons += why.added(items, rows)
    current = _current(asked, expanded.places)
    shown_with = compose.particulars(index, expanded.places, shown, expanded.relevance, current, reasons)
    scores = {} if asked.scored is None else asked.scored.scores
    explained: list[dict[str, Any]] = [{} for _ in rows]
    if query.explain:
        explained = compose.explanations(ranked.scene, ranking, columns, asked.engine.embedder.kind)
    memories = compose.ranked(ranking, rows, shown_with[:count], explained, scores)
    memories += compose.added(items, expanded.rows[count:], shown_with[count:], len(memories))
    memories = compose.with_conflicts(memories, asked.graph, asked.moment)
    warnings += compose.relevance_warnings(ranked.scene, ranked.judged, len(memories))
    optional: dict[str, Any] = {}
    if understood.tuning.mode == "episode":
        optional["episodes"] = []
        if len(ranking.places):
            moment, rows_of = asked.moment, asked.rows
            optional["episodes"] = episode_list.listed(asked.hot, index, moment, ranking, memories, rows_of)
    asked.laps.lap("compose")
    if query.max_tokens is not None:
        permitted, kept_out = candidates.permitted, candidates.kept_out
        about = About(asked.hot, index, asked.moment, query.filters, permitted, kept_out, memories)
        filtered = query.filters != Filters() or query.project_id is not None
        entities = ranked.graph.context(query.entity_urns, understood.question.text, filtered=filtered)
        counter = asked.engine.shared.tokens()
        optional["context"], missed = context(about, query.max_tokens, counter, asked.rows, entities)
        warnings += missed
        asked.laps.lap("context")
    return Composed(memories, optional, [*warnings, *ranked.graph.warnings])


def _current(asked: Asked, places: Places) -> list[bool]:
    """Whether what stands at each place is its memory's latest version, and counts now."""
    if asked.moment.is_now:
        return [True] * len(places)
    index, hot, facts = asked.index, asked.hot, asked.index.conversation.facts
    now = Moment(asked.asked_ms, None, None, history=False)
    late, holds = superseded(hot.graph, index, now), valid(index, now)
    found = []
    for place in places.tolist():
        stands = hot.current(index.ids[index.conversation.slots[place]])
        latest = stands is not None and stands.version == facts["version"][place]
        found.append(bool(latest and holds[place] and (late is None or not late[place])))
    return found


def respond(
    asked: Asked,
    understood: Understood,
    candidates: Candidates,
    ranked: Ranked,
    expanded: Expanded,
    composed: Composed,
) -> Response:
    """The response, with what it says of how the answer came about."""
    found, applied, laps = candidates.signal, expanded.applied, asked.laps
    ran: dict[Step, bool] = {
        "dense": found.embedded,
        "graph": ranked.graph.ran,
        "rerank": asked.scored is not None,
    }
    tier = tier_of([step for step, did in ran.items() if did])
    target_ms, elapsed_ms = asked.query.sla_target_ms or TARGET_MS[tier], laps.elapsed_ms()
    optional_ms = sum(laps.stages_ms.get(stage, 0.0) for stage in ("proximity", "boosts", "expand"))
    asked.engine.shared.costs.add(REST, elapsed_ms - understood.at_ms - found.took_ms - optional_ms)
    routing = {
        "mode": understood.tuning.mode,
        "index": "flat",
        "memories": len(asked.index),
        "permitted": len(candidates.permitted),
        "cache_hits": {name: int(name in found.hits) for name in signal.CACHES},
        "stages_ms": laps.stages_ms,
    }
    if asked.scored is not None:
        routing["rerank"] = asked.scored.routing
    if applied is not None and applied.routing is not None:
        routing["graph"] = applied.routing
    return Response(
        query_id=asked.request.query_id,
        status=status_of(composed.warnings),
        memories=composed.memories,
        answerable=None if (likely := ranked.judged.answerable) is None else round(likely, 6),
        query_intent=understood.intent,
        computation_tier=tier,
        sla_target_ms=target_ms,
        sla_met=elapsed_ms <= target_ms,
        processing_time_ms=round(elapsed_ms, 3),
        routing_info=routing,
        tiebreak_applied=ranked.ranking.tiebreak_applied,
        fallback=None if applied is None else applied.fallback,
        warnings=composed.warnings,
        **composed.optional,
    )
