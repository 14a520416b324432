"""Work that is larger than one event's share, in steps: what an event does to very many records.

A forget may be about very many memories, or about one of very many edges or versions; a message may close the gap
between two episodes, and then all members of one of them go over to the other.

No step takes longer than a batch may. What is done so far, and for which event, is written with each step, so that a
killed process goes on where it was. The event itself is applied when its steps are through: until then its position has
not moved, and whatever comes behind it in its log or is about its owner waits (`queue.py`): nobody sees half of it.
Where steps begin and end follows from what is stored: the state is the same whoever is killed when.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import orjson

from recallflow.errors import InvalidRecord
from recallflow.events import MemoryForget, Message
from recallflow.operators.decode import decode
from recallflow.operators.episodes import join
from recallflow.operators.events import Write, event_time
from recallflow.operators.graph.sync import attempt, sync
from recallflow.operators.graph.write import GraphWriter
from recallflow.operators.snapshot import decode_record, encode_record
from recallflow.operators.view import View
from recallflow.records import Record
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner
from recallflow.state.rows import Entry, Episode

# Of one step, on a busy core each well below 100 ms.
LOOKED_AT = 4_000  # memories
SHARE = 4_000  # links and other records, as `GraphWriter.weigh` counts them
_MEMORY_WEIGHT = 8  # what a memory takes beside its links, and how many of its past versions take as long as one link


@dataclass(slots=True)
class Work:
    """What is done so far for an event. `change`: the owner's, one for all steps; `cursor`: the first
    memory that was not looked at; `found`: any was forgotten; `synced`: the graph is in step. `done`: the event may be
    applied now; `error`: why it cannot be."""

    write: Write
    change: int
    cursor: int = 0
    found: bool = False
    synced: bool = True
    done: bool = False
    error: InvalidRecord | None = None

    def is_of(self, record: Record) -> bool:
        """Whether this is the record. Lines that are fed anew may give its position to another one."""
        own = self.write.record
        return (own.position, own.value) == (record.position, record.value)

    def next(self, cursor: int, *, found: bool, synced: bool, done: bool) -> "Work":
        """After one more step."""
        return replace(self, cursor=cursor, found=self.found or found, synced=self.synced and synced, done=done)

    def encode(self) -> bytes:
        """For the store: an error is found again."""
        told = encode_record(self.write.record)
        return orjson.dumps([told, self.change, self.cursor, self.found, self.synced, self.done])

    @classmethod
    def decode(cls, data: bytes) -> "Work":
        record, *rest = orjson.loads(data)
        write = decode(decode_record(record))
        if not isinstance(write, Write):
            raise TypeError("steps are stored of a record that is no memory event")
        return cls(write, *rest)


def may_be_large(hot: HotOwner, write: Write) -> bool:
    """Whether an event is of the kind that may need steps: most are not, and need not be looked at further."""
    if isinstance(write.event, Message):
        episodes = hot.episodes(write.event.session_id)
        return len(episodes) > 1 and event_time(write)[0] < episodes[-1].start_ms
    return isinstance(write.event, MemoryForget)


def is_large(view: View, writer: GraphWriter, write: Write, gap_ms: int) -> bool:
    """Whether an event that was not applied before needs steps: there is more to look at, or to do, than one step
    takes."""
    event = write.event
    if isinstance(event, Message):
        if event.id is not None and view.current(event.id) is not None:
            return False
        merged = _merged(view, write, gap_ms)
        return merged is not None and len(view.graph.members(node_key(EPISODE_KIND, merged[0]), SHARE + 1)) > SHARE
    if not isinstance(event, MemoryForget) or (event.id is not None and view.was_applied(event.id) is not None):
        return False
    share = 0
    for looked_at, entry in enumerate(_candidates(view, event, 0)):
        if matches(entry, event):
            share += _weight(writer, entry)
        if share > SHARE or looked_at == LOOKED_AT:
            return True
    return False


def to_forget(view: View, event: MemoryForget) -> list[Entry]:
    """The memories that an event forgets, where one step is enough."""
    return [entry for entry in _candidates(view, event, 0) if matches(entry, event)]


def step(view: View, writer: GraphWriter, work: Work, gap_ms: int) -> Work:
    """Does the next part of what the event does."""
    if isinstance(work.write.event, MemoryForget):
        return _forget(view, writer, work, work.write.event)
    return _merge(view, writer, work, gap_ms)


# ---------------------------------------------------------------------- forgetting


def _forget(view: View, writer: GraphWriter, work: Work, event: MemoryForget) -> Work:
    """Forgets memories up to a step's share. One that is more than that alone is thinned out first."""
    cursor, left, done = work.cursor, SHARE, True
    for looked_at, entry in enumerate(_candidates(view, event, work.cursor)):
        if looked_at == LOOKED_AT:
            done = False
            break
        if matches(entry, event):
            weight = _weight(writer, entry)
            if weight > left and (left < SHARE or _thin(view, writer, work, entry)):
                done = False
                break
            view.forget(entry)
            left -= weight
        cursor = entry.seq + 1
    synced = sync(view, writer, None, work.write.record.position, retries=0)
    return work.next(cursor, found=left < SHARE, synced=synced, done=done)


