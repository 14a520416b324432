"""Events that change very many records, and the items that wait for them. They are applied in short steps.

A forget event may match very many memories, or a memory with very many edges or versions. A message may merge two
episodes: then all members of one move to the other. Each step stores the event's progress, so a restarted process
continues there. The end of each step depends on stored data only, so a crash does not change the resulting state.

The event itself is applied after its last step. Until then its position does not advance. Later records of its log
wait, because a position means that all records before it are applied. Queries of the owner wait, because they would see
half of the effects. Other logs, state partitions and owners continue."""

import base64
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.events import MemoryForget, Message
from recallflow.operators import redaction
from recallflow.operators.derived import with_derived
from recallflow.operators.episodes import join
from recallflow.operators.events import Item, Refused, Write, decode, event_time
from recallflow.operators.graph.graph_events import attempt, update_graph
from recallflow.operators.guard import retry_once
from recallflow.operators.rules import Rules
from recallflow.operators.view import View
from recallflow.owner import Owner
from recallflow.records import Position, Principal, Record, Refusal
from recallflow.state import keys
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.partition import Partition, Values
from recallflow.state.rows import Entry, EpisodeRow

STEP = "state"
RELEASED_MAX = 100  # waiting items that are processed between two batches
# Limits of one step, which takes less than 100 ms on a busy core.
READ_MAX = 4_000  # memories
STEP_WEIGHT = 4_000  # changed links and other records, in units of `GraphWriter.weigh`
_MEMORY_WEIGHT = 8  # the cost of a memory without links, in links
_VERSIONS_A_LINK = 8  # past versions at the cost of one link


@dataclass(slots=True)
class Work:
    """The progress of an event in steps."""

    write: Write
    change: int  # the event's number among its owner's, the same in all steps
    cursor: int = 0  # the sequence number of the next memory to read
    found: bool = False  # a step had an effect
    synced: bool = True  # all graph writes succeeded
    done: bool = False  # no step is left, so the event can be applied now
    error: InvalidRecord | None = None  # the reason why it cannot be applied

    def is_of(self, record: Record) -> bool:
        """Return whether the work is for this record. Lines of a file that is read again may reuse its position."""
        own = self.write.record
        return (own.position, own.value) == (record.position, record.value)

    def encode(self) -> bytes:
        """Encode the progress without its error, which the next attempt repeats."""
        record = encode_record(self.write.record)
        return orjson.dumps([record, self.change, self.cursor, self.found, self.synced, self.done])

    @classmethod
    def decode(cls, data: bytes) -> "Work":
        record, *rest = orjson.loads(data)
        write = decode(decode_record(record))
        if not isinstance(write, Write):
            raise TypeError("the stored record is not a memory event")
        return cls(write, *rest)


def may_be_large(hot: HotOwner, write: Write) -> bool:
    """Return whether an event might need steps. This check is cheap; `is_large` is exact and reads more."""
    if isinstance(write.event, Message):
        episodes = hot.episodes(write.event.session_id)
        return len(episodes) > 1 and event_time(write)[0] < episodes[-1].start_ms
    return isinstance(write.event, MemoryForget)


def is_large(view: View, write: Write) -> bool:
    """Return whether an event needs steps: it was not applied before, and exceeds one step."""
    event = write.event
    if isinstance(event, Message):
        if event.id is not None and view.current(event.id) is not None:
            return False
        if (pair := _episodes_to_merge(view, write)) is None:
            return False
        return len(view.graph.members(node_key(EPISODE_KIND, pair[0]), STEP_WEIGHT + 1)) > STEP_WEIGHT
    if not isinstance(event, MemoryForget) or (event.id is not None and view.applied_digest(event.id) is not None):
        return False
    weight = 0
    for read_count, entry in enumerate(_candidates(view, event, 0)):
        if _matches(view, entry, event):
            weight += sum(_weight(view, one) for one in with_derived(view, entry))
        if weight > STEP_WEIGHT or read_count == READ_MAX:
            return True
    return False


def memories_to_forget(view: View, event: MemoryForget) -> list[Entry]:
    """Return the memories that an event forgets, each after those derived from it. They fit into one step."""
    matching = [entry for entry in _candidates(view, event, 0) if _matches(view, entry, event)]
    found = {one.seq: one for entry in matching for one in with_derived(view, entry)}
    return [*found.values()]


