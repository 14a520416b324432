"""Array types by content, arrays that grow at the end, and strings by number."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count, islice
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
import numpy.ma  # `np.unique` imports it, which would delay a process's first query
import numpy.typing as npt

from recallflow.embedder import Matrix

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]  # (n,): slots, positions, sequence numbers, sizes
Unsigned = npt.NDArray[np.uint32]  # (n,): the same at half the size
Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]  # (n,): positions of memories in conversation order
Column = npt.NDArray[np.floating[Any]]  # (n,): one value per position, or (rows, n)
Mask = npt.NDArray[np.bool_]  # (n,)
Selection = Mask | Ints | slice  # of (n,)
Codes = npt.NDArray[np.uint8]  # (rows, bytes of a row)
Bytes = npt.NDArray[np.int8]  # (tokens, dimension): unit vectors in units of 1/127


_MUCH_BYTES = 4 * 1024 * 1024
_SPARE = 8  # large additions reserve an eighth more: unwritten memory costs nothing


def _unwritten(count: int, dtype: np.dtype[Any]) -> Array:
    """Allocate memory for values. For large blocks NumPy requests huge pages; if none is free, the kernel searches
    during the writes: 40 MB take 3 to 95 ms. Small pages take 15 ms."""
    if (size := count * dtype.itemsize) < _MUCH_BYTES:
        return np.empty(count, dtype)
    return np.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype, count)


class GrowingArray:
    """An array with appends in amortised constant time. `view` is the filled part, valid until the next append."""

    def __init__(self, dtype: npt.DTypeLike, capacity: int = 64) -> None:
        self._data: Array = np.zeros(capacity, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> Array:
        return self._data[: self._size]

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def extend(self, values: npt.ArrayLike, count: int | None = None) -> None:
        """Append the values, or one value `count` times."""
        added = values if isinstance(values, np.ndarray) else np.asarray(values, self._data.dtype)
        self.more(len(added) if count is None else count)[:] = added

    def more(self, count: int) -> Array:
        """Append space for values, and return it for writing."""
        end = self._size + count
        if end > len(self._data):
            self._resize(max(end + end // _SPARE, 2 * len(self._data)))
        self._size = end
        return self._data[end - count : end]

    def keep(self, mask: Mask) -> None:
        """Keep the values where `mask`, (len,), is set."""
        kept = self.view[mask]
        self._size = len(kept)
        self._data[: self._size] = kept

    def cut(self, size: int) -> None:
        """Remove all values from index `size` on."""
        self._size = size

    def reserve(self, more: int) -> None:
        if (end := self._size + more) > len(self._data):
            self._resize(end + end // _SPARE)

    def _resize(self, capacity: int) -> None:
        grown = _unwritten(capacity, self._data.dtype)
        grown[: self._size] = self.view
        self._data = grown


class JoinedArray:
    """An array whose parts are joined at its first use, because many arrays are never used."""

    WAITING = 256  # maximum number of unjoined parts

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._joined = GrowingArray(dtype)
        self._waiting: list[tuple[Array, int, Array | None]] = []
        self._waiting_bytes = 0

    @property
    def view(self) -> Array:
        """Return all values, valid until the next append."""
        if self._waiting:
            self._join()
        return self._joined.view

    @property
    def nbytes(self) -> int:
        return self._joined.nbytes + self._waiting_bytes

    def extend(self, values: npt.ArrayLike, count: int, meanings: Array | None = None) -> None:
        """Append copies of `count` values, or one value repeated. `meanings` are given if the values number them."""
        if len(self._waiting) == self.WAITING:
            self._join()
        part = np.array(values, getattr(values, "dtype", self._dtype))
        self._waiting.append((part, count, meanings))
        self._waiting_bytes += part.nbytes

    def _join(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._joined.reserve(sum(count for _, count, _ in waiting))
        for values, size, meanings in waiting:
            self._joined.extend(values if meanings is None else meanings.take(values), size)


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the numbers of all ranges [start, start + size), range by range."""
    firsts = sizes.cumsum() - sizes
    found: Ints = np.arange(sizes.sum()) + np.repeat(starts - firsts, sizes)
    return found


def unit(vector: Sequence[float]) -> Matrix:
    """Return the L2-normalised vector as (1, dimension) float32; in double precision the norm cannot overflow."""
    row = np.array([vector], np.float64)
    norm = np.linalg.norm(row)
    return (row / norm if norm > 0 else row).astype(np.float32)


def mean(rows: Matrix) -> Matrix:
    """Return the mean of unit vectors, (dimension,), scaled to length 1, or zeros if they cancel out."""
    total: Floats = rows.sum(axis=0, dtype=np.float64)
    length = np.linalg.norm(total)
    found: Matrix = (total / length if length > 0 else total).astype(np.float32)
    return found


def best_part(values: Array, weights: Column, counts: Ints) -> Array:
    """Return the values of each item's best part: the first with the highest weighted sum.

    `(rows, parts)` values of items with at least one part each, item after item, become (rows, items). `weights` is
    (rows,)."""
    if len(counts) == values.shape[1]:
        return values
    sums, firsts = weights.astype(values.dtype) @ values, counts.cumsum() - counts
    thing = np.repeat(np.arange(len(counts)), counts)
    (best,) = (sums == np.maximum.reduceat(sums, firsts)[thing]).nonzero()
    of = thing[best]
    return values[:, best[np.concatenate([[True], of[1:] != of[:-1]])]]


class Texts:
    """Strings by number, from 0 in the order of addition."""

    def __init__(self) -> None:
        self._bytes = GrowingArray(np.uint8, 1_024)
        self._ends = GrowingArray(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = self._ends.view[number - 1] if number else 0
        return self._bytes.view[start : self._ends.view[number]].tobytes().decode()

    def add(self, texts: Iterable[str]) -> None:
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
        self.append(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def append(self, data: Array, ends: Ints) -> None:
        self._ends.extend(ends.astype(np.int64) + len(self._bytes))
        self._bytes.extend(data)

    def packed(self) -> tuple[Array, Array]:
        """Return the bytes of all strings, (bytes,) uint8, and the end of each."""
        return self._bytes.view, self._ends.view

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._ends.nbytes


class Interner:
    """Strings ↔ small numbers, so that filters compare integers. -1 is no string."""

    def __init__(self) -> None:
        self._numbers: dict[str | None, int] = defaultdict(count().__next__, {None: -1})
        self.strings: list[str] = []

    def numbers(self, texts: Iterable[str | None]) -> list[int]:
        """Return the strings' numbers. A new string gets the next number."""
        found = [*map(self._numbers.__getitem__, texts)]
        self.strings += (text for text in islice(self._numbers, 1 + len(self.strings), None) if text is not None)
        return found

    def number_of(self, text: str) -> int:
        """Return the string's number, or -2, which no memory has, for an unknown string."""
        return self._numbers.get(text, -2)
