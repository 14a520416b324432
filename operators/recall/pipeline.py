"""The way from a recall query to its response, step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recallflow.embedder import Embedder
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import format_time
from recallflow.operators.decode import unknown_fields
from recallflow.operators.recall import columns
from recallflow.operators.recall.columns import SEMANTIC_WEIGHTS, SPELLING_WEIGHTS, Columns
from recallflow.operators.recall.filters import allowed
from recallflow.operators.recall.modes import MODES, Ranking, Scene, explained, rank
from recallflow.operators.recall.question import Question, understand
from recallflow.queries import K_MAX, K_MIN, QUERY_CHARACTERS, Recall
from recallflow.responses import Explanation, RecalledMemory, Response, Warn
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

REASONS = 3  # named per memory in why_included
SLA_FAST_MS, SLA_STANDARD_MS = 10.0, 50.0
_NOT_YET = {
    "as_of": "points in time",
    "include_history": "superseded memories",
}
_NOT_YET_OPTIONAL = {
    "strategy": "graph expansion",
    "traversal_depth": "graph traversal",
    "entity_urns": "entity proximity",
    "max_tokens": "an assembled context",
    "select_categories": "category selection",
    "check_sufficiency": "the sufficiency check",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What recall needs beside the state: the model for questions, the rows' reader, and a timer for the response's
    `processing_time_ms` (seconds, from any start; it has no influence on the answer)."""

    embedder: Embedder
    rows: Callable[[HotOwner, list[int]], list[MemoryRow | None]]
    timer: Callable[[], float]


def recall(engine: Engine, hot: HotOwner, query: Recall, query_id: str, now_ms: int) -> Response:
    """One query's answer. Raises InvalidRecord for what this version cannot answer."""
    started = engine.timer()
    warnings = validate(query)
    index = hot.search_index(engine.embedder.name, engine.embedder.dimension)
    question = understand(query.query.strip()[:QUERY_CHARACTERS], participants(index))
    signal = signals(engine.embedder, index, question, query)
    scene = Scene(
        index=index,
        question=question,
        query=query,
        k=min(max(query.k, K_MIN), K_MAX),
        now_ms=now_ms,
        semantic=signal.score() if signal else np.zeros(index.conversation.size),
        allowed=np.flatnonzero(allowed(index, query.filters, now_ms)),
    )
    ranking = rank(scene) if len(scene.allowed) else Ranking(scene.allowed, np.zeros(0))
    rows = engine.rows(hot, [int(slot) for slot in index.conversation.slots[ranking.places]])
    warnings += after_the_fact(index, ranking, now_ms)
    memories = compose(index, ranking, rows, signal)
    fast = signal is None
    target_ms = query.sla_target_ms or (SLA_FAST_MS if fast else SLA_STANDARD_MS)
    elapsed_ms = (engine.timer() - started) * 1000
    response = Response(
        query_id=query_id,
        status="degraded" if any(w.code == "not_in_this_version" for w in warnings) else "ok",
        memories=memories,
        computation_tier="fast" if fast else "standard",
        sla_target_ms=target_ms,
        sla_met=elapsed_ms <= target_ms,
        processing_time_ms=round(elapsed_ms, 3),
        routing_info={"mode": query.mode, "index": "flat", "memories": len(index), "permitted": len(scene.allowed)},
        tiebreak_applied=ranking.tiebreak_applied,
        fallback=None,
        warnings=warnings,
    )
    return response.model_copy(update=explanations(scene, ranking, rows, signal)) if query.explain else response


