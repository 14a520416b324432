"""Vectors of one owner: flat, one byte per number, so that removal is exact.

A row stores numbers in units of its largest one / 127. That changes a cosine by 0.001 (at most 0.005 on conversations),
while cosines of two memories differ by 0.1. It saves three quarters of the memory bandwidth of a full scan."""

import faiss
import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.state.arrays import Codes, GrowingArray, Ints, Mask, ranges
from recallflow.state.segment import Rows, masked

ONE = 127  # the byte of a row's largest number
_ZERO = 128  # the stored byte of 0
# Multiplications that OpenBLAS runs on one thread. If other work uses the cores, threads that wait for each other are
# slower than one: 100,000 rows of 384 floats took 17 ms (p95 150 ms) on two busy cores as a whole, 13 ms (p95 16 ms) in
# parts. For few rows, smaller parts are faster, because the converted floats stay in the inner caches.
_ALONE = 400_000
_FEW, _ALONE_OF_FEW = 4_000, 100_000
# OpenBLAS multiplies groups of rows, and sums a rest in another order. Without padding, the last bits of a product
# would depend on the position of its row, which changes when an owner is loaded again.
_TOGETHER = 16
_MOVED_AT_ONCE = 1_000  # rows after a removed one
_SEVERAL_AT_ONCE = 64  # memories of several rows per computation of means
_MEMBERS_AT_ONCE = 1_000  # members of episodes per computation of centroids
faiss.omp_set_num_threads(1)  # for the same reason


