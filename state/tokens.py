"""Token vectors of one owner's memories for late interaction, one byte per number.

In late interaction (Khattab and Zaharia, 2020, "ColBERT"), each token of a question is compared with every token of a
memory, and scores the similarity of the closest one."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Matrix
from recallflow.state.arrays import Bytes, Column, GrowingArray, Ints, best_part, ranges

NO_TOKENS: Bytes = np.zeros((0, 0), np.int8)
SCALE = 127  # bytes are the numbers times this
_CHUNK_ROWS = 2_048  # their floats stay in the processor's cache
_SINGLE_THREAD = 200_000  # multiplications that OpenBLAS runs on one thread (see state/vectors.py)
_PASSAGES_BYTES = 200  # of Python objects


def to_bytes(tokens: Matrix) -> Bytes:
    """Convert vectors (tokens, dimension) of any norm to unit vectors in bytes."""
    norms = np.linalg.norm(tokens, axis=1, keepdims=True)
    unit = np.divide(tokens, norms, out=np.zeros_like(tokens), where=norms > 0)
    codes: Bytes = np.rint(unit * SCALE).astype(np.int8)
    return codes


_UNREAD = -1  # in place of the start of a slot's rows


class Tokens(NamedTuple):
    """The token vectors of a memory, (tokens, dimension), in order of passages. `sizes`: of the passages if several."""

    rows: Bytes = NO_TOKENS
    sizes: tuple[int, ...] = ()


class TokenIndex:
    """Token vectors by slot; a slot may have none. Those of removed memories stay until the index is rebuilt. Those of
    deferred slots are read on demand by `read`: they are most of the stored data, and a query compares few of them."""

    def __init__(self, read: Callable[[Ints], list[Tokens]] | None = None) -> None:
        self._read = read
        self._flat = GrowingArray(np.int8)
        self._starts = GrowingArray(np.int64)
        self._sizes = GrowingArray(np.int64)
        self._passages: dict[int, Ints] = {}  # number of rows of each passage, for slots with several passages
        self.dimension = 0  # numbers per token vector; 0 without token vectors

    @property
    def nbytes(self) -> int:
        passages = sum(_PASSAGES_BYTES + sizes.nbytes for sizes in self._passages.values())
        return self._flat.nbytes + self._starts.nbytes + self._sizes.nbytes + passages

    def add(self, tokens: Sequence[Tokens]) -> None:
        starts, sizes = self._append(range(len(self._starts), len(self._starts) + len(tokens)), tokens)
        self._starts.extend(starts)
        self._sizes.extend(sizes)

    def defer(self, slots: int, dimension: int) -> None:
        """Append slots whose tokens of this dimension (0 for none) are read on demand."""
        self.dimension = dimension or self.dimension
        self._starts.extend(_UNREAD if dimension else 0, slots)
        self._sizes.extend(0, slots)

    def _append(self, slots: Iterable[int], tokens: Sequence[Tokens]) -> tuple[Ints, Ints]:
        """Append rows. Return their start offsets per slot, and their counts."""
        sizes = np.array([len(one.rows) for one in tokens], np.int64)
        self._passages.update((slot, np.array(one.sizes)) for slot, one in zip(slots, tokens, strict=True) if one.sizes)
        if filled := [one.rows for one in tokens if len(one.rows)]:
            self.dimension = filled[0].shape[1]
        before = len(self._flat) // max(self.dimension, 1)
        for rows in filled:
            self._flat.extend(rows.ravel())
        return before + np.cumsum(sizes) - sizes, sizes

    def _read_deferred(self, slots: Ints) -> None:
        unread = slots[self._starts.view[slots] == _UNREAD]
        if len(unread) and self._read is not None:
            starts, sizes = self._append(unread.tolist(), self._read(unread))
            self._starts.view[unread], self._sizes.view[unread] = starts, sizes

    def closest(self, question: Matrix, slots: Ints, weights: Column) -> Matrix:
        """Return (tokens, slots): the inner product, at least 0, of each `question` token, (tokens, numbers), with the
        closest token of a slot's best passage, which has the highest sum of products times `weights`, (tokens,)."""
        best = np.zeros((len(question), len(slots)), np.float32)
        self._read_deferred(slots)
        sizes = self._sizes.view[slots]
        filled = np.flatnonzero(sizes)
        if not len(filled) or not len(question):
            return best
        sizes = sizes[filled]
        rows, counts = ranges(self._starts.view[slots[filled]], sizes), None
        if self._passages:
            found = [self._passages.get(slot) for slot in slots[filled].tolist()]
            passages = [sizes[[at]] if one is None else one[one > 0] for at, one in enumerate(found)]
            sizes, counts = np.concatenate(passages), np.array([len(one) for one in passages])
        firsts = sizes.cumsum() - sizes
        flat = self._flat.view.reshape(-1, self.dimension)
        products = np.empty((len(rows), len(question)), np.float32)
        columns, at_once = np.ascontiguousarray(question.T), max(_SINGLE_THREAD // question.size, 1)
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = flat.take(rows[start : start + _CHUNK_ROWS], axis=0).astype(np.float32)
            for at in range(0, len(part), at_once):
                few = part[at : at + at_once]
                np.matmul(few, columns, out=products[start + at : start + at + len(few)])
        closest = np.maximum.reduceat(products, firsts, axis=0).T
        closest = np.maximum(closest, 0.0, out=closest)
        best[:, filled] = closest if counts is None else best_part(closest, weights, counts)
        best /= SCALE
        return best
