"""Columns of the signal that need no value for every memory: where they stand, they are added to scores.

Of an owner with many memories most columns are 0 nearly everywhere, or follow from another one. An array of all
memories for each would cost more than what is worked out for the few.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from recallflow.state.arrays import Array, Column, Ints, Mask, Places


@dataclass(frozen=True, slots=True)
class Scattered:
    """Values at some places, rising, and 0 elsewhere. `size`: of all places."""

    places: Places
    values: Column
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.values.nbytes

    def take(self, places: Places) -> Column:
        """Return the values at these places."""
        if not len(self.places):
            return np.zeros(len(places))
        at = self.places.searchsorted(places)
        found: Column = self.values.take(at, mode="clip") * (self.places.take(at, mode="clip") == places)
        return found

    def add_to(self, total: Column, weight: float | Column) -> None:
        """Add the weighted column to (n,) sums."""
        total[self.places] += _at(weight, self.places) * self.values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _whole(self)


@dataclass(frozen=True, slots=True)
class ByEpisode:
    """A value for each episode. `segment`: the episode of each place."""

    values: Column
    segment: Ints

    def __len__(self) -> int:
        return len(self.segment)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, places: Places) -> Column:
        """Return the values at these places."""
        return self.values.take(self.segment.take(places))

    def add_to(self, total: Column, weight: float | Column) -> None:
        """Add the weighted column to (n,) sums."""
        if isinstance(weight, np.ndarray):
            total += weight * self.values.take(self.segment)
        else:
            total += (weight * self.values).take(self.segment)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _whole(self)


@dataclass(frozen=True, slots=True)
class Neighbouring:
    """The value of the memory before (`step` -1) or after (1) each place, where `mask` holds, and 0 elsewhere. The mask
    does not hold where there is no such memory."""

    values: Column
    mask: Mask
    step: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, places: Places) -> Column:
        """Return the values at these places."""
        found: Column = self.values.take(places + self.step, mode="clip") * self.mask.take(places)
        return found

    def add_to(self, total: Column, weight: float | Column) -> None:
        """Add the weighted column to (n,) sums."""
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
    """Return a value for every place."""
    total = np.zeros(len(column))
    column.add_to(total, 1.0)
    return total


def _at(weight: float | Column, places: Places) -> float | Column:
    return weight.take(places) if isinstance(weight, np.ndarray) else weight