def _forget(view: View, work: Work, event: MemoryForget) -> Work:
    """Forget memories up to the limit of a step. A memory over it first loses edges and versions in further steps."""
    cursor, budget, done = work.cursor, STEP_WEIGHT, True
    for read_count, entry in enumerate(_candidates(view, event, work.cursor)):
        if read_count == READ_MAX:
            done = False
            break
        if _matches(view, entry, event):
            for one in with_derived(view, entry):
                weight = _weight(view, one)
                if weight > budget and (budget < STEP_WEIGHT or _thin(view, work, one)):
                    done = False
                    break
                view.forget(one)
                budget -= weight
            if not done:
                break
        cursor = entry.seq + 1
    synced = update_graph(view, None, work.write.record.position, retries=0)
    found, synced = work.found or budget < STEP_WEIGHT, work.synced and synced
    return replace(work, cursor=cursor, found=found, synced=synced, done=done)


def _candidates(view: View, event: MemoryForget, cursor: int) -> Iterator[Entry]:
    """Yield the memories that the event may match, from the cursor on."""
    if event.memory_id is None:
        return view.entries(cursor)
    current = view.current(event.memory_id)
    return iter([] if current is None or current.forgotten else [view.entry(current.seq)])


def _matches(view: View, entry: Entry, event: MemoryForget) -> bool:
    """Return whether a memory matches the id or the filter, and the sender may change it."""
    condition = event.filter
    if not view.may_change(entry):
        return False
    if condition is None:
        return entry.id == event.memory_id
    return (
        condition.session_id in (None, entry.session_id)
        and condition.category in (None, entry.category)
        and (condition.tag is None or condition.tag in entry.tags)
        and (condition.older_than is None or entry.created_ms < condition.older_than)
    )


def _weight(view: View, entry: Entry) -> int:
    """Estimate the cost of forgetting a memory, in links."""
    return _MEMORY_WEIGHT + entry.version // _VERSIONS_A_LINK + view.writer.weigh(entry.id, entry.seq, STEP_WEIGHT)


def _thin(view: View, work: Work, entry: Entry) -> bool:
    """Remove some of a memory's edges and past versions, up to the limit of a step. Return whether any were removed. If
    none were, also because of an internal error, the caller forgets the memory as a whole."""
    position = work.write.record.position
    attempt(view.graph, position, partial(view.writer.thin, entry.id, entry.seq, STEP_WEIGHT))
    return view.forget_versions(entry, STEP_WEIGHT * _VERSIONS_A_LINK) or bool(view.graph.staged.effects)


def _merge(view: View, work: Work) -> Work:
    """Move members of one episode to the other, up to the limit of a step. The event itself moves the rest."""
    pair = _episodes_to_merge(view, work.write)
    moved = 0

    def move(merged_id: str, into_id: str) -> None:
        nonlocal moved
        moved = view.writer.merge_episodes(merged_id, into_id, STEP_WEIGHT)
        view.graph.prune()

    synced = pair is None or attempt(view.graph, work.write.record.position, partial(move, *pair))
    return replace(work, found=True, done=not synced or moved < STEP_WEIGHT)


def _episodes_to_merge(view: View, write: Write) -> tuple[str, str] | None:
    """Return the ids of two episodes that an event merges, the absorbed and the remaining one; None for no merge."""
    if not isinstance(write.event, Message):
        return None
    at_ms, logged = event_time(write)
    session_id = write.event.session_id
    candidate = EpisodeRow(view.newest + 1, "", session_id, at_ms, at_ms, logged=logged)
    into, *merged = join(view.episodes(session_id), candidate, view.rules.episode_gap_ms).changed
    return (merged[0].id, into.id) if merged else None


def encode_record(record: Record) -> list[Any]:
    """Return the fields of a record, as JSON stores them."""
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    flags = record.append_logged, record.silent, record.tombstone
    plain = [*record.position, _text(record.value), record.append_ms, _text(record.key), headers, *flags]
    verdict = (one and [*one] for one in (record.principal, record.refusal))
    return [*plain, *verdict, *([] if record.encoded is None else [_text(record.encoded)])]


