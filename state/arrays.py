"""A numpy array that grows at its end."""

from typing import Any

import numpy as np
import numpy.typing as npt


class GrowingArray:
    """Appends in amortised constant time; `view` is the filled part, valid until the next append."""

    def __init__(self, dtype: npt.DTypeLike, capacity: int = 64) -> None:
        self._data: npt.NDArray[Any] = np.zeros(capacity, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> npt.NDArray[Any]:
        return self._data[: self._size]

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def append(self, value: Any) -> None:
        if self._size == len(self._data):
            self._grow(self._size + 1)
        self._data[self._size] = value
        self._size += 1

    def extend(self, values: npt.ArrayLike) -> None:
        added = np.asarray(values, self._data.dtype)
        if self._size + len(added) > len(self._data):
            self._grow(self._size + len(added))
        self._data[self._size : self._size + len(added)] = added
        self._size += len(added)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Takes out the values where `mask`, (len,), does not hold."""
        kept = self.view[mask]
        self._size = len(kept)
        self._data[: self._size] = kept

    def reserve(self, more: int) -> None:
        """Makes room for so many more values at once."""
        if self._size + more > len(self._data):
            self._resize(self._size + more)

    def _grow(self, needed: int) -> None:
        self._resize(max(needed, 2 * len(self._data)))

    def _resize(self, capacity: int) -> None:
        grown = np.zeros(capacity, self._data.dtype)
        grown[: self._size] = self.view
        self._data = grown