def validate(query: Recall) -> list[Warn]:
    """What is cut to size or not done is warned of; what would make the answer another one is refused."""
    problems = [
        FieldProblem(name, f"{what} are not in this version yet; leave it out")
        for name, what in _NOT_YET.items()
        if getattr(query, name)
    ]
    if query.mode not in MODES:
        problems.append(FieldProblem("mode", f"not in this version yet; give one of {', '.join(sorted(MODES))}"))
    if problems:
        raise InvalidRecord("unsupported", problems)
    warnings = [
        Warn(code="not_in_this_version", detail=f"{name}: {what} was not applied")
        for name, what in _NOT_YET_OPTIONAL.items()
        if getattr(query, name) != Recall.model_fields[name].get_default()
    ]
    if not K_MIN <= query.k <= K_MAX:
        warnings.append(Warn(code="k_clamped", detail=f"k was {query.k}; {K_MIN} to {K_MAX} are answered"))
    if len(query.query.strip()) > QUERY_CHARACTERS:
        warnings.append(Warn(code="query_cut", detail=f"only the first {QUERY_CHARACTERS} characters were read"))
    unknown = unknown_fields(query) + [f"filters.{name}" for name in query.filters.model_extra or {}]
    warnings += [Warn(code="unknown_field", detail=f"{name} is not read") for name in unknown]
    return warnings


def participants(index: OwnerIndex) -> list[str]:
    """Everyone who wrote a current memory."""
    return [index.names.strings[author] for author in index.conversation.authors if author >= 0]


def signals(embedder: Embedder, index: OwnerIndex, question: Question, query: Recall) -> Columns | None:
    """The semantic signal's columns; none where the mode does not ask what a memory means."""
    if query.mode == "recency" or not index.conversation.size:
        return None
    weights = SEMANTIC_WEIGHTS if embedder.semantic else SPELLING_WEIGHTS
    return columns.compute(index, question, embedder.embed([question.own_words])[0], weights)


def after_the_fact(index: OwnerIndex, ranking: Ranking, now_ms: int) -> list[Warn]:
    """Warnings that depend on the answer."""
    ahead = index.conversation.facts["created_ms"][ranking.places] > now_ms
    if not ahead.any():
        return []
    return [
        Warn(code="future_timestamp", detail=f"{int(ahead.sum())} memories lie after the query's time; counted as now")
    ]


def compose(
    index: OwnerIndex, ranking: Ranking, rows: list[MemoryRow | None], signal: Columns | None
) -> list[RecalledMemory]:
    """The ranked memories; one whose row is gone (a deletion in flight) is left out."""
    found: list[RecalledMemory] = []
    for at, (place, row) in enumerate(zip(ranking.places, rows, strict=True)):
        if row is None:
            continue
        fact = index.conversation.facts[place]
        episode = index.episode(fact["episode"])
        found.append(
            RecalledMemory(
                id=row.id,
                content=row.content,
                summary=row.summary,
                kind=row.kind,
                layer=row.layer,
                category=row.category,
                role=row.role,
                name=row.name,
                tags=row.tags,
                session_id=row.session_id,
                episode_id=episode.id if episode else None,
                created_at=format_time(row.created_ms),
                confidence=row.confidence,
                score=round(float(ranking.scores[at]), 6),
                rank=len(found) + 1,
                why_included={"reason": "ranked", "signals": _strongest(signal, int(place)) if signal else ["recency"]},
            )
        )
    return found


def _strongest(signal: Columns, place: int) -> list[str]:
    """The columns that speak most for a memory, strongest first."""
    parts = sorted(signal.contributions(place).items(), key=lambda part: -part[1])
    return [name for name, value in parts[:REASONS] if value > 0]


def explanations(
    scene: Scene, ranking: Ranking, rows: list[MemoryRow | None], signal: Columns | None
) -> dict[str, Any]:
    """Per memory: how its score came about, and where there is a signal the share it gives the memory of all evidence
    (softmax, as the weights were fitted)."""
    slots = scene.index.conversation.slots[ranking.places]
    kept = [(at, scene.index.ids[slot]) for at, slot in enumerate(slots) if rows[at] is not None]
    told = {"explanations": {memory_id: Explanation(**explained(ranking, at)) for at, memory_id in kept}}
    if signal is None or not kept:
        return told
    odds = np.exp(scene.semantic - scene.semantic[scene.allowed].max())
    shares = odds[ranking.places] / odds[scene.allowed].sum()
    return told | {"confidence_scores": {memory_id: round(float(shares[at]), 6) for at, memory_id in kept}}
