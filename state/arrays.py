"""Array types by content, arrays with fast appends, and strings by number."""

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


_LARGE_BYTES = 4 * 1024 * 1024
_SPARE_SHARE = 8  # a large array reserves an eighth more than it needs: unwritten memory costs nothing


def _unwritten(count: int, dtype: np.dtype[Any]) -> Array:
    """Allocate memory for values. Large blocks get small pages: NumPy would request huge pages, which the kernel may
    have to search for during the writes (for 40 MB, 3 to 95 ms instead of 15 ms)."""
    if (size := count * dtype.itemsize) < _LARGE_BYTES:
        return np.empty(count, dtype)
    return np.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype, count)


class GrowingArray:
    """An array with appends in amortised constant time. `view` is its content, valid until the next append."""

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
        self.extend_unwritten(len(added) if count is None else count)[:] = added

    def extend_unwritten(self, count: int) -> Array:
        """Append space for values, and return it for writing."""
        end = self._size + count
        if end > len(self._data):
            self._resize(max(end + end // _SPARE_SHARE, 2 * len(self._data)))
        self._size = end
        return self._data[end - count : end]

    def keep(self, mask: Mask) -> None:
        """Keep the values where `mask`, (len,), is set."""
        kept = self.view[mask]
        self._size = len(kept)
        self._data[: self._size] = kept

    def truncate(self, size: int) -> None:
        """Remove all values from index `size` on."""
        self._size = size

    def reserve(self, count: int) -> None:
        """Allocate memory for `count` more values."""
        if (end := self._size + count) > len(self._data):
            self._resize(end + end // _SPARE_SHARE)

    def _resize(self, capacity: int) -> None:
        grown = _unwritten(capacity, self._data.dtype)
        grown[: self._size] = self.view
        self._data = grown


class JoinedArray:
    """An array whose appended parts are joined at its next use, because many arrays are never used."""

    MAX_UNJOINED = 256  # parts

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._joined = GrowingArray(dtype)
        self._unjoined: list[tuple[Array, int, Array | None]] = []
        self._unjoined_bytes = 0

    @property
    def view(self) -> Array:
        """Return all values, valid until the next append."""
        if self._unjoined:
            self._join()
        return self._joined.view

    @property
    def nbytes(self) -> int:
        return self._joined.nbytes + self._unjoined_bytes

    def extend(self, values: npt.ArrayLike, count: int, lookup: Array | None = None) -> None:
        """Append copies of `count` values, or one value repeated. With `lookup`, values are indexes in `lookup`."""
        if len(self._unjoined) == self.MAX_UNJOINED:
            self._join()
        part = np.array(values, getattr(values, "dtype", self._dtype))
        self._unjoined.append((part, count, lookup))
        self._unjoined_bytes += part.nbytes

    def _join(self) -> None:
        parts, self._unjoined, self._unjoined_bytes = self._unjoined, [], 0
        self._joined.reserve(sum(count for _, count, _ in parts))
        for values, size, lookup in parts:
            self._joined.extend(values if lookup is None else lookup.take(values), size)


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the numbers of all ranges [start, start + size), range by range."""
    offsets = sizes.cumsum() - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - offsets, sizes)


def run_starts(numbers: Array) -> Ints:
    """Return the index at which each run of equal numbers begins. `numbers` must not be empty."""
    return np.concatenate([[0], (numbers[1:] != numbers[:-1]).nonzero()[0] + 1])


def unit(vector: Sequence[float]) -> Matrix:
    """Return the L2-normalised vector, (1, dimension) float32. The norm of large values would overflow in float32."""
    row = np.array([vector], np.float64)
    norm = np.linalg.norm(row)
    return (row / norm if norm > 0 else row).astype(np.float32)


def mean(rows: Matrix) -> Matrix:
    """Return the mean of unit vectors, (dimension,), scaled to length 1, or zeros if they cancel out."""
    total: Floats = rows.sum(axis=0, dtype=np.float64)
    length = np.linalg.norm(total)
    return (total / length if length > 0 else total).astype(np.float32)


def best_part(values: Array, weights: Column, counts: Ints) -> Array:
    """Return the values of each item's best part, (rows, items): the first part with the highest weighted sum.

    `values` are (rows, parts), item after item; each item has `counts` parts, at least one. `weights` are (rows,)."""
    if len(counts) == values.shape[1]:
        return values
    sums, firsts = weights.astype(values.dtype) @ values, counts.cumsum() - counts
    item_of_part = np.repeat(np.arange(len(counts)), counts)
    (best,) = (sums == np.maximum.reduceat(sums, firsts)[item_of_part]).nonzero()
    return values[:, best[run_starts(item_of_part[best])]]


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
        """Add strings in the form of `packed`."""
        self._ends.extend(ends.astype(np.int64) + len(self._bytes))
        self._bytes.extend(data)

    def packed(self) -> tuple[Array, Array]:
        """Return the bytes of all strings, (bytes,) uint8, and the end of each."""
        return self._bytes.view, self._ends.view

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._ends.nbytes


class Interner:
    """Numbers of strings, so that filters compare integers. None has the number -1."""

    def __init__(self) -> None:
        self._numbers: dict[str | None, int] = defaultdict(count().__next__, {None: -1})
        self.strings: list[str] = []

    def numbers(self, texts: Iterable[str | None]) -> list[int]:
        """Return the strings' numbers. A new string gets the next number."""
        found = [*map(self._numbers.__getitem__, texts)]
        self.strings += (text for text in islice(self._numbers, 1 + len(self.strings), None) if text is not None)
        return found

    def number_of(self, text: str) -> int:
        """Return the string's number, or -2 for an unknown string."""
        return self._numbers.get(text, -2)
