"""Vectors of one owner, one byte per number. A query compares all of them (no approximate search).

The unit of a row's numbers is its largest number / 127. Rounding changes a cosine by 0.001 (at most 0.005 on
conversations), while cosines of two memories differ by 0.1. It saves three quarters of a scan's memory bandwidth."""

import faiss
import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.state.arrays import Codes, GrowingArray, Ints, Mask, ranges, run_starts
from recallflow.state.segment import Rows, masked

_LARGEST = 127  # a row's largest number, in units of the row
_ZERO = 128  # the stored byte of 0
# Multiplications that OpenBLAS runs on one thread. On busy cores, threads that wait for each other are slower than one:
# 100,000 rows of 384 floats took 17 ms (p95 150 ms) on two busy cores as a whole, 13 ms (p95 16 ms) in parts. For few
# rows, smaller parts are faster, because the converted floats stay in the inner caches.
_SINGLE_THREAD = 400_000
_FEW_ROWS, _SINGLE_THREAD_OF_FEW = 4_000, 100_000
# OpenBLAS multiplies groups of rows, and sums incomplete groups in another order. Without padding, the last bits of a
# product would depend on the position of its row, which changes when an owner is loaded again.
_ROW_GROUP = 16
_MOVED_AT_ONCE = 1_000  # rows after a removed one
_SLOTS_AT_ONCE = 64  # slots with several rows per computation of means
_MEMBERS_AT_ONCE = 1_000  # members of episodes per computation of centroids
faiss.omp_set_num_threads(1)  # see `_SINGLE_THREAD`