class VectorIndex:
    """Rows of unit vectors, each belonging to a slot; a slot may have several rows, one for each passage, or none."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension  # numbers per vector
        # FAISS indexes are not used: they fill reserved space with zeros, and cannot take rows at given positions.
        self._flat = GrowingArray(np.uint8)
        self._slots = GrowingArray(np.int64)  # of each row, rising: slots come in rising order, removal keeps it
        self._units = GrowingArray(np.float32)  # of each row
        self._several = False  # whether any slot may have several rows
        self._firsts: Ints | None = None  # first rows of slots, until the next change

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: its numbers, its slot and its unit."""
        return self.dimension + 8 + self._units.view.itemsize

    @property
    def nbytes(self) -> int:
        return len(self) * (self.dimension + 8) + self._units.nbytes

    def add(self, slots: Ints, matrix: Matrix) -> None:
        """slots: (rows,), matrix: (rows, dimension) float32, L2-normalised."""
        units = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(ONE)
        codes = np.divide(matrix, units, out=np.zeros(matrix.shape, np.float32), where=units > 0)
        np.rint(codes, out=codes)
        codes += _ZERO
        self._flat.extend(codes.ravel())
        self._extend(slots)
        self._units.extend(units[:, 0])

    def append(self, rows: Rows, first: int) -> None:
        """Append packed rows after all other slots. Their positions count from the slot `first`."""
        masked(rows.codes, out=self._flat.more(rows.codes.size).reshape(rows.codes.shape))
        self._extend(rows.places.astype(np.int64) + first)
        self._units.extend(rows.units)

    def _extend(self, slots: Ints) -> None:
        self._several |= bool((slots[1:] == slots[:-1]).any())
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
        self._flat.cut(end * self.dimension)
        self._firsts = None
        self._slots.keep(kept)
        self._units.keep(kept)

    def cosines(self, query: Matrix) -> tuple[Matrix, Ints]:
        """Return the slots with rows, and before them the cosine of each one's best row with `query`, (dimension,)."""
        products, slots = self._products(query, self._codes(), self._units.view), self._slots.view
        if not self._several or not len(slots):
            return products, slots.copy()
        if self._firsts is None:
            self._firsts = np.flatnonzero(np.concatenate([[True], slots[1:] != slots[:-1]]))
        return np.maximum.reduceat(products, self._firsts), slots[self._firsts]

    def cosines_of(self, query: Matrix, slot: int) -> Matrix:
        first, end = self._slots.view.searchsorted([slot, slot + 1])
        return self._products(query, self._codes()[first:end], self._units.view[first:end])

    def _products(self, query: Matrix, codes: Codes, units: Matrix) -> Matrix:
        alone, whole = _ALONE if len(codes) > _FEW else _ALONE_OF_FEW, -(-len(codes) // _TOGETHER) * _TOGETHER
        at_once = max(alone // max(len(query), 1) // _TOGETHER, 1) * _TOGETHER
        products = np.empty(whole, np.float32)
        rows = np.empty((min(at_once, whole), len(query)), np.float32)
        for start in range(0, len(codes), at_once):
            count, end = min(at_once, len(codes) - start), min(start + at_once, whole)
            rows[:count] = codes[start : start + count]
            rows[count : end - start] = 0
            np.dot(rows[: end - start], query, out=products[start:end])
        found: Matrix = products[: len(codes)]
        found -= _ZERO * query.sum()
        found *= units
        return found

    def holds(self, slots: Ints) -> Mask:
        owned = self._slots.view
        found: Mask = owned.searchsorted(slots, "right") > owned.searchsorted(slots)
        return found

    def of(self, slots: Ints) -> Matrix:
        """Return the vector of each slot, (len(slots), dimension): the mean of several rows, with length 1; zeros
        without rows."""
        if not len(self):
            return np.zeros((len(slots), self.dimension), np.float32)
        owned = self._slots.view
        at = np.minimum(np.searchsorted(owned, slots), len(owned) - 1)
        found = self._rows(at)
        if not (there := owned[at] == slots).all():
            found *= there[:, np.newaxis]
        if self._several:
            sizes = np.searchsorted(owned, slots, "right") - at
            several = np.flatnonzero(sizes > 1)
            for start in range(0, len(several), _SEVERAL_AT_ONCE):
                some = several[start : start + _SEVERAL_AT_ONCE]
                rows, firsts = ranges(at[some], sizes[some]), sizes[some].cumsum() - sizes[some]
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
        codes: Codes = self._flat.view.reshape(-1, self.dimension)
        return codes


class Clusters:
    """Centroids of episodes, computed on request.

    A message changes one episode. The centroids and cosines of the others come from the earlier clusters: computing
    them again took a tenth of a query after a message."""

    def __init__(
        self,
        vectors: VectorIndex,
        slots: Ints,
        positions: Ints,
        segment: Ints,
        starts: Ints,
        ends: Ints,
        earlier: "Clusters | None" = None,
    ) -> None:
        """`slots`, (n,), are in conversation order, `positions` are those of slots (-1 without one), `segment`, (n,),
        is the episode of each position. `earlier` are the clusters of the same vectors before some changes."""
        self._vectors, self._slots, self._positions, self._segment = vectors, slots, positions, segment
        self._starts, self._ends = starts, ends
        self._centroids = np.zeros((len(starts), vectors.dimension), np.float32)
        self._known = np.zeros(len(starts), np.bool_)
        self._cosines = np.full(len(slots), np.nan, np.float32)  # of each position, once asked for
        self._complete = False  # whether all of them were asked for
        if earlier is not None and len(slots) and len(earlier._slots):
            self._adopt(earlier)

    def _adopt(self, earlier: "Clusters") -> None:
        """Copy the results of unchanged episodes, which have the same slots in the same order as before."""
        last = len(earlier._positions) - 1
        known = self._slots <= last
        earlier_positions = np.where(known, earlier._positions[np.minimum(self._slots, last)], -1)
        earlier_episodes = np.where(earlier_positions >= 0, earlier._segment[earlier_positions], -1)
        # Each position has the same distance from the start of the same episode, and no member is gone.
        counterparts = earlier_episodes[self._starts]
        offsets = np.arange(len(earlier_positions)) - self._starts[self._segment]
        is_same = (earlier_episodes >= 0) & (earlier_episodes == counterparts[self._segment])
        is_same &= earlier_positions - earlier._starts[earlier_episodes] == offsets
        is_unchanged = np.logical_and.reduceat(is_same, self._starts)
        is_unchanged &= self._ends - self._starts == (earlier._ends - earlier._starts)[counterparts]
        kept = np.flatnonzero(is_unchanged & earlier._known[counterparts])
        self._centroids[kept] = earlier._centroids[counterparts[kept]]
        self._known[kept] = True
        members = is_unchanged[self._segment]
        self._cosines[members] = earlier._cosines[earlier_positions[members]]

    def centroids(self, segments: Ints) -> Matrix:
        """Return each episode's unit centroid, (len(segments), dimension), or zeros if no member has a vector."""
        if not (known := self._known[segments]).all():
            missing = np.unique(segments[~known])
            # In parts whose floats fit into the processor's cache: three times as fast as all at once.
            part = np.cumsum(self._ends[missing] - self._starts[missing]) // _MEMBERS_AT_ONCE
            for some in np.split(missing, np.flatnonzero(part[1:] != part[:-1]) + 1):
                self._learn(some)
        found: Matrix = self._centroids[segments]
        return found

    def _learn(self, missing: Ints) -> None:
        sizes = self._ends[missing] - self._starts[missing]
        members = self._slots[ranges(self._starts[missing], sizes)]
        rows, end = self._vectors.of(members), 0
        sums = np.empty((len(missing), rows.shape[1]), np.float32)
        for number, size in enumerate(sizes.tolist()):  # a third of the time of np.add.reduceat
            rows[end : end + size].sum(axis=0, out=sums[number])
            end += size
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        self._centroids[missing] = np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)
        self._known[missing] = True

    def cosines(self, positions: Ints) -> npt.NDArray[np.float32]:
        """Return each position's cosine to the centroid of its episode."""
        cosines: npt.NDArray[np.float32] = self._cosines.take(positions)
        if not self._complete and (unknown := np.isnan(cosines)).any():
            missing = positions[unknown]
            own, centroids = self._vectors.of(self._slots[missing]), self.centroids(self._segment[missing])
            cosines[unknown] = self._cosines[missing] = np.einsum("ij,ij->i", own, centroids)
            self._complete = not np.isnan(self._cosines).any()
        return cosines
