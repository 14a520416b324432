"""Lookups without ranking: a memory, its versions, episodes, counts, and all memories in pages, newest first.

Changes made between two page requests do not shift later pages: each starts after the last memory of the previous one,
even if that memory was forgotten. A position is an index in conversation order, a slot a memory's row in the index."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from pydantic_core import to_json

from recallflow.errors import InvalidRecord
from recallflow.fields import Model, format_time
from recallflow.limits import PAGE_BYTES
from recallflow.operators import redaction
from recallflow.operators.derived import known_summary
from recallflow.operators.episodes import is_open
from recallflow.operators.graph.reader import memory_marks, superseded
from recallflow.operators.quotas import UserLimits
from recallflow.operators.recall.filters import Filtering
from recallflow.operators.recall.moment import Moment
from recallflow.operators.redaction import Redacted, RowsReader
from recallflow.operators.summaries import Summaries
from recallflow.queries import EpisodesList, GraphExplore, MemoriesList, MemoryCursor
from recallflow.responses import EpisodeInfo, ListedMemory, MemoryPage, MemoryUsage, Response
from recallflow.state.arrays import Mask, Positions
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow, OwnerCounts
from recallflow.state.usage import Usage

T = TypeVar("T", bound=Model)
_SAME_FIELDS = ListedMemory.model_fields.keys() & MemoryRow.__dataclass_fields__.keys()
READ_AT_ONCE = 50  # rows per read; each may be large


def not_after(index: OwnerIndex, moment: Moment) -> Mask:
    """Return (n,) in conversation order: whether the event time of each memory is at or before the moment's."""
    if moment.happened_by_ms is None:
        return np.ones(index.conversation.size, np.bool_)
    return index.conversation.facts["created_ms"] <= moment.happened_by_ms


def newest_first(hot: HotOwner, index: OwnerIndex, allowed: Mask, after: MemoryCursor | None, count: int) -> Positions:
    """Return the positions of the newest allowed memories after the cursor `after`, by event time, then by arrival."""
    facts, positions = index.conversation.facts, np.flatnonzero(allowed)
    created_ms, seqs = facts["created_ms"][positions], facts["seq"][positions]
    if after is not None:
        head = hot.memory_head(after.memory_id)  # None: its user was erased
        is_as_old = (created_ms == after.created_ms) & (seqs < (-1 if head is None else head.seq))
        is_older = (created_ms < after.created_ms) | is_as_old
        positions, created_ms, seqs = positions[is_older], created_ms[is_older], seqs[is_older]
    if count < len(positions):  # a partition is faster than sorting all memories of a large owner
        is_newest = created_ms >= np.partition(created_ms, -count)[-count]
        positions, created_ms, seqs = positions[is_newest], created_ms[is_newest], seqs[is_newest]
    return positions[np.lexsort((-seqs, -created_ms))[:count]]


class PageReader:
    """Reads the memories of a page, newest first."""

    def __init__(
        self, hot: HotOwner, index: OwnerIndex, allowed: Mask, query: MemoriesList | GraphExplore, rows: RowsReader
    ) -> None:
        """Raise InvalidRecord for an invalid cursor. `rows` reads by slot."""
        after = None if query.after is None else MemoryCursor.parse(query.after)
        self._index, self._rows, self._limit = index, rows, query.limit
        self._positions = newest_first(hot, index, allowed, after, query.limit + 1).tolist()
        self._last: int | None = None

    def read(
        self, show: Callable[[int, MemoryRow], T], is_full: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, T, MemoryRow]]:
        """Yield the position, the shown memory and the row of each memory, until the page is full. The first one always
        fits."""
        remaining, room_bytes = iter(self._positions[: self._limit]), PAGE_BYTES
        while positions := [*islice(remaining, READ_AT_ONCE)]:
            rows = self._rows(self._index.conversation.slots[positions].tolist())
            for position, row in zip(positions, rows, strict=True):
                if row is not None:
                    shown = show(position, row)
                    size_bytes = len(to_json(shown))
                    if is_full() or (size_bytes > room_bytes and room_bytes < PAGE_BYTES):
                        return
                    room_bytes -= size_bytes
                    yield position, shown, row
                self._last = position

    @property
    def after(self) -> MemoryCursor | None:
        """Return the cursor of the next page; None after the last memory."""
        if self._last is None or self._last == self._positions[-1]:
            return None
        slot = int(self._index.conversation.slots[self._last])
        return MemoryCursor(int(self._index.facts["created_ms"][slot]), self._index.ids[slot])


