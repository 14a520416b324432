"""Pages of an owner's memories, newest first: where one begins, and where it is long enough.

What comes and goes between two pages moves nothing: a page begins behind a memory, also if that is forgotten by now.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from recallflow.cursors import MemoryCursor
from recallflow.limits import PAGE_BYTES
from recallflow.operators.recall.moment import Moment
from recallflow.operators.redaction import RowsReader
from recallflow.state.arrays import Mask, Places
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

READ_AT_ONCE = 50  # rows, which may be large

T = TypeVar("T")


def there(index: OwnerIndex, moment: Moment) -> Mask:
    """(n,) in conversation order: which memories had happened by the moment."""
    if moment.happened_by_ms is None:
        return np.ones(index.conversation.size, np.bool_)
    happened: Mask = index.conversation.facts["created_ms"] <= moment.happened_by_ms
    return happened


def newest_first(hot: HotOwner, index: OwnerIndex, allowed: Mask, after: MemoryCursor | None, most: int) -> Places:
    """The places of the newest allowed memories, by event time and then by arrival: of those behind `after`."""
    facts, places = index.conversation.facts, np.flatnonzero(allowed)
    created_ms, seqs = facts["created_ms"][places], facts["seq"][places]
    if after is not None:
        known = hot.current(after.memory_id)  # None: its user was erased
        as_old = (created_ms == after.created_ms) & (seqs < (-1 if known is None else known.seq))
        behind = (created_ms < after.created_ms) | as_old
        places, created_ms, seqs = places[behind], created_ms[behind], seqs[behind]
    if most < len(places):  # of a large owner, to find them is faster than to sort all
        near = created_ms >= np.partition(created_ms, -most)[-most]
        places, created_ms, seqs = places[near], created_ms[near], seqs[near]
    newest: Places = places[np.lexsort((-seqs, -created_ms))[:most]]
    return newest


def cursor(index: OwnerIndex, place: int) -> MemoryCursor:
    """Where a page ends whose last memory is at a place."""
    slot = int(index.conversation.slots[place])
    return MemoryCursor(int(index.facts["created_ms"][slot]), index.ids[slot])


def read(index: OwnerIndex, places: Sequence[int], rows: RowsReader) -> Iterator[tuple[int, MemoryRow | None]]:
    """Each place with its row; a few are read ahead."""
    left = iter(places)
    while some := [*islice(left, READ_AT_ONCE)]:
        yield from zip(some, rows(index.conversation.slots[some].tolist()), strict=True)


class Room:
    """What is left of a page's bytes: the first thing is always in."""

    def __init__(self) -> None:
        self._left = PAGE_BYTES
        self._is_empty = True

    def take(self, size_bytes: int) -> bool:
        """Whether there is room for one more; then it is taken."""
        if size_bytes > self._left and not self._is_empty:
            return False
        self._left -= size_bytes
        self._is_empty = False
        return True
