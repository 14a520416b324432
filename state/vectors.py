"""Vectors of one owner in FAISS: flat inner product with an id map, so that removal is exact and nothing depends on
insertion order."""

import faiss
import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix

Slots = npt.NDArray[np.int64]

# Multiplications that OpenBLAS leaves to one thread. Where other work holds the cores, threads that wait for each other
# are slower than one: 100,000 rows of 384 took 17 ms (p95 150 ms) on two busy cores as a whole, 13 ms (p95 16 ms) in
# parts.
_ALONE = 400_000


class VectorIndex:
    """Rows of unit vectors, each belonging to a slot; a slot may have several rows, or none."""

    def __init__(self, dimension: int) -> None:
        self._flat = faiss.IndexFlatIP(dimension)
        self._index = faiss.IndexIDMap(self._flat)
        self._slot_of: Slots | None = None

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Floats per vector."""
        return int(self._flat.d)

    @property
    def nbytes(self) -> int:
        return len(self) * (4 * self._flat.d + 8)

    def add(self, slots: Slots, matrix: Matrix) -> None:
        """slots: (rows,), matrix: (rows, dimension) float32, L2-normalised."""
        self._index.add_with_ids(np.ascontiguousarray(matrix, np.float32), slots)
        self._slot_of = None

    def remove(self, slot: int) -> None:
        self._index.remove_ids(faiss.IDSelectorBatch(np.array([slot], np.int64)))
        self._slot_of = None

    def cosines(self, query: Matrix) -> tuple[Matrix, Slots]:
        """All rows' cosines with `query` (dimension,) and their slots, in row order."""
        return _products(self._rows(), query), self._slots()

    def cosines_of(self, query: Matrix, slots: Slots) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """The cosine of each slot's first row with `query`, and whether it has one (else it is 0)."""
        at, there = self._places(slots)
        cosines = np.zeros(len(slots), np.float32)
        cosines[there] = _products(self._rows().take(at[there], axis=0), query)
        return cosines, there

    def of(self, slots: Slots) -> Matrix:
        """The first row of each slot, (len(slots), dimension); zeros for a slot without one."""
        at, there = self._places(slots)
        found = np.zeros((len(slots), self._flat.d), np.float32)
        found[there] = self._rows().take(at[there], axis=0)
        return found

    def _places(self, slots: Slots) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """The first row of each slot, and whether it has one."""
        # Slots are appended in rising order and removal keeps the order, so the id map is sorted.
        owned = self._slots()
        at = np.minimum(np.searchsorted(owned, slots), max(len(owned) - 1, 0))
        return at, owned[at] == slots if len(owned) else np.zeros(len(slots), np.bool_)

    def _slots(self) -> Slots:
        """The slot of each row, (rows,)."""
        if self._slot_of is None:
            self._slot_of = faiss.vector_to_array(self._index.id_map)
        return self._slot_of

    def _rows(self) -> Matrix:
        """All vectors, (rows, dimension), without a copy; valid until the next change."""
        count, dimension = len(self), self._flat.d
        if count == 0:
            return np.zeros((0, dimension), np.float32)
        rows: Matrix = faiss.rev_swig_ptr(self._flat.get_xb(), count * dimension).reshape(count, dimension)
        return rows


def _products(rows: Matrix, query: Matrix) -> Matrix:
    """The inner product of each row with `query`."""
    products = np.empty(len(rows), np.float32)
    at_once = max(_ALONE // max(len(query), 1), 1)
    for start in range(0, len(rows), at_once):
        np.dot(rows[start : start + at_once], query, out=products[start : start + at_once])
    return products
