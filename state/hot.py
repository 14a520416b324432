"""The owners a worker keeps in memory, within a byte budget, least recently used out first."""

from collections import OrderedDict

from recallflow.owner import Owner
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition

PACKED_MOST = 2_048  # memories between two batches


class HotOwners:
    """A least-recently-used cache of owners, by bytes.

    Nothing is dropped while a batch is being applied: an owner may carry effects that are not committed yet. The
    worker calls `shrink` between batches.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._owners: OrderedDict[Owner, HotOwner] = OrderedDict()
        self._weights: dict[Owner, int] = {}
        self._touched: set[Owner] = set()
        self._total_bytes = 0

    def of(self, partition: Partition) -> "Owners":
        """Those of one state partition."""
        return Owners(self, partition)

    def get(self, partition: Partition, owner: Owner) -> HotOwner:
        """The owner, loaded on first touch."""
        hot = self._owners.get(owner)
        if hot is None:
            hot = self._owners[owner] = HotOwner(partition, owner)
        else:
            self._owners.move_to_end(owner)
        self._touched.add(owner)
        return hot

    def drop(self, owner: Owner) -> None:
        """Takes the owner out of memory, if it is there: it is loaded again from the store."""
        if self._owners.pop(owner, None) is not None:
            self._touched.discard(owner)
            self._total_bytes -= self._weights.pop(owner, 0)

    def keep_segments(self, model: str, dimension: int) -> None:
        """Packs what is complete of the indexes of owners touched since the last `shrink`, within a share of work: it
        holds up everybody. What is over it waits until its owner is touched again."""
        packed = 0
        for owner in self._touched:
            while packed < PACKED_MOST and (memories := self._owners[owner].keep_segment(model, dimension)):
                packed += memories

    def shrink(self) -> None:
        """Weighs what was touched since the last call and drops the least recently used until the budget holds."""
        for owner in self._touched:
            weight = self._owners[owner].size_bytes()
            self._total_bytes += weight - self._weights.get(owner, 0)
            self._weights[owner] = weight
        self._touched.clear()
        while self._total_bytes > self._budget_bytes and self._owners:
            owner, _ = self._owners.popitem(last=False)
            self._total_bytes -= self._weights.pop(owner)

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._owners)


class Owners:
    """The owners of one state partition, as whoever applies or answers reaches them."""

    def __init__(self, hot_owners: HotOwners, partition: Partition) -> None:
        self._hot_owners = hot_owners
        self._partition = partition

    def get(self, owner: Owner) -> HotOwner:
        """The owner, loaded on first touch."""
        return self._hot_owners.get(self._partition, owner)

    def drop(self, owner: Owner) -> None:
        """Takes an owner out of memory who may be half changed there; the store has all of the events before."""
        self._hot_owners.drop(owner)
