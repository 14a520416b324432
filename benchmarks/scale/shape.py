"""What deployment is looked at, and what comes in: owners of very different size, hashed to partitions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.scale.costs import Costs, Floats

Ints = npt.NDArray[np.int64]
DAY_S = 86_400.0


@dataclass(frozen=True)
class Shape:
    """A deployment and what it is given. `cores`: members of each machine. `skew`: the exponent of Zipf's law, by which
    the owner who talks n-th most has n ** -skew of what the first has. `tenants` have as many owners each."""

    machines: int = 50
    cores: int = 4
    partitions: int = 1_000
    owners: int = 1_000_000
    memories: int = 1_000  # of an owner
    tenants: int = 100
    skew: float = 0.5
    messages_per_s: float = 100_000.0
    queries_per_s: float = 10_000.0
    machine_memory_bytes: float = 64e9
    cache_bytes: float = 8e9  # of hot owners, of each member
    network_bytes_a_s: float = 1.25e9  # of a machine
    session_timeout_s: float = 45.0
    checkpoint_s: float = 600.0
    standby: bool = False
    hot_share: float = 0.0  # of all that comes in is one more tenant's, with as many owners as another
    hot_owner_share: float = 0.0  # of all that comes in is one more owner's

    @property
    def members(self) -> int:
        return self.machines * self.cores

    def machine_of(self, members: int | None = None) -> dict[int, int]:
        """Members are numbered machine by machine."""
        return {member: member // self.cores for member in range(members or self.members)}


@dataclass(frozen=True)
class Load:
    """What comes in, by partition: shares of all of it, those of the hot tenant among them, and owners' shares of it by
    size."""

    shares: Floats
    hot: Floats
    owners: Floats

    @classmethod
    def drawn(cls, shape: Shape, rng: np.random.Generator) -> "Load":
        """Owners hash to partitions by chance."""
        sizes: Floats = np.arange(1, shape.owners + 1, dtype=np.float64) ** -shape.skew
        sizes *= (1 - shape.hot_share - shape.hot_owner_share) / sizes.sum()
        shares = _spread(sizes, shape.partitions, rng)
        hot = _spread(np.full(shape.owners // shape.tenants, shape.hot_share * shape.tenants / shape.owners),
                      shape.partitions, rng)  # fmt: skip
        hot[0] += shape.hot_owner_share
        return cls(shares + hot, hot, sizes)


def _spread(sizes: Floats, partitions: int, rng: np.random.Generator) -> Floats:
    spread: Floats = np.bincount(rng.integers(partitions, size=len(sizes)), sizes, partitions).astype(np.float64)
    return spread


def in_memory(shape: Shape, costs: Costs, owners: Floats) -> float:
    """The share of questions whose owner is in memory: who was asked about last stays, while there is room (Che's
    approximation of a cache that drops who was not asked for longest)."""
    room = shape.cache_bytes * shape.members / costs.hot_owner_bytes
    if room >= len(owners):
        return 1.0
    rates = owners / owners.sum()
    low, high = 0.0, 1e12  # how many questions to all go by until an owner leaves
    while high - low > 1e-6 * high:
        stays = (low + high) / 2
        low, high = (stays, high) if -np.expm1(-rates * stays).sum() < room else (low, stays)
    return float((rates * -np.expm1(-rates * low)).sum())


def partition_bytes(shape: Shape, costs: Costs) -> float:
    """Of a partition on disk, where all owners have their memories."""
    return shape.owners * shape.memories * costs.disk_bytes_a_message / shape.partitions
