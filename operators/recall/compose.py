"""Step 11: ranked places and their rows become what a response shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recallflow.embedder import Kind
from recallflow.fields import format_time
from recallflow.operators import redaction
from recallflow.operators.graph.expand import Related
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.confidence import log_total, probabilities
from recallflow.operators.recall.scene import Places, Ranking, Scene, explained
from recallflow.operators.redaction import Redacted
from recallflow.responses import Explanation, RecalledMemory, Warn
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

REASONS = 3  # named per memory in why_included


def memories(
    index: OwnerIndex, ranking: Ranking, rows: list[MemoryRow | None], signal: Columns | None
) -> list[RecalledMemory]:
    """The ranked memories; those whose text could not be opened come last, and one whose row is gone (a deletion in
    flight) is left out."""
    found: list[RecalledMemory] = []
    signals = _strongest(signal, ranking.places) if signal else [["recency"]] * len(rows)
    told = zip(rows, _episodes(index, ranking.places), ranking.scores.tolist(), signals, strict=True)
    for row, episode_id, score, strongest in sorted(told, key=lambda one: isinstance(one[0], Redacted)):
        if row is not None:
            why = {"reason": "ranked", "signals": strongest}
            found.append(memory(row, episode_id, score=score, rank=len(found) + 1, why=why))
    return found


def expanded(
    index: OwnerIndex, places: Places, items: Sequence[Related], rows: list[MemoryRow | None], ranked: int
) -> list[RecalledMemory]:
    """What the graph adds behind so many ranked memories; one whose row is gone is left out."""
    found: list[RecalledMemory] = []
    for episode_id, item, row in zip(_episodes(index, places), items, rows, strict=True):
        if row is not None:
            rank = ranked + len(found) + 1
            found.append(memory(row, episode_id, score=item.score, rank=rank, why=item.why))
    return found


def flagged(memories: list[RecalledMemory], conflicts: dict[str, list[str]]) -> list[RecalledMemory]:
    """The memories, with those named that contradict one."""
    return [
        memory.model_copy(update={"conflicts_with": conflicts[memory.id]}) if memory.id in conflicts else memory
        for memory in memories
    ]


def _episodes(index: OwnerIndex, places: Places) -> list[str | None]:
    """The id of each memory's episode, if it is in one."""
    numbers = index.conversation.facts["episode"].take(places).tolist()
    return [None if (episode := index.episode(number)) is None else episode.id for number in numbers]


def memory(row: MemoryRow, episode_id: str | None, *, score: float, rank: int, why: dict[str, Any]) -> RecalledMemory:
    """One memory as a response shows it."""
    return RecalledMemory(
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
        episode_id=episode_id,
        created_at=format_time(row.created_ms),
        confidence=row.confidence,
        score=round(score, 6),
        rank=rank,
        why_included=why,
    )


def _strongest(signal: Columns, places: Places) -> list[list[str]]:
    """For each memory, the columns that speak most for it, strongest first."""
    names, parts = [*signal.values], signal.contributions(places)
    best = np.argsort(-parts, axis=0, kind="stable")[:REASONS].T.tolist()
    return [[names[at] for at in most if parts[at, place] > 0] for place, most in enumerate(best)]


def explanations(
    scene: Scene, ranking: Ranking, rows: list[MemoryRow | None], signal: Columns | None, kind: Kind
) -> dict[str, Any]:
    """Per memory: how its score came about, and where there is a signal the probability that it is evidence."""
    kept = [(at, row.id) for at, row in enumerate(rows) if row is not None]
    parts = explained(ranking)
    told = {"explanations": {memory_id: Explanation(**parts[at]) for at, memory_id in kept}}
    if signal is None or not kept:
        return told
    likely = probabilities(scene.semantic[ranking.places], log_total(scene.semantic[scene.allowed]), kind)
    rounded = np.round(likely, 6).tolist()
    return told | {"confidence_scores": {memory_id: rounded[at] for at, memory_id in kept}}


def afterthoughts(index: OwnerIndex, ranking: Ranking, rows: list[MemoryRow | None], now_ms: int) -> list[Warn]:
    """Warnings that depend on the answer."""
    warnings = []
    if ahead := int((index.conversation.facts["created_ms"][ranking.places] > now_ms).sum()):
        detail = f"{ahead} memories lie after the query's time; counted as now"
        warnings.append(Warn(code="future_timestamp", detail=detail))
    if gone := rows.count(None):
        warnings.append(Warn(code="rows_missing", detail=f"{gone} memories were found but are gone from the store"))
    return warnings + redaction.warn(rows)