def _candidates(view: View, event: MemoryForget, cursor: int) -> Iterator[Entry]:
    """Entries of the memories that are to be looked at next."""
    if event.memory_id is None:
        return view.entries(cursor)
    current = view.current(event.memory_id)
    return iter([] if current is None or current.forgotten else [view.entry(current.seq)])


def matches(entry: Entry, event: MemoryForget) -> bool:
    """Whether a memory is the one named, or fulfils all conditions of the filter."""
    wanted = event.filter
    if wanted is None:
        return entry.id == event.memory_id
    return (
        wanted.session_id in (None, entry.session_id)
        and wanted.category in (None, entry.category)
        and (wanted.tag is None or wanted.tag in entry.tags)
        and (wanted.older_than is None or entry.created_ms < wanted.older_than)
    )


def _weight(writer: GraphWriter, entry: Entry) -> int:
    """Estimates how many records forgetting a memory touches."""
    return _MEMORY_WEIGHT + entry.version // _MEMORY_WEIGHT + writer.weigh(entry.id, entry.seq, SHARE)


def _thin(view: View, writer: GraphWriter, work: Work, entry: Entry) -> bool:
    """Removes a step's share of a memory's edges and past versions. Returns whether there were any; where our own code
    fails at it, the memory is forgotten with all it has."""
    position = work.write.record.position
    attempt(view.graph, position, partial(writer.thin, entry.id, entry.seq, SHARE))
    return view.forget_versions(entry, SHARE * _MEMORY_WEIGHT) or bool(view.graph.staged.effects)


# ---------------------------------------------------------------------- merging episodes


def _merge(view: View, writer: GraphWriter, work: Work, gap_ms: int) -> Work:
    """Moves members of one episode over to the other. What is left of them moves with the event itself."""
    pair = _merged(view, work.write, gap_ms)
    moved = 0

    def move(taken_id: str, into_id: str) -> None:
        nonlocal moved
        moved = writer.merge_episodes(taken_id, into_id, SHARE)
        view.graph.prune()

    synced = pair is None or attempt(view.graph, work.write.record.position, partial(move, *pair))
    return work.next(work.cursor, found=True, synced=True, done=not synced or moved < SHARE)


def _merged(view: View, write: Write, gap_ms: int) -> tuple[str, str] | None:
    """Ids of the episode that a message has taken in by another one, and of that one."""
    if not isinstance(write.event, Message):
        return None
    at_ms, logged = event_time(write)
    session_id = write.event.session_id
    moment = Episode(view.newest + 1, "", session_id, at_ms, at_ms, logged=logged)
    into, *taken = join(view.episodes(session_id), moment, gap_ms).changed
    return (taken[0].id, into.id) if taken else None
