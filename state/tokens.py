"""Token vectors of one owner's memories, a byte a number: what late interaction compares a question with.

Late interaction (Khattab and Zaharia, 2020, "ColBERT"): each token of a question is compared with every token of a
memory, and its closest one counts.
"""

from collections.abc import Callable

import numpy as np

from recallflow.embedder import Matrix
from recallflow.state.arrays import Bytes, GrowingArray, Ints, ranges

NO_TOKENS: Bytes = np.zeros((0, 0), np.int8)
ONE = 127  # the byte that stands for 1
_ROWS = 2_048  # turned to floats at a time: they stay in the processor's cache
# Multiplications that OpenBLAS leaves to one thread (see state/vectors.py).
_ALONE = 200_000


def to_bytes(tokens: Matrix) -> Bytes:
    """(tokens, dimension) of any length → unit vectors in bytes."""
    norms = np.linalg.norm(tokens, axis=1, keepdims=True)
    unit = np.divide(tokens, norms, out=np.zeros_like(tokens), where=norms > 0)
    codes: Bytes = np.rint(unit * ONE).astype(np.int8)
    return codes


_UNREAD = -1  # where the rows of a slot would start


class TokenIndex:
    """Rows of token vectors by slot; slots come in rising order, and one may have no rows. A removed memory's rows stay
    until the index is built anew. Rows of slots that are deferred are read when they are first asked for: they are the
    most of what is stored, and a question compares few of a large owner's."""

    def __init__(self, read: Callable[[Ints], list[Bytes]] | None = None) -> None:
        """`read`: the tokens of slots that were deferred."""
        self._read = read
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
        starts, sizes = self._append(tokens)
        self._starts.extend(starts)
        self._sizes.extend(sizes)

    def defer(self, slots: int, dimension: int) -> None:
        """Appends so many slots, whose tokens of this dimension, 0 where none has any, are to be read when they are
        asked for."""
        self._dimension = dimension or self._dimension
        self._starts.extend(np.full(slots, _UNREAD if dimension else 0))
        self._sizes.extend(np.zeros(slots))

    def _append(self, tokens: list[Bytes]) -> tuple[Ints, Ints]:
        """Appends rows → where those of each slot start, and how many they are."""
        sizes = np.array([len(rows) for rows in tokens], np.int64)
        if filled := [rows for rows in tokens if len(rows)]:
            self._dimension = filled[0].shape[1]
        before = len(self._flat) // max(self._dimension, 1)
        for rows in filled:
            self._flat.extend(rows.ravel())
        return before + np.cumsum(sizes) - sizes, sizes

    def _read_deferred(self, slots: Ints) -> None:
        unread = slots[self._starts.view[slots] == _UNREAD]
        if len(unread) and self._read is not None:
            starts, sizes = self._append(self._read(unread))
            self._starts.view[unread], self._sizes.view[unread] = starts, sizes

    def closest(self, question: Matrix, slots: Ints) -> Matrix:
        """For each token of the question and slot, its inner product with the slot's closest token, but 0 at least:
        (tokens, slots). `question`: (tokens, dimension) float32."""
        best = np.zeros((len(question), len(slots)), np.float32)
        self._read_deferred(slots)
        sizes = self._sizes.view[slots]
        held = np.flatnonzero(sizes)
        if not len(held) or not len(question):
            return best
        sizes = sizes[held]
        rows, firsts = ranges(self._starts.view[slots[held]], sizes), sizes.cumsum() - sizes
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
