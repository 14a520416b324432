"""Builds response memories and warnings from ranked positions and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from recallflow.fields import format_time
from recallflow.operators import redaction
from recallflow.operators.graph.paths import Related
from recallflow.operators.graph.reader import is_live
from recallflow.operators.recall import rerank
from recallflow.operators.recall.moment import Moment
from recallflow.operators.recall.ranking_input import Ranking, RankingInput
from recallflow.operators.recall.relevance import Judged
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.redaction import Redacted
from recallflow.queries import K_MAX
from recallflow.responses import RecalledMemory, Span, UpdatedBy, Warn, unchecked
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import CONTRADICTS, NodeKey
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


def particulars(
    index: OwnerIndex,
    places: Places,
    excerpts: Sequence[Span | None],
    relevance: Column,
    current: Sequence[bool],
) -> list[Particulars]:
    """Return the particulars of the memory at each position. All arguments but the index are in the order of
    `places`."""
    parts = zip(_episode_ids(index, places), excerpts, relevance.round(6).tolist(), current, strict=True)
    return [*map(Particulars._make, parts)]


def ranked(
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
            given = rerank_scores.get(rerank.key(row.id, row.version)) if rerank_scores else None
            if given is not None:
                more = more | {"rerank_score": round(given, 6)}
            found.append(_memory(row, of_it, score, len(found) + 1, more))
    return found


def added(
    items: Sequence[Related],
    rows: Rows,
    particulars: Sequence[Particulars],
    explained: Sequence[dict[str, Any]],
    behind: int,
) -> list[RecalledMemory]:
    """Return response memories for graph expansion, with the score of their path. Rows deleted since ranking are
    skipped.

    Args:
        behind: the number of ranked memories before them.
    """
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
    """Return the memories with their update in `updated_by`.

    Args:
        found: updates by position.
    """
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


def warnings(inputs: RankingInput, ranking: Ranking, rows: Rows) -> list[Warn]:
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
