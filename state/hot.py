"""The owners a worker keeps in memory, within a byte budget, least recently used out first."""

from collections import OrderedDict
from collections.abc import Callable

from recallflow.owner import Owner
from recallflow.state.hot_owner import HotOwner

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

    def get(self, owner: Owner, load: Callable[[], HotOwner]) -> HotOwner:
        """The owner, loaded on first touch."""
        if owner in self._owners:
            self._owners.move_to_end(owner)
        else:
            self._owners[owner] = load()
        self._touched.add(owner)
        return self._owners[owner]

    def drop(self, owner: Owner) -> None:
        """Takes the owner out of memory, if it is there: it is loaded again from what is committed by then."""
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
