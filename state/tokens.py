"""Token vectors of one owner's memories, a byte a number: what late interaction compares a question with.

Late interaction (Khattab and Zaharia, 2020, "ColBERT"): each token of a question is compared with every token of a
memory, and its closest one counts.
"""

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.state.arrays import GrowingArray

Bytes = npt.NDArray[np.int8]
Ints = npt.NDArray[np.int64]

NO_TOKENS: Bytes = np.zeros((0, 0), np.int8)
ONE = 127  # the byte that stands for 1
_ROWS = 2_048  # turned to floats at a time: they stay in the processor's cache
# Multiplications that OpenBLAS leaves to one thread. More it would share among threads, and where other work holds the
# cores, waiting for them takes ten times as long as the work.
_ALONE = 200_000


def to_bytes(tokens: Matrix) -> Bytes:
    """(tokens, dimension) of any length → unit vectors in bytes."""
    norms = np.linalg.norm(tokens, axis=1, keepdims=True)
    unit = np.divide(tokens, norms, out=np.zeros_like(tokens), where=norms > 0)
    codes: Bytes = np.rint(unit * ONE).astype(np.int8)
    return codes


class TokenIndex:
    """Rows of token vectors by slot; slots come in rising order, and one may have no rows. A removed memory's rows stay
    until the index is built anew."""

    def __init__(self) -> None:
        self._flat = GrowingArray(np.int8)
        self._starts = GrowingArray(np.int64)
        self._sizes = GrowingArray(np.int64)
        self._dimension = 0

    @property
    def dimension(self) -> int:
        """Numbers per token vector; 0 where no memory has any."""
        return self._dimension

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes + self._starts.nbytes + self._sizes.nbytes

    def add(self, tokens: list[Bytes]) -> None:
        """Appends the next slots' tokens, (tokens, dimension) each."""
        sizes = [len(rows) for rows in tokens]
        if filled := [rows for rows in tokens if len(rows)]:
            self._dimension = filled[0].shape[1]
        before = len(self._flat) // max(self._dimension, 1)
        self._starts.extend(before + np.cumsum([0, *sizes])[:-1])
        self._sizes.extend(sizes)
        for rows in filled:
            self._flat.extend(rows.ravel())

    def closest(self, question: Matrix, slots: Ints) -> Matrix:
        """For each token of the question and slot, its inner product with the slot's closest token, but 0 at least:
        (tokens, slots). `question`: (tokens, dimension) float32."""
        best = np.zeros((len(question), len(slots)), np.float32)
        sizes = self._sizes.view[slots]
        held = np.flatnonzero(sizes)
        if not len(held) or not len(question):
            return best
        rows, firsts = _ranges(self._starts.view[slots[held]], sizes[held])
        flat = self._flat.view.reshape(-1, self._dimension)
        products = np.empty((len(rows), len(question)), np.float32)
        turned, at_once = np.ascontiguousarray(question.T), max(_ALONE // question.size, 1)
        for start in range(0, len(rows), _ROWS):
            part = flat.take(rows[start : start + _ROWS], axis=0).astype(np.float32)
            for at in range(0, len(part), at_once):
                few = part[at : at + at_once]
                np.matmul(few, turned, out=products[start + at : start + at + len(few)])
        best[:, held] = np.maximum.reduceat(products, firsts, axis=0).T
        best /= ONE
        return np.maximum(best, 0.0, out=best)


def _ranges(starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """The numbers of all ranges [start, start + size) one after the other, and where each begins."""
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.arange(sizes.sum()) + np.repeat(starts - firsts, sizes), firsts
