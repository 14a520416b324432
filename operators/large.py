"""Large events that are applied in steps (`work.py`), and the items that wait for them.

Later records of the same log wait, because a position means that all records before it are applied. Queries of the
owner wait, because they would see half of the effects. Other logs, state partitions and owners continue."""

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
    """The large events of one state partition, at most one per owner. Each step stores its progress."""

    def __init__(self, partition: Partition, owners: Owners, rules: Rules) -> None:
        self._partition = partition
        self._owners = owners
        self._rules = rules
        # Unreadable entries are dropped: their event is read again, and refused.
        stored = [Work.decode(value) for _, value in partition.scan_readable(keys.WORK)]
        self._works = {work.write.owner: work for work in stored}

    def __bool__(self) -> bool:
        """Return whether a step is due."""
        return any(not work.done for work in self._works.values())

    def is_at_work(self, owner: Owner) -> bool:
        """Return whether an owner's event has steps left."""
        work = self._works.get(owner)
        return work is not None and not work.done

    def begun(self, source: str) -> list[Item]:
        """Return the events of a log that an earlier process left unfinished."""
        writes = [work.write for work in self._works.values() if work.write.record.position.source == source]
        return sorted(writes, key=lambda write: write.record.position.offset)

    def begin(self, hot: HotOwner, write: Write) -> bool:
        """Return whether the event needs steps. Then store its start, so that after a crash earlier queries wait for it
        too."""
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
        """Do one step of one event."""
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
        """Return the completed work of this event, if it took steps."""
        work = self._works.get(write.owner)
        return work if work is not None and work.is_of(write.record) else None

    def end(self, owner: Owner) -> Values:
        """Return the deletion of an owner's stored progress, after an event of the owner is applied."""
        return {} if self._works.pop(owner, None) is None else {self._key(owner): None}

    def forget(self, owners: Collection[Owner]) -> None:
        """Drop the work of erased owners."""
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
    """The waiting items of one state partition, in the order of their logs."""

    def __init__(self, is_at_work: Callable[[Owner], bool], query_topic: str | None) -> None:
        """Args:
        is_at_work: Returns whether an owner's event has steps left.
        query_topic: A log of queries only, whose positions have no meaning for other queries.
        """
        self._is_at_work = is_at_work
        self._query_topic = query_topic
        self._held: deque[Item] = deque()
        self._behind: Counter[str | Owner] = Counter()  # logs and owners of held items

    def __bool__(self) -> bool:
        return bool(self._held)

    def must_wait(self, item: Item) -> bool:
        """Return whether an item follows a held one, or its owner's event has steps left."""
        if self._held and any(self._behind[line] for line in self._lines(item)):
            return True
        return not isinstance(item, Refused) and self._is_at_work(item.owner)

    def hold(self, item: Item, *, first: bool = False) -> None:
        """Hold an item, behind earlier ones."""
        self._behind.update(self._lines(item))
        self._held.appendleft(item) if first else self._held.append(item)

    def released(self) -> Iterator[Item]:
        """Yield held items that are due, in order. Process each before requesting the next."""
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
        """Return the orders that an item belongs to: its log and its owner."""
        position = item.record.position
        lines: list[str | Owner] = [] if position.topic == self._query_topic else [position.source]
        return lines if isinstance(item, Refused) else [*lines, item.owner]
