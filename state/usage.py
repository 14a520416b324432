"""Usage counters of one owner's memories, by `seq`: the number of returns by queries and the time of the last one, and
the numbers of positive and negative feedback. The state hash excludes them, because mostly queries change them."""

import bisect
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.state.arrays import Ints

Records = npt.NDArray[Any]

# The layout of a record in two notations: numpy for many records, struct for a few (for ten, in a third of the time).
_RECORDS = np.dtype([("last_ms", "<i8"), ("times", "<u4"), ("useful", "<u4"), ("not_useful", "<u4")])
_RECORD = struct.Struct("<qIII")


class Usage(NamedTuple):
    """The usage of one memory."""

    last_ms: int = 0  # the time of the latest query that returned the memory, if `times` is not 0
    times: int = 0  # number of queries that returned it
    useful: int = 0  # number of positive feedbacks
    not_useful: int = 0

    def encode(self) -> bytes:
        return _RECORD.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> "Usage":
        """Decode a record. Raise ValueError for an invalid one."""
        if len(data) != _RECORD.size:
            raise ValueError(f"a usage record has {_RECORD.size} bytes, not {len(data)}")
        return cls._make(_RECORD.unpack(data))

    def with_feedback(self, useful: bool) -> "Usage":
        """Return the usage after one more feedback."""
        return self._replace(useful=self.useful + useful, not_useful=self.not_useful + (not useful))


class OwnerUsage:
    """The usage of one owner's memories; zeros for a memory without a record."""

    def __init__(self, stored: Iterable[tuple[int, bytes]] = ()) -> None:
        """`stored`: each memory's `seq` and encoded record."""
        records_by_seq = [*stored]
        self._records = bytearray()
        seqs = np.array([seq for seq, _ in records_by_seq], np.int64)
        self._grow_to(int(seqs.max(initial=-1)))
        if any(len(data) != _RECORD.size for _, data in records_by_seq):
            raise ValueError("a stored usage record has the wrong size")
        records = np.frombuffer(self._records, _RECORDS)
        records[seqs] = np.frombuffer(b"".join(data for _, data in records_by_seq), _RECORDS)
        self._liked: list[int] = np.flatnonzero(records["useful"] > records["not_useful"]).tolist()

    def of(self, seqs: Ints) -> Records:
        """Return a copy of the records, (len(seqs),), with the fields of `Usage`."""
        self._grow_to(int(seqs.max(initial=0)))
        return np.frombuffer(self._records, _RECORDS)[seqs]

    def put(self, seq: int, usage: Usage) -> None:
        self._grow_to(seq)
        _RECORD.pack_into(self._records, seq * _RECORD.size, *usage)
        at = bisect.bisect_left(self._liked, seq)
        was_liked, is_liked = self._liked[at : at + 1] == [seq], usage.useful > usage.not_useful
        if was_liked != is_liked:
            self._liked[at : at + was_liked] = [seq] * is_liked

    def record_returns(self, seqs: Sequence[int], at_ms: int) -> list[bytes]:
        """Record that an answer at `at_ms` returned these memories, and return their encoded records."""
        self._grow_to(max(seqs))
        encoded = []
        for seq in seqs:
            start = seq * _RECORD.size
            last_ms, times, useful, not_useful = _RECORD.unpack_from(self._records, start)
            record = _RECORD.pack(max(last_ms, at_ms) if times else at_ms, times + 1, useful, not_useful)
            self._records[start : start + _RECORD.size] = record
            encoded.append(record)
        return encoded

    def liked(self) -> Iterator[int]:
        """Yield `seq` of the memories with more positive than negative feedback, the newest first."""
        return reversed(self._liked)

    def size_bytes(self) -> int:
        return len(self._records) + 8 * len(self._liked)

    def _grow_to(self, seq: int) -> None:
        missing = (seq + 1) * _RECORD.size - len(self._records)
        if missing > 0:
            self._records.extend(bytes(missing))


def encode_seqs(seqs: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(seqs)}q", *seqs)


def decode_seqs(data: bytes) -> Ints:
    return np.frombuffer(data, "<i8")
