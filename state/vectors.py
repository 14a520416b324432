"""Vectors of one owner in FAISS: flat inner product with an id map, so that removal is exact and nothing depends on
insertion order."""

import faiss
import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix

Slots = npt.NDArray[np.int64]


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
        return self._rows() @ query, self._slots()

    def of(self, slots: Slots) -> Matrix:
        """The first row of each slot, (len(slots), dimension); zeros for a slot without one."""
        found = np.zeros((len(slots), self._flat.d), np.float32)
        if len(self):
            # Slots are appended in rising order and removal keeps the order, so the id map is sorted.
            owned = self._slots()
            at = np.minimum(np.searchsorted(owned, slots), len(owned) - 1)
            there = owned[at] == slots
            found[there] = self._rows()[at[there]]
        return found

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
