"""Pages of an owner's memories, newest first.

Changes between two pages do not shift them: a page starts after a memory, even if that was forgotten meanwhile."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from recallflow.limits import PAGE_BYTES
from recallflow.operators.recall.moment import Moment
from recallflow.operators.redaction import RowsReader
from recallflow.queries import MemoryCursor
from recallflow.state.arrays import Mask, Places
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

READ_AT_ONCE = 50  # rows per read; each may be large

T = TypeVar("T")


def there(index: OwnerIndex, moment: Moment) -> Mask:
    """Return (n,) in conversation order: whether each memory had happened by the moment."""
    if moment.happened_by_ms is None:
        return np.ones(index.conversation.size, np.bool_)
    happened: Mask = index.conversation.facts["created_ms"] <= moment.happened_by_ms
    return happened


def newest_first(hot: HotOwner, index: OwnerIndex, allowed: Mask, after: MemoryCursor | None, most: int) -> Places:
    """Return the places of the newest allowed memories after `after`, by event time, then by arrival."""
    facts, places = index.conversation.facts, np.flatnonzero(allowed)
    created_ms, seqs = facts["created_ms"][places], facts["seq"][places]
    if after is not None:
        known = hot.current(after.memory_id)  # None: its user was erased
        as_old = (created_ms == after.created_ms) & (seqs < (-1 if known is None else known.seq))
        behind = (created_ms < after.created_ms) | as_old
        places, created_ms, seqs = places[behind], created_ms[behind], seqs[behind]
    if most < len(places):  # a partition is faster than sorting all memories of a large owner
        near = created_ms >= np.partition(created_ms, -most)[-most]
        places, created_ms, seqs = places[near], created_ms[near], seqs[near]
    newest: Places = places[np.lexsort((-seqs, -created_ms))[:most]]
    return newest


def cursor(index: OwnerIndex, place: int) -> MemoryCursor:
    """Return the cursor after the memory at a place."""
    slot = int(index.conversation.slots[place])
    return MemoryCursor(int(index.facts["created_ms"][slot]), index.ids[slot])


def read(index: OwnerIndex, places: Sequence[int], rows: RowsReader) -> Iterator[tuple[int, MemoryRow | None]]:
    """Yield each place with its row, read in blocks."""
    left = iter(places)
    while some := [*islice(left, READ_AT_ONCE)]:
        yield from zip(some, rows(index.conversation.slots[some].tolist()), strict=True)


class Room:
    """The remaining bytes of a page. The first item always fits."""

    def __init__(self) -> None:
        self._left = PAGE_BYTES
        self._is_empty = True

    def take(self, size_bytes: int) -> bool:
        """Reserve bytes for another item. Return whether they fit."""
        if size_bytes > self._left and not self._is_empty:
            return False
        self._left -= size_bytes
        self._is_empty = False
        return True