def versions(query_id: str, rows: list[MemoryRow], projects: tuple[str, ...] | None = None) -> Response:
    """Return the response of `memory.get` and `memory.history`. Senders restricted to some `projects` do not see
    `seq`, because it reveals the number of memories of other projects."""
    shown = [version(row) for row in rows]
    if projects is not None:
        shown = [{name: value for name, value in one.items() if name != "seq"} for one in shown]
    return Response(query_id=query_id, status="ok", versions=shown).warned(redaction.warnings_of(rows))


def version(row: MemoryRow) -> dict[str, Any]:
    """Return one version of a memory; of an unreadable one, only its identity and placeholder texts."""
    if isinstance(row, Redacted):
        return {name: getattr(row, name) for name in ("id", "seq", "version", "content", "summary")}
    times = {"created_ms": "created_at", "updated_ms": "updated_at", "ingested_ms": "ingested_at"}
    times |= {"valid_from_ms": "valid_from", "valid_to_ms": "valid_to", "expires_ms": "expires_at"}
    hidden = ("_ms", "_logged", "change")
    shown = {name: value for name, value in row.logged_fields().items() if not name.endswith(hidden)}
    known = ((name, at_ms) for column, name in times.items() if (at_ms := getattr(row, column)) is not None)
    return shown | {name: format_time(at_ms) for name, at_ms in known}


def usage(used: Usage) -> MemoryUsage:
    last = format_time(used.last_ms) if used.times else None
    return MemoryUsage(count=used.times, last_accessed_at=last, useful=used.useful, not_useful=used.not_useful)


def not_found(memory_id: str) -> InvalidRecord:
    return InvalidRecord.of("not_found", f"no current memory has the id {memory_id!r}", "memory_id")


def list_episodes(
    hot: HotOwner, index: OwnerIndex, rows: RowsReader, query: EpisodesList, now_ms: int, gap_ms: int
) -> list[EpisodeInfo]:
    """Return the episodes that have members, newest first."""
    members = _members(index)
    current = [e for e in index.episodes() if e.number in members and query.session_id in (None, e.session_id)]
    newest = sorted(current, key=lambda e: (e.last_ms, e.number), reverse=True)[: query.limit]
    summaries = Summaries(index, rows, len(newest))
    return [
        EpisodeInfo(
            id=episode.id,
            session_id=episode.session_id,
            started_at=format_time(episode.start_ms),
            ended_at=format_time(episode.last_ms),
            open=is_open(episode, now_ms, gap_ms),
            messages=len(members[episode.number]),
            summary=known_summary(hot, episode) or summaries.of(members[episode.number]),
        )
        for episode in newest
    ]


def stats(index: OwnerIndex, totals: OwnerCounts | None, limits: UserLimits, now_ms: int) -> dict[str, Any]:
    """Return counts of one owner's current memories, and its quotas (None: no limit). `totals` are counts over all
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
        **({} if totals is None else {"text_bytes": totals.text_bytes, "edges": totals.edges}),
        "limits": limits._asdict(),
    }


def _members(index: OwnerIndex) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the positions of members by episode number."""
    conversation = index.conversation
    numbers = conversation.facts["episode"]
    spans = zip(conversation.starts, conversation.ends, strict=True)
    return {int(numbers[start]): np.arange(start, end) for start, end in spans if numbers[start] >= 0}


def list_memories(
    query_id: str,
    hot: HotOwner,
    index: OwnerIndex,
    graph: OwnerGraph,
    rows: RowsReader,
    query: MemoriesList,
    moment: Moment,
) -> Response:
    """Return a page, as of the moment. `rows` reads by slot."""
    filtering = Filtering(index, graph, moment)
    allowed = not_after(index, moment) & filtering.within(query.filters, query.project_id)
    reader, superseded_seqs = PageReader(hot, index, allowed, query, rows), superseded(graph, moment.now_ms)

    def show(position: int, row: MemoryRow) -> ListedMemory:
        episode = index.episode(int(index.conversation.facts["episode"][position]))
        return ListedMemory(
            **{name: getattr(row, name) for name in _SAME_FIELDS},
            episode_id=None if episode is None else episode.id,
            created_at=format_time(row.created_ms),
            updated_at=format_time(row.updated_ms),
            marks=memory_marks(graph, row, moment.now_ms, superseded_seqs),
        )

    shown = [*reader.read(show)]
    after = None if reader.after is None else str(reader.after)
    page = MemoryPage(memories=[memory for _, memory, _ in shown], total=int(allowed.sum()), after=after)
    warnings = [*filtering.warnings(), *redaction.warnings_of(row for _, _, row in shown)]
    return Response(query_id=query_id, status="ok", memory_page=page).warned(warnings)