def decode_record(encoded: list[Any]) -> Record:
    *position, value, append_ms, key, headers, append_logged, silent, tombstone, sender, refusal = encoded[:12]
    principal = None if sender is None else Principal(sender[0], None if sender[1] is None else tuple(sender[1]))
    return Record(
        Position(*position),
        base64.b64decode(value),
        append_ms,
        _bytes(key),
        append_logged,
        None if headers is None else tuple((name, _bytes(text)) for name, text in headers),
        silent,
        tombstone,
        principal,
        None if refusal is None else Refusal(*refusal),
        encoded=_bytes(encoded[12]) if len(encoded) > 12 else None,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class LargeEvents:
    """The large events of one state partition, at most one per owner. Each step stores its progress."""

    def __init__(self, partition: Partition, owners: Owners, rules: Rules) -> None:
        self._partition, self._owners, self._rules = partition, owners, rules
        # Undecryptable entries are dropped: their events are read again, and refused.
        stored = [Work.decode(value) for _, value in partition.scan_readable(keys.WORK)]
        self._works = {work.write.owner: work for work in stored}

    def __bool__(self) -> bool:
        return any(not work.done for work in self._works.values())

    def is_at_work(self, owner: Owner) -> bool:
        work = self._works.get(owner)
        return work is not None and not work.done

    def unfinished(self, source: str) -> list[Item]:
        """Return the events of a log that an earlier process left unfinished."""
        writes = [work.write for work in self._works.values() if work.write.record.position.source == source]
        return sorted(writes, key=lambda write: write.record.position.offset)

    def begin(self, hot: HotOwner, write: Write) -> bool:
        """Return whether the event needs steps. Its start is stored, so that queries wait after a crash too."""
        if not may_be_large(hot, write):
            return False
        view = View(self._partition, hot, write, self._rules)
        if not is_large(view, write):
            return False
        work = Work(write, view.change)
        self._partition.stage({keys.work(hot.key): work.encode()})
        self._works[write.owner] = work
        return True

    def advance(self) -> None:
        for owner, work in self._works.items():
            if not work.done:
                position = work.write.record.position
                try:
                    retry_once(STEP, position, self._step, owner, undo=partial(self._owners.drop, owner))
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
        for owner in owners:
            self._works.pop(owner, None)

    def _step(self, owner: Owner) -> None:
        work = self._works[owner]
        view = View(self._partition, self._owners.get(owner), work.write, self._rules, work.change)
        if isinstance(work.write.event, MemoryForget):
            after = _forget(view, work, work.write.event)
        else:
            after = _merge(view, work)
        view.stage({self._key(owner): after.encode()})
        self._works[owner] = after
        view.publish()

    def _key(self, owner: Owner) -> bytes:
        return keys.work(self._partition.keyring.owner(owner))


class Queue:
    """The waiting items of one state partition. Items of a log, and of an owner, keep their order."""

    def __init__(self, is_at_work: Callable[[Owner], bool], query_topic: str | None) -> None:
        """`query_topic` is a log of queries only. Its records need not be processed in the order of the log."""
        self._is_at_work, self._query_topic = is_at_work, query_topic
        self._waiting: deque[Item] = deque()
        self._counts: Counter[str | Owner] = Counter()  # of waiting items, by log and by owner

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def must_wait(self, item: Item) -> bool:
        """Return whether an item must follow a waiting one, or its owner's event has steps left."""
        if self._waiting and any(self._counts[sequence] for sequence in self._sequences(item)):
            return True
        return not isinstance(item, Refused) and self._is_at_work(item.owner)

    def hold(self, item: Item, *, first: bool = False) -> None:
        """Add an item, at the end, or as the `first`."""
        self._counts.update(self._sequences(item))
        self._waiting.appendleft(item) if first else self._waiting.append(item)

    def release(self) -> Iterator[Item]:
        """Remove and yield items that are due, in order. Process each before requesting the next."""
        for _ in range(min(RELEASED_MAX, len(self._waiting))):
            item = self._waiting[0]
            if not isinstance(item, Refused) and self._is_at_work(item.owner):
                return
            self._waiting.popleft()
            self._counts.subtract(self._sequences(item))
            yield item

    def items(self) -> list[Item]:
        return [*self._waiting]

    def _sequences(self, item: Item) -> list[str | Owner]:
        """Return the log and the owner in whose order an item is processed."""
        position = item.record.position
        logs: list[str | Owner] = [] if position.topic == self._query_topic else [position.source]
        return logs if isinstance(item, Refused) else [*logs, item.owner]
