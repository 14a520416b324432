"""Stored segments of an owner's index, so that a query loads its memories quickly.

A segment contains a range of sequence numbers. Each complete range of `SMALL` numbers is packed, and later each
complete range of `LARGE` numbers, in place of its small segments. The newest memories are read from entries and
vectors; on eviction of the owner they are packed too, if they fill half a small segment.

Forgetting a memory deletes its segments in the same write. An update or a later vector marks it in the table
`keys.STALE`: it is then read from its entry. A query rebuilds a segment that is missing, damaged, or has many marks."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import orjson

from recallflow.errors import DecryptionFailed
from recallflow.state import keys
from recallflow.state.arrays import Ints
from recallflow.state.index import OwnerIndex
from recallflow.state.lexical import STEMS_PER_READ
from recallflow.state.partition import Partition
from recallflow.state.rows import Entry, Vectors
from recallflow.state.segment import VERSION, Segment
from recallflow.stepped import spend

SMALL, LARGE = 128, 2_048  # memories
MAX_MARKED_SHARE = 1 / 8  # of a segment's memories; with more marks it is rebuilt
MAX_SEGMENT_BYTES = 8 * 1024 * 1024  # larger segments are not stored: such long texts are rare


class SeqRange(NamedTuple):
    """A half-open range of sequence numbers."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first

    def split(self, size: int) -> "Iterator[SeqRange]":
        """Yield its parts of a size."""
        return (SeqRange(first, first + size) for first in range(self.first, self.end, size))


def segment_keys(owner: bytes, seq: int) -> list[bytes]:
    """Return the keys of the segments that may contain a memory."""
    firsts = ((seq - seq % size, size) for size in (SMALL, LARGE))
    return [keys.segment(owner, first, first + size) for first, size in firsts]


class Segments:
    """The stored segments of one owner's memories, with vectors of one model."""

    def __init__(self, partition: Partition, owner: bytes, model: str, dimension: int) -> None:
        self._partition, self._owner = partition, owner
        self._model, self._dimension = model, dimension

    @cached_property
    def _end(self) -> int:
        """Return the sequence number up to which segments were packed; some may have been deleted."""
        stored = self._partition.get(keys.segments_end(self._owner))
        version, of_model, end = orjson.loads(stored) if stored else (VERSION, self._model, 0)
        return end if (version, of_model) == (VERSION, self._model) else 0

    def load(self, index: OwnerIndex, next_seq: int) -> None:
        """Add the committed memories up to `next_seq` to an index that contains only the owner's episodes."""
        marked = self._marked(SeqRange(0, next_seq))
        large = SeqRange(0, next_seq - next_seq % LARGE)
        small = SeqRange(large.end, next_seq - next_seq % SMALL)
        index.reserve(next_seq)
        for span in (*large.split(LARGE), *small.split(SMALL)):
            # One at a time, so that the next read reuses the buffer: new memory is slow to write to.
            index.append(self._segment(span, marked))
        tail = self._stored(SeqRange(small.end, small.end + SMALL))
        if tail is not None:
            index.append(tail)
        self._add(index, SeqRange(small.end if tail is None else tail.end, next_seq))
        self._replace_marked(index, marked)
        index.words.unpack()  # it may pause (`spend`), which is possible only before others use the index

    def can_pack(self, next_seq: int) -> bool:
        """Return whether all memories of the next segment exist."""
        return next_seq >= SMALL and next_seq - self._end >= SMALL

    def pack(self) -> int:
        """Create the next segment. Return its number of memories."""
        span = SeqRange(self._end, self._end + SMALL)
        if span.end % LARGE == 0:
            span = SeqRange(span.end - LARGE, span.end)
        self._pack_range(span, span.end)
        return span.size

    def pack_tail(self, next_seq: int) -> int:
        """Pack the newest memories if enough of them are unpacked. Return their number."""
        span = SeqRange(next_seq - next_seq % SMALL, next_seq - next_seq % SMALL + SMALL)
        if next_seq - span.first < SMALL // 2:
            return 0
        tail = self._stored(span)
        if tail is not None and next_seq - tail.end < SMALL // 2:
            return 0
        self._pack_range(span, next_seq)
        return next_seq - span.first

    def _segment(self, span: SeqRange, marked: list[int]) -> Segment:
        marks = bisect_left(marked, span.end) - bisect_left(marked, span.first)
        found = self._complete(span) if marks <= MAX_MARKED_SHARE * span.size else None
        return self._pack_range(span, span.end) if found is None else found

    def _complete(self, span: SeqRange) -> Segment | None:
        """Return the stored segment if it covers the whole range."""
        found = self._stored(span)
        return found if found is not None and found.end == span.end else None

    def _stored(self, span: SeqRange) -> Segment | None:
        try:
            stored = self._partition.get_large(keys.segment(self._owner, *span))
        except DecryptionFailed:  # the caller rebuilds it
            return None
        return None if stored is None else Segment.decode(stored, self._model, self._dimension)

    def _pack_range(self, span: SeqRange, end: int) -> Segment:
        """Pack and store the range up to `end`. Small segments without marks are reused."""
        index = OwnerIndex(self._model, self._dimension)
        parts = [*span.split(SMALL)] if span.size > SMALL else []
        found = [None if self._marked(part) else self._complete(part) for part in parts]
        if any(found):
            for part, segment in zip(parts, found, strict=True):
                self._add(index, part) if segment is None else index.append(segment)
        else:
            self._add(index, SeqRange(span.first, end))
        packed = index.packed(end)
        spend(len(packed.words.stems) // STEMS_PER_READ)
        data = packed.encode(self._model)
        if len(data) <= MAX_SEGMENT_BYTES:
            deleted = [keys.segment(self._owner, *part) for part in parts]
            deleted += [keys.stale(self._owner, seq) for seq in self._marked(span)]
            self._partition.write_derived({**dict.fromkeys(deleted), keys.segment(self._owner, *span): data})
        if end == span.end and end > self._end:
            self._end = end
            self._partition.write_derived({keys.segments_end(self._owner): orjson.dumps([VERSION, self._model, end])})
        return packed

    def _add(self, index: OwnerIndex, span: SeqRange) -> None:
        entries = Entry.decode_all(value for _, value in self._scan(keys.entry, span))
        version = {entry.seq: entry.version for entry in entries}
        stored = ((keys.sequence(key), value) for key, value in self._scan(keys.vectors, span))
        index.add(entries, {(seq, version[seq]): Vectors.decode(value) for seq, value in stored})

    def _replace_marked(self, index: OwnerIndex, marked: list[int]) -> None:
        """Replace marked memories in the index by their current entries and vectors."""
        stored = self._partition.get_many([keys.entry(self._owner, seq) for seq in marked])
        entries = [Entry.decode(value) for value in stored if value is not None]
        vectors = self.read_vectors(np.array([entry.seq for entry in entries], np.int64))
        index.add(entries, {(one.seq, one.version): row for one, row in zip(entries, vectors, strict=True)})

    def read_vectors(self, seqs: Ints) -> list[Vectors | None]:
        stored = self._partition.get_many([keys.vectors(self._owner, seq) for seq in seqs.tolist()])
        return [None if value is None else Vectors.decode(value) for value in stored]

    def _marked(self, span: SeqRange) -> list[int]:
        return [keys.sequence(key) for key, _ in self._scan(keys.stale, span)]

    def _scan(self, key: Callable[[bytes, int], bytes], span: SeqRange) -> Iterator[tuple[bytes, bytes]]:
        return self._partition.scan_range(key(self._owner, span.first), key(self._owner, span.end))
