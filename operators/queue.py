"""What waits while an event is applied in steps: in order, with nobody else waiting for it.

That is what comes behind the event in its log, as a position says that all before it is applied; and every question
about its owner, who would see half of it otherwise. Other logs, other state partitions and other owners' questions go
on.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator

from recallflow.operators.events import Item, Refused
from recallflow.owner import Owner
from recallflow.records import Record

AT_ONCE = 100  # items released between two batches


class Queue:
    """The items of one state partition that are held, in the order of their logs."""

    def __init__(self, is_at_work: Callable[[Owner], bool], query_topic: str | None) -> None:
        """`is_at_work`: whether steps of an owner's event are still to be done. `query_topic`: a log of questions only,
        whose positions say nothing."""
        self._is_at_work = is_at_work
        self._query_topic = query_topic
        self._held: deque[Item] = deque()
        self._behind: Counter[str | Owner] = Counter()  # the logs and the owners of what is held

    def __bool__(self) -> bool:
        return bool(self._held)

    def must_wait(self, item: Item) -> bool:
        """Whether an item comes behind one that is held, or its owner is at work."""
        if self._held and any(self._behind[line] for line in self._lines(item)):
            return True
        return not isinstance(item, Refused) and self._is_at_work(item.owner)

    def hold(self, item: Item, *, first: bool = False) -> None:
        """Sets an item aside, behind those that wait."""
        self._behind.update(self._lines(item))
        self._held.appendleft(item) if first else self._held.append(item)

    def released(self) -> Iterator[Item]:
        """Some of the items whose turn it is, in order; each is to be dealt with before the next is asked for."""
        for _ in range(min(AT_ONCE, len(self._held))):
            if not self._held or (not isinstance(item := self._held[0], Refused) and self._is_at_work(item.owner)):
                return
            self._held.popleft()
            self._behind.subtract(self._lines(item))
            yield item

    def records(self) -> list[Record]:
        """What is held, for the snapshot."""
        return [item.record for item in self._held]

    def _lines(self, item: Item) -> list[str | Owner]:
        """The lines that an item stands in: its log's and its owner's."""
        position = item.record.position
        lines: list[str | Owner] = [] if position.topic == self._query_topic else [position.source]
        return lines if isinstance(item, Refused) else [*lines, item.owner]
