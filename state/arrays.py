"""Arrays by what they hold, and one that grows at its end."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]  # (n,): slots, places, sequence numbers, sizes
Unsigned = npt.NDArray[np.uint32]  # (n,): the same, half as large
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]  # (n,): of memories, in conversation order
Column = npt.NDArray[np.floating[Any]]  # (n,): a value for each place, or (rows, n)
Mask = npt.NDArray[np.bool_]  # (n,)
Codes = npt.NDArray[np.uint8]  # (rows, bytes of a row)
Bytes = npt.NDArray[np.int8]  # (tokens, dimension): unit vectors, 127 stands for 1


class GrowingArray:
    """Appends in amortised constant time; `view` is the filled part, valid until the next append."""

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
        """Appends the values, or one value `count` times."""
        added = np.asarray(values, self._data.dtype)
        end = self._size + (len(added) if count is None else count)
        if end > len(self._data):
            self._resize(max(end, 2 * len(self._data)))
        self._data[self._size : end] = added
        self._size = end

    def keep(self, mask: Mask) -> None:
        """Removes the values where `mask`, (len,), does not hold."""
        kept = self.view[mask]
        self._size = len(kept)
        self._data[: self._size] = kept

    def reserve(self, more: int) -> None:
        """Makes room for so many more values at once."""
        if self._size + more > len(self._data):
            self._resize(self._size + more)

    def _resize(self, capacity: int) -> None:
        grown = np.empty(capacity, self._data.dtype)
        grown[: self._size] = self.view
        self._data = grown


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """The numbers of all ranges [start, start + size), one range after the other."""
    firsts = sizes.cumsum() - sizes
    found: Ints = np.arange(sizes.sum()) + np.repeat(starts - firsts, sizes)
    return found


class Texts:
    """Strings by number, from 0 in the order they were added."""

    def __init__(self) -> None:
        self._bytes = GrowingArray(np.uint8, 1_024)
        self._ends = GrowingArray(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = self._ends.view[number - 1] if number else 0
        return self._bytes.view[start : self._ends.view[number]].tobytes().decode()

    def add(self, texts: Iterable[str]) -> None:
        """Appends strings."""
        encoded = [text.encode() for text in texts]
        self.append(
            np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(one) for one in encoded], dtype=np.int64)
        )

    def append(self, data: Array, ends: Ints) -> None:
        """Appends strings as `packed` gave them."""
        self._ends.extend(ends.astype(np.int64) + len(self._bytes))
        self._bytes.extend(data)

    def packed(self) -> tuple[Array, Array]:
        """The bytes of all strings, (bytes,) uint8, and where each one ends."""
        return self._bytes.view, self._ends.view

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._ends.nbytes
