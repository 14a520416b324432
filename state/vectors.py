"""Vectors of one owner in FAISS: flat, a byte a number, with an id map, so that removal is exact and nothing depends on
insertion order.

A row's bytes are its numbers in units of its own largest one / 127. What is lost moves a cosine by 0.001 (on
conversations, at most by 0.005), where those of two memories differ by 0.1; what is saved is three quarters of what a
look at all rows has to read.
"""

from typing import NamedTuple

import faiss
import numpy as np

from recallflow.embedder import Matrix
from recallflow.state.arrays import Codes, GrowingArray, Ints, Mask
from recallflow.state.segment import Rows

ONE = 127  # the byte that stands for a row's largest number
_ZERO = 128  # what FAISS stores for a 0
# Multiplications that OpenBLAS leaves to one thread. Where other work holds the cores, threads that wait for each other
# are slower than one: 100,000 rows of 384 floats took 17 ms (p95 150 ms) on two busy cores as a whole, 13 ms (p95 16
# ms) in parts. Of a few rows, smaller parts are better still: what is turned to floats stays in the inner caches.
_ALONE = 400_000
_FEW, _ALONE_OF_FEW = 4_000, 25_000
faiss.omp_set_num_threads(1)  # for the same reason


class VectorIndex:
    """Rows of unit vectors, each belonging to a slot; a slot may have several rows, or none."""

    def __init__(self, dimension: int) -> None:
        signed = faiss.ScalarQuantizer.QT_8bit_direct_signed
        self._flat = faiss.IndexScalarQuantizer(dimension, signed, faiss.METRIC_INNER_PRODUCT)
        self._index = faiss.IndexIDMap(self._flat)
        self._units = GrowingArray(np.float32)  # of each row
        self._read: _Read | None = None

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Numbers per vector."""
        return int(self._flat.d)

    @property
    def row_bytes(self) -> int:
        """What one row takes: its numbers, its slot and its unit."""
        return int(self._flat.d) + 8 + self._units.view.itemsize

    @property
    def nbytes(self) -> int:
        return len(self) * (self._flat.d + 8) + self._units.nbytes

    def add(self, slots: Ints, matrix: Matrix) -> None:
        """slots: (rows,), matrix: (rows, dimension) float32, L2-normalised."""
        units = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(ONE)
        codes = np.divide(matrix, units, out=np.zeros(matrix.shape, np.float32), where=units > 0)
        self._index.add_with_ids(np.rint(codes, out=codes), slots)
        self._units.extend(units[:, 0])
        self._read = None

    def append(self, rows: Rows, first: int) -> None:
        """Appends rows as they were packed, behind those of all other slots; places count from the slot `first`."""
        if len(rows.codes):
            self._index.add_sa_codes(np.ascontiguousarray(rows.codes), rows.places.astype(np.int64) + first)
            self._units.extend(rows.units)
            self._read = None

    def packed(self) -> Rows:
        """All rows, as another index can append them."""
        slots, codes = self._rows()
        return Rows(slots, codes.copy(), self._units.view)  # they outlive the index

    def reserve(self, rows: int) -> None:
        """Makes room for so many more rows."""
        before = len(self) * self._flat.d
        self._flat.codes.resize(before + rows * self._flat.d)
        self._flat.codes.resize(before)  # the memory stays taken
        self._units.reserve(rows)
        self._read = None

    def remove(self, *slots: int) -> None:
        self._units.keep(~np.isin(self._rows().slots, slots))
        self._index.remove_ids(faiss.IDSelectorBatch(np.array(slots, np.int64)))
        self._read = None

    def cosines(self, query: Matrix) -> tuple[Matrix, Ints]:
        """All rows' cosines with `query` (dimension,) and their slots, in row order."""
        slots, codes = self._rows()
        products = np.empty(len(codes), np.float32)
        at_once = max((_ALONE if len(codes) > _FEW else _ALONE_OF_FEW) // max(len(query), 1), 1)
        for start in range(0, len(codes), at_once):
            part = codes[start : start + at_once].astype(np.float32)
            np.dot(part, query, out=products[start : start + at_once])
        products -= _ZERO * query.sum()
        products *= self._units.view
        return products, slots

    def of(self, slots: Ints) -> Matrix:
        """The first row of each slot, (len(slots), dimension); zeros for a slot without one."""
        at, there = self._places(slots)
        if not len(self):
            return np.zeros((len(slots), self._flat.d), np.float32)
        found: Matrix = self._rows().codes.take(at, axis=0).astype(np.float32)
        found -= _ZERO
        found *= (self._units.view.take(at) * there)[:, np.newaxis]
        return found

    def _places(self, slots: Ints) -> tuple[Ints, Mask]:
        """The first row of each slot, and whether it has one."""
        # Slots are appended in rising order and removal keeps the order, so the id map is sorted.
        owned = self._rows().slots
        at = np.minimum(np.searchsorted(owned, slots), max(len(owned) - 1, 0))
        return at, owned[at] == slots if len(owned) else np.zeros(len(slots), np.bool_)

    def _rows(self) -> "_Read":
        """What FAISS holds, read anew after a change."""
        if self._read is None:
            count, dimension = len(self), self._flat.d
            codes = np.zeros((0, dimension), np.uint8)
            if count:
                codes = faiss.rev_swig_ptr(self._flat.codes.data(), count * dimension).reshape(count, dimension)
            self._read = _Read(faiss.vector_to_array(self._index.id_map), codes)
        return self._read


class _Read(NamedTuple):
    """The slot of each row, a copy, and the rows as FAISS stores them, (rows, dimension): its very memory, until the
    next change."""

    slots: Ints
    codes: Codes
