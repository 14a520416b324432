"""What waits while an event is applied in steps: in order, with nobody else waiting for it.

That is what comes behind the event in its log, as a position says that all before it is applied; and every question
about its owner, who would see half of it otherwise. Other logs, other state partitions and other owners' questions go
on.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial

from recallflow.errors import InvalidRecord
from recallflow.operators.apply import Rules
from recallflow.operators.events import Item, Refused, Write
from recallflow.operators.guard import twice
from recallflow.operators.view import View
from recallflow.operators.work import Work, is_large, may_be_large, step
from recallflow.owner import Owner
from recallflow.records import Record
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition

STEP = "state"
AT_ONCE = 100  # items let go between two batches


class Queue:
    """The events of one state partition that are applied in steps, by owner, and the items that wait for them."""

    def __init__(self, partition: Partition, hot_owner: Callable[[Owner], HotOwner], rules: Rules) -> None:
        self._partition = partition
        self._hot_owner = hot_owner
        self._rules = rules
        stored = [Work.decode(value) for _, value in partition.scan(keys.WORK)]
        self._works = {work.write.owner: work for work in stored}
        self._held: deque[Item] = deque()
        self._behind: Counter[str | Owner] = Counter()  # the logs and the owners of what is held

    def __bool__(self) -> bool:
        """Whether there is anything to go on with."""
        return bool(self._held) or any(not work.done for work in self._works.values())

    # ------------------------------------------------------------------ waiting

    def must_wait(self, item: Item) -> bool:
        """Whether an item comes behind one that waits, or its owner is at work."""
        if not self._held and not self._works:
            return False
        return any(self._behind[place] for place in self._places(item)) or self._is_at_work(item)

    def hold(self, item: Item, *, first: bool = False) -> None:
        """Sets an item aside, behind those that wait."""
        self._behind.update(self._places(item))
        self._held.appendleft(item) if first else self._held.append(item)

    def released(self) -> Iterator[Item]:
        """Some of the items whose turn it is, in order; each is to be dealt with before the next is asked for."""
        for _ in range(min(AT_ONCE, len(self._held))):
            if not self._held or self._is_at_work(self._held[0]):
                return
            item = self._held.popleft()
            self._behind.subtract(self._places(item))
            yield item

    def records(self) -> list[Record]:
        """What waits, for the snapshot."""
        return [item.record for item in self._held]

    def is_at_work(self, owner: Owner) -> bool:
        """Whether steps are left to be taken for an owner."""
        work = self._works.get(owner)
        return work is not None and not work.done

    def _is_at_work(self, item: Item) -> bool:
        owner = _owner(item)
        return owner is not None and self.is_at_work(owner)

    def _places(self, item: Item) -> list[str | Owner]:
        """Where an item has its place in a line: its owner's, and its log's, but for logs of questions only, whose
        positions say nothing."""
        position, owner = item.record.position, _owner(item)
        log = [] if position.topic == self._rules.query_topic else [position.source]
        return [*log, *([] if owner is None else [owner])]

    # ------------------------------------------------------------------ work

    def begin(self, write: Write) -> bool:
        """Whether the event needs steps; then it waits for them. They are marked as begun: a question that comes after
        a kill, but before the event, waits as well."""
        hot = self._hot_owner(write.owner)
        if not may_be_large(hot, write):
            return False
        view = View(self._partition, hot, write)
        writer = self._rules.graph_writer(view.graph, self._rules.similarity)
        if not is_large(view, writer, write, self._rules.episode_gap_ms):
            return False
        self._put(write.owner, Work(write, view.change))
        self.hold(write, first=True)
        return True

    def taken(self, write: Write) -> Work | None:
        """The work that was done for this event; what another event left behind, whose log is gone, ends here."""
        work = self._works.get(write.owner)
        if work is None or work.is_of(write.record):
            return work
        self.end(write.owner)
        return None

    def end(self, owner: Owner) -> None:
        """The event is applied: nothing is left to remember of its steps."""
        if self._works.pop(owner, None) is not None:
            self._partition.stage({keys.work(self._hot_owner(owner).key): None})

    def advance(self, drop: Callable[[Owner], None]) -> None:
        """Takes one step of one event. `drop`: takes an owner out of memory."""
        for owner, work in self._works.items():
            if not work.done:
                position = work.write.record.position
                try:
                    twice(STEP, position, self._step, owner, undo=partial(drop, owner))
                except InvalidRecord as error:
                    work.done, work.error = True, error
                return

    def _step(self, owner: Owner) -> None:
        hot, work = self._hot_owner(owner), self._works[owner]
        view = View(self._partition, hot, work.write, work.change)
        writer = self._rules.graph_writer(view.graph, self._rules.similarity)
        after = step(view, writer, work, self._rules.episode_gap_ms)
        view.stage()
        self._put(owner, after)
        self._partition.commit()
        view.follow()

    def _put(self, owner: Owner, work: Work) -> None:
        self._works[owner] = work
        self._partition.stage({keys.work(self._hot_owner(owner).key): work.encode()})


def _owner(item: Item) -> Owner | None:
    return None if isinstance(item, Refused) else item.owner
