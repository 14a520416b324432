"""Events applied in steps, as their work is larger than one event's share (`work.py`), and what waits meanwhile.

What waits is what comes behind such an event in its log, as a position says that all before it is applied; and every
query about its owner, which would see half of it otherwise. Other logs, other state partitions and queries of other
owners go on.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from functools import partial

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.operators import redaction
from recallflow.operators.events import Item, Refused, Write
from recallflow.operators.guard import twice
from recallflow.operators.rules import Rules
from recallflow.operators.view import View
from recallflow.operators.work import Work, is_large, may_be_large, step
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.partition import Partition, Values

STEP = "state"
AT_ONCE = 100  # items released between two batches


class LargeEvents:
    """The large events of one state partition, one an owner at most. What is done of them is stored with each step."""

    def __init__(self, partition: Partition, owners: Owners, rules: Rules) -> None:
        self._partition = partition
        self._owners = owners
        self._rules = rules
        # What cannot be opened is forgotten: its event comes again, and is refused.
        stored = [Work.decode(value) for _, value in partition.scan_readable(keys.WORK)]
        self._works = {work.write.owner: work for work in stored}

    def __bool__(self) -> bool:
        """Whether there is a step to do."""
        return any(not work.done for work in self._works.values())

    def is_at_work(self, owner: Owner) -> bool:
        """Whether steps of an owner's event are still to be done."""
        work = self._works.get(owner)
        return work is not None and not work.done

    def begun(self, source: str) -> list[Item]:
        """The events of a log whose steps an earlier process did not come to the end of."""
        writes = [work.write for work in self._works.values() if work.write.record.position.source == source]
        return sorted(writes, key=lambda write: write.record.position.offset)

    def begin(self, hot: HotOwner, write: Write) -> bool:
        """Whether the event needs steps; then they are marked as begun: a question that comes after a kill, but before
        the event, waits as well."""
        if not may_be_large(hot, write):
            return False
        view = View(self._partition, hot, write)
        writer = self._rules.graph_writer(view.graph, self._rules.similarity)
        if not is_large(view, writer, write, self._rules.episode_gap_ms):
            return False
        work = Work(write, view.change)
        self._partition.stage({keys.work(hot.key): work.encode()})
        self._works[write.owner] = work
        return True

    def advance(self) -> None:
        """Does one step of one event."""
        for owner, work in self._works.items():
            if not work.done:
                position = work.write.record.position
                try:
                    twice(STEP, position, self._step, owner, undo=partial(self._owners.drop, owner))
                except InvalidRecord as error:
                    work.done, work.error = True, error
                except DecryptionFailed:
                    self._owners.drop(owner)
                    work.done, work.error = True, redaction.unreadable()
                return

    def done(self, write: Write) -> Work | None:
        """The work that was done for this event, if it took steps."""
        work = self._works.get(write.owner)
        return work if work is not None and work.is_of(write.record) else None

    def end(self, owner: Owner) -> Values:
        """An event of the owner is applied: what to delete, as nothing is left to remember of steps. Also of those of
        another event, whose log is gone."""
        return {} if self._works.pop(owner, None) is None else {self._key(owner): None}

    def forget(self, owners: Collection[Owner]) -> None:
        """Drops what was begun for owners who are erased: what of it is held comes after."""
        for owner in owners:
            self._works.pop(owner, None)

    def _step(self, owner: Owner) -> None:
        work = self._works[owner]
        view = View(self._partition, self._owners.get(owner), work.write, work.change)
        writer = self._rules.graph_writer(view.graph, self._rules.similarity)
        after = step(view, writer, work, self._rules.episode_gap_ms)
        view.stage({self._key(owner): after.encode()})
        self._works[owner] = after
        view.publish()

    def _key(self, owner: Owner) -> bytes:
        return keys.work(self._partition.keyring.owner(owner))


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

    def items(self) -> list[Item]:
        """Return the held items."""
        return [*self._held]

    def _lines(self, item: Item) -> list[str | Owner]:
        """The lines that an item stands in: its log's and its owner's."""
        position = item.record.position
        lines: list[str | Owner] = [] if position.topic == self._query_topic else [position.source]
        return lines if isinstance(item, Refused) else [*lines, item.owner]