class VectorIndex:
    """Rows of unit vectors, each belonging to a slot; a slot may have several rows, one for each passage, or none."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension  # numbers per vector
        # FAISS indexes are not used: they fill reserved space with zeros, and cannot take rows at given positions.
        self._flat = GrowingArray(np.uint8)
        self._slots = GrowingArray(np.int64)  # of each row, ascending
        self._units = GrowingArray(np.float32)  # of each row
        self._has_several = False  # whether any slot may have several rows
        self._firsts: Ints | None = None  # the first row of each slot, cached until the next change

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row: its numbers, slot and unit."""
        return self.dimension + 8 + self._units.view.itemsize

    @property
    def nbytes(self) -> int:
        return len(self) * (self.dimension + 8) + self._units.nbytes

    def add(self, slots: Ints, matrix: Matrix) -> None:
        """Append rows after all others. `slots`: (rows,); `matrix`: (rows, dimension) float32, L2-normalised."""
        units = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        codes = np.divide(matrix, units, out=np.zeros(matrix.shape, np.float32), where=units > 0)
        np.rint(codes, out=codes)
        codes += _ZERO
        self._flat.extend(codes.ravel())
        self._extend(slots)
        self._units.extend(units[:, 0])

    def append(self, rows: Rows, first: int) -> None:
        """Append packed rows after all others. Their positions are relative to the slot `first`."""
        masked(rows.codes, out=self._flat.extend_unwritten(rows.codes.size).reshape(rows.codes.shape))
        self._extend(rows.positions.astype(np.int64) + first)
        self._units.extend(rows.units)

    def _extend(self, slots: Ints) -> None:
        self._has_several |= bool((slots[1:] == slots[:-1]).any())
        self._slots.extend(slots)
        self._firsts = None

    def packed(self) -> Rows:
        """Return all rows in the form that `append` takes."""
        return Rows(self._slots.view, masked(self._codes()), self._units.view)

    def reserve(self, rows: int) -> None:
        self._flat.reserve(rows * self.dimension)
        self._slots.reserve(rows)
        self._units.reserve(rows)

    def remove(self, *slots: int) -> None:
        kept = ~np.isin(self._slots.view, slots)
        if kept.all():
            return
        codes, end = self._codes(), int(kept.argmin())
        for start in range(end, len(codes), _MOVED_AT_ONCE):
            moved = codes[start : start + _MOVED_AT_ONCE][kept[start : start + _MOVED_AT_ONCE]]
            codes[end : end + len(moved)] = moved
            end += len(moved)
        self._flat.truncate(end * self.dimension)
        self._firsts = None
        self._slots.keep(kept)
        self._units.keep(kept)

    def cosines(self, query: Matrix) -> tuple[Matrix, Ints]:
        """Return the cosine of each slot's best row with `query`, (dimension,), and the slots: those with any rows."""
        products, slots = self._products(query, self._codes(), self._units.view), self._slots.view
        if not self._has_several or not len(slots):
            return products, slots.copy()
        if self._firsts is None:
            self._firsts = run_starts(slots)
        return np.maximum.reduceat(products, self._firsts), slots[self._firsts]

    def cosines_of(self, query: Matrix, slot: int) -> Matrix:
        """Return the cosine of each row of a slot with `query`."""
        first, end = self._slots.view.searchsorted([slot, slot + 1])
        return self._products(query, self._codes()[first:end], self._units.view[first:end])

    def _products(self, query: Matrix, codes: Codes, units: Matrix) -> Matrix:
        limit = _SINGLE_THREAD if len(codes) > _FEW_ROWS else _SINGLE_THREAD_OF_FEW
        at_once = max(limit // max(len(query), 1) // _ROW_GROUP, 1) * _ROW_GROUP
        padded = -(-len(codes) // _ROW_GROUP) * _ROW_GROUP
        products = np.empty(padded, np.float32)
        rows = np.empty((min(at_once, padded), len(query)), np.float32)
        for start in range(0, len(codes), at_once):
            count, end = min(at_once, len(codes) - start), min(start + at_once, padded)
            rows[:count] = codes[start : start + count]
            rows[count : end - start] = 0
            np.dot(rows[: end - start], query, out=products[start:end])
        found: Matrix = products[: len(codes)]
        found -= _ZERO * query.sum()
        found *= units
        return found

    def holds(self, slots: Ints) -> Mask:
        """Return a mask of the slots that have rows."""
        slot_of_row = self._slots.view
        return slot_of_row.searchsorted(slots, "right") > slot_of_row.searchsorted(slots)

    def of(self, slots: Ints) -> Matrix:
        """Return each slot's vector, (len(slots), dimension): the mean of its rows with length 1, or zeros."""
        if not len(self):
            return np.zeros((len(slots), self.dimension), np.float32)
        slot_of_row = self._slots.view
        first_rows = np.minimum(np.searchsorted(slot_of_row, slots), len(slot_of_row) - 1)
        found = self._rows(first_rows)
        if not (has_rows := slot_of_row[first_rows] == slots).all():
            found *= has_rows[:, np.newaxis]
        if self._has_several:
            sizes = np.searchsorted(slot_of_row, slots, "right") - first_rows
            several = np.flatnonzero(sizes > 1)
            for start in range(0, len(several), _SLOTS_AT_ONCE):
                some = several[start : start + _SLOTS_AT_ONCE]
                rows, firsts = ranges(first_rows[some], sizes[some]), sizes[some].cumsum() - sizes[some]
                sums = np.add.reduceat(self._rows(rows), firsts, axis=0)
                lengths = np.linalg.norm(sums, axis=1, keepdims=True)
                found[some] = np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)
        return found

    def _rows(self, at: Ints) -> Matrix:
        rows: Matrix = self._codes().take(at, axis=0).astype(np.float32)
        rows -= _ZERO
        rows *= self._units.view.take(at)[:, np.newaxis]
        return rows

    def _codes(self) -> Codes:
        """Return the rows, (rows, dimension), without a copy, valid until the next change."""
        return self._flat.view.reshape(-1, self.dimension)


class Clusters:
    """The centroids of episodes, computed on request.

    A new memory changes one episode. The centroids and cosines of the others are taken from the earlier clusters:
    computing them again took a tenth of the time of the next query."""

    def __init__(
        self, vectors: VectorIndex, order: tuple[Ints, Ints], episodes: tuple[Ints, Ints, Ints],
        earlier: "Clusters | None" = None,
    ) -> None:  # fmt: skip
        """`order`: the slot of each position, and the position of each slot. `episodes`: the episode of each position,
        and the start and end of each episode. `earlier`: clusters of the same vectors before some changes."""
        self._vectors, (self._slots, self._positions) = vectors, order
        self._episodes, self._starts, self._ends = episodes
        self._centroids = np.zeros((len(self._starts), vectors.dimension), np.float32)
        self._has_centroid = np.zeros(len(self._starts), np.bool_)
        self._cosines = np.full(len(self._slots), np.nan, np.float32)  # of each position; NaN until computed
        self._has_all_cosines = False
        if earlier is not None and len(self._slots) and len(earlier._slots):
            self._adopt(earlier)

    def _adopt(self, earlier: "Clusters") -> None:
        """Copy the results of unchanged episodes, which have the same slots in the same order as before."""
        last = len(earlier._positions) - 1
        existed = self._slots <= last
        earlier_positions = np.where(existed, earlier._positions[np.minimum(self._slots, last)], -1)
        earlier_episodes = np.where(earlier_positions >= 0, earlier._episodes[earlier_positions], -1)
        # An episode is unchanged if all its slots have their earlier distance from its start, and none is missing.
        counterparts = earlier_episodes[self._starts]
        offsets = np.arange(len(earlier_positions)) - self._starts[self._episodes]
        is_same = (earlier_episodes >= 0) & (earlier_episodes == counterparts[self._episodes])
        is_same &= earlier_positions - earlier._starts[earlier_episodes] == offsets
        is_unchanged = np.logical_and.reduceat(is_same, self._starts)
        is_unchanged &= self._ends - self._starts == (earlier._ends - earlier._starts)[counterparts]
        kept = np.flatnonzero(is_unchanged & earlier._has_centroid[counterparts])
        self._centroids[kept] = earlier._centroids[counterparts[kept]]
        self._has_centroid[kept] = True
        members = is_unchanged[self._episodes]
        self._cosines[members] = earlier._cosines[earlier_positions[members]]

    def centroids(self, episodes: Ints) -> Matrix:
        """Return each episode's unit centroid, (len(episodes), dimension), or zeros if no member has a vector."""
        if not (is_computed := self._has_centroid[episodes]).all():
            missing = np.unique(episodes[~is_computed])
            # In parts whose floats fit into the processor's cache, which takes a third of the time.
            part = np.cumsum(self._ends[missing] - self._starts[missing]) // _MEMBERS_AT_ONCE
            for some in np.split(missing, run_starts(part)[1:]):
                self._compute(some)
        return self._centroids[episodes]

    def _compute(self, missing: Ints) -> None:
        sizes = self._ends[missing] - self._starts[missing]
        members = self._slots[ranges(self._starts[missing], sizes)]
        rows, end = self._vectors.of(members), 0
        sums = np.empty((len(missing), rows.shape[1]), np.float32)
        for number, size in enumerate(sizes.tolist()):  # a third of the time of np.add.reduceat
            rows[end : end + size].sum(axis=0, out=sums[number])
            end += size
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        self._centroids[missing] = np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)
        self._has_centroid[missing] = True

    def cosines(self, positions: Ints) -> npt.NDArray[np.float32]:
        """Return each position's cosine to the centroid of its episode."""
        cosines: npt.NDArray[np.float32] = self._cosines.take(positions)
        if not self._has_all_cosines and (is_missing := np.isnan(cosines)).any():
            missing = positions[is_missing]
            own, centroids = self._vectors.of(self._slots[missing]), self.centroids(self._episodes[missing])
            cosines[is_missing] = self._cosines[missing] = np.einsum("ij,ij->i", own, centroids)
            self._has_all_cosines = not np.isnan(self._cosines).any()
        return cosines
