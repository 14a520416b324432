"""Sparse columns of the signal, which are added to scores without a value per memory.

For an owner with many memories most columns are 0 nearly everywhere, or derive from another column. A dense array per
column would cost more than the computation of its few values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from recallflow.state.arrays import Array, Column, Ints, Mask, Positions


@dataclass(frozen=True, slots=True)
class Scattered:
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
        total[self.positions] += _at(weight, self.positions) * self.values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _whole(self)


@dataclass(frozen=True, slots=True)
class ByEpisode:
    """One value per episode."""

    values: Column
    segment: Ints  # the episode of each position

    def __len__(self) -> int:
        return len(self.segment)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, positions: Positions) -> Column:
        return self.values.take(self.segment.take(positions))

    def add_to(self, total: Column, weight: float | Column) -> None:
        if isinstance(weight, np.ndarray):
            total += weight * self.values.take(self.segment)
        else:
            total += (weight * self.values).take(self.segment)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _whole(self)


@dataclass(frozen=True, slots=True)
class Neighbouring:
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _whole(self)


AnyColumn = Column | Scattered | ByEpisode | Neighbouring


def add_weighted(total: Column, column: AnyColumn, weight: float | Column) -> None:
    """Add a weighted column to (n,) sums."""
    if isinstance(column, np.ndarray):
        total += weight * column
    else:
        column.add_to(total, weight)


def _whole(column: Scattered | ByEpisode | Neighbouring) -> Column:
    """Return a value for every position."""
    total = np.zeros(len(column))
    column.add_to(total, 1.0)
    return total


def _at(weight: float | Column, positions: Positions) -> float | Column:
    return weight.take(positions) if isinstance(weight, np.ndarray) else weight
