"""Lookups without ranking: a memory, its versions, episodes, counts."""

from collections import Counter
from typing import Any

import numpy as np

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import format_time
from recallflow.operators import redaction
from recallflow.operators.derived import known_summary
from recallflow.operators.episodes import is_open
from recallflow.operators.quotas import UserLimits
from recallflow.operators.redaction import Redacted, RowsReader
from recallflow.operators.summaries import Summaries
from recallflow.queries import EpisodesList
from recallflow.responses import EpisodeInfo, MemoryUsage, Response
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import EpisodeRow, Held, MemoryRow
from recallflow.state.usage import Usage


def versions(query_id: str, rows: list[MemoryRow], projects: tuple[str, ...] | None = None) -> Response:
    """Return the response of `memory.get` and `memory.history`. Senders restricted to some `projects` do not see the
    memory's number, which counts memories of other projects."""
    shown = [version(row) for row in rows]
    if projects is not None:
        shown = [{name: value for name, value in one.items() if name != "seq"} for one in shown]
    response = Response(query_id=query_id, status="ok", versions=shown)
    return response.warned(warnings) if (warnings := redaction.warn(rows)) else response


def version(row: MemoryRow) -> dict[str, Any]:
    """Return one version of a memory; of an unreadable one, only its identity."""
    if isinstance(row, Redacted):
        return {name: getattr(row, name) for name in ("id", "seq", "version", "content", "summary")}
    times = {"created_ms": "created_at", "updated_ms": "updated_at", "ingested_ms": "ingested_at"}
    optional = {"valid_from_ms": "valid_from", "valid_to_ms": "valid_to", "expires_ms": "expires_at"}
    hidden = ("_ms", "_logged", "change")
    shown = {name: value for name, value in row.logical().items() if not name.endswith(hidden)}
    shown |= {name: format_time(getattr(row, column)) for column, name in times.items()}
    return shown | {
        name: format_time(at) for column, name in optional.items() if (at := getattr(row, column)) is not None
    }


def usage(used: Usage) -> MemoryUsage:
    """Return a memory's usage for `memory.get`."""
    last = format_time(used.last_ms) if used.times else None
    return MemoryUsage(count=used.times, last_accessed_at=last, useful=used.useful, not_useful=used.not_useful)


def missing(memory_id: str) -> InvalidRecord:
    return InvalidRecord("not_found", [FieldProblem("memory_id", f"no current memory has the id {memory_id!r}")])


def episodes(
    hot: HotOwner, index: OwnerIndex, rows: RowsReader, query: EpisodesList, now_ms: int, gap_ms: int
) -> list[EpisodeInfo]:
    """Return episodes with members, newest first."""
    members = _members(index)
    standing = [e for e in index.episodes() if e.number in members and query.session_id in (None, e.session_id)]
    newest = sorted(standing, key=lambda e: (e.last_ms, e.number), reverse=True)[: query.limit]
    summaries = Summaries(index, rows, len(newest))
    found = []
    for episode in newest:
        places = members[episode.number]
        summary = known_summary(hot, episode) or summaries.of(places)
        found.append(_describe(episode, len(places), summary, is_open(episode, now_ms, gap_ms)))
    return found


def stats(index: OwnerIndex, held: Held | None, limits: UserLimits, now_ms: int) -> dict[str, Any]:
    """Return counts of one owner's current memories, and its quotas (None: no limit). `held` are counts over all
    projects; None for restricted senders."""
    facts = index.conversation.facts
    kinds = Counter(index.names.strings[kind] for kind in facts["kind"])
    return {
        "memories": len(index),
        "by_kind": dict(sorted(kinds.items())),
        "episodes": len(_members(index)),
        "expired": int((facts["expires_ms"] <= now_ms).sum()),
        "participants": len(np.unique(facts["author"][facts["author"] >= 0])),
        "index_bytes": index.live_bytes(),
        **({} if held is None else {"text_bytes": held.text_bytes, "edges": held.edges}),
        "limits": limits._asdict(),
    }


def _members(index: OwnerIndex) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the places of members by episode number."""
    conversation = index.conversation
    numbers = conversation.facts["episode"]
    spans = zip(conversation.starts, conversation.ends, strict=True)
    return {int(numbers[start]): np.arange(start, end) for start, end in spans if numbers[start] >= 0}


def _describe(episode: EpisodeRow, messages: int, summary: str, is_open: bool) -> EpisodeInfo:
    return EpisodeInfo(
        id=episode.id,
        session_id=episode.session_id,
        started_at=format_time(episode.start_ms),
        ended_at=format_time(episode.last_ms),
        open=is_open,
        messages=messages,
        summary=summary,
    )
