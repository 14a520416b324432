"""Columns of the signal that do not hold one value per memory.

For an owner with many memories most columns are 0 nearly everywhere, or derive from another column. A dense array per
column would cost more than the computation of its few values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from recallflow.state.arrays import Array, Column, Ints, Mask, Positions


def _dense(column: "SparseColumn | EpisodeColumn | NeighbourColumn", *_: Any, **__: Any) -> Array:
    """Return an array with a value for every position."""
    total = np.zeros(len(column))
    column.add_to(total, 1.0)
    return total


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Values at some positions, ascending, and 0 elsewhere."""

    positions: Positions
    values: Column
    size: int  # the number of all positions

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.values.nbytes

    def take(self, positions: Positions) -> Column:
        if not len(self.positions):
            return np.zeros(len(positions))
        at = self.positions.searchsorted(positions)
        found: Column = self.values.take(at, mode="clip") * (self.positions.take(at, mode="clip") == positions)
        return found

    def add_to(self, total: Column, weight: float | Column) -> None:
        weights = weight.take(self.positions) if isinstance(weight, np.ndarray) else weight
        total[self.positions] += weights * self.values

    __array__ = _dense


@dataclass(frozen=True, slots=True)
class EpisodeColumn:
    """One value per episode."""

    values: Column
    episode_ordinal: Ints  # the episode of each position

    def __len__(self) -> int:
        return len(self.episode_ordinal)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, positions: Positions) -> Column:
        return self.values.take(self.episode_ordinal.take(positions))

    def add_to(self, total: Column, weight: float | Column) -> None:
        if isinstance(weight, np.ndarray):
            total += weight * self.values.take(self.episode_ordinal)
        else:
            total += (weight * self.values).take(self.episode_ordinal)

    __array__ = _dense


@dataclass(frozen=True, slots=True)
class NeighbourColumn:
    """The value of the previous (`step` -1) or next (1) memory of each position where `mask` is set, 0 elsewhere. The
    mask is not set at positions without such a memory."""

    values: Column
    mask: Mask
    step: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, positions: Positions) -> Column:
        return self.values.take(positions + self.step, mode="clip") * self.mask.take(positions)

    def add_to(self, total: Column, weight: float | Column) -> None:
        own, other = (slice(1, None), slice(None, -1))[:: -self.step]
        added = self.values[other] * self.mask[own]
        added *= weight[own] if isinstance(weight, np.ndarray) else weight
        total[own] += added

    __array__ = _dense


AnyColumn = Column | SparseColumn | EpisodeColumn | NeighbourColumn
