"""Events that change very many records: they are applied in steps, none of which keeps its worker for long.

A forget may be about very many memories, or about one that has very many edges or versions. A message may close the gap
between two episodes: then all members of one of them become members of the other.

Each step also stores how far the work is, so that a process that was killed continues there. The event itself is
applied after its last step. Until then its position does not move, and `large.py` holds whatever comes behind it in its
log and whatever is about its owner, so that nobody sees half of it. Where a step ends depends only on what is stored:
the state is the same, whenever a process was killed.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from recallflow.errors import InvalidRecord
from recallflow.events import MemoryForget, Message
from recallflow.operators.decode import decode
from recallflow.operators.derived import with_derived
from recallflow.operators.episodes import join
from recallflow.operators.events import Write, event_time
from recallflow.operators.graph.sync import attempt, sync
from recallflow.operators.graph.write import GraphWriter
from recallflow.operators.view import View
from recallflow.records import Position, Principal, Record, Refusal
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner
from recallflow.state.rows import Entry, Episode

# One step does at most so much: on a busy core each takes well below 100 ms.
LOOKED_AT = 4_000  # memories that it reads
SHARE = 4_000  # links and other records that it changes, as `GraphWriter.weigh` counts them
_MEMORY_WEIGHT = 8  # a memory without links weighs as much as so many links
_VERSIONS_A_LINK = 8  # so many past versions weigh as much as one link


@dataclass(slots=True)
class Work:
    """How far the steps of an event are. `change`: the event's number among its owner's, the same in all steps.
    `cursor`: the sequence number from which memories are still to be read. `found`: a memory was forgotten. `synced`:
    the graph was written wherever it was tried. `done`: the event can be applied now. `error`: why it cannot be."""

    write: Write
    change: int
    cursor: int = 0
    found: bool = False
    synced: bool = True
    done: bool = False
    error: InvalidRecord | None = None

    def is_of(self, record: Record) -> bool:
        """Whether the work is for this record. Lines that are fed anew may give its position to another one."""
        own = self.write.record
        return (own.position, own.value) == (record.position, record.value)

    def next(self, cursor: int, *, found: bool, synced: bool, done: bool) -> "Work":
        """The work after one more step."""
        return replace(self, cursor=cursor, found=self.found or found, synced=self.synced and synced, done=done)

    def encode(self) -> bytes:
        """The work as it is stored, without its error: the next attempt fails the same way."""
        record = encode_record(self.write.record)
        return orjson.dumps([record, self.change, self.cursor, self.found, self.synced, self.done])

    @classmethod
    def decode(cls, data: bytes) -> "Work":
        """What `encode` made."""
        record, *rest = orjson.loads(data)
        write = decode(decode_record(record))
        if not isinstance(write, Write):
            raise TypeError("steps are stored of a record that is no memory event")
        return cls(write, *rest)


def may_be_large(hot: HotOwner, write: Write) -> bool:
    """Whether an event might need steps. Most cannot, which costs little to find out."""
    if isinstance(write.event, Message):
        episodes = hot.episodes(write.event.session_id)
        return len(episodes) > 1 and event_time(write)[0] < episodes[-1].start_ms
    return isinstance(write.event, MemoryForget)


def is_large(view: View, writer: GraphWriter, write: Write, gap_ms: int) -> bool:
    """Whether an event needs steps: it was not applied before, and does more than fits into one step."""
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
        if _matches(view, entry, event):
            share += sum(_weight(writer, one) for one in with_derived(view, entry))
        if share > SHARE or looked_at == LOOKED_AT:
            return True
    return False


def to_forget(view: View, event: MemoryForget) -> list[Entry]:
    """The memories that an event forgets, those first that were made of others; all of them fit into one step."""
    matching = [entry for entry in _candidates(view, event, 0) if _matches(view, entry, event)]
    found = {one.seq: one for entry in matching for one in with_derived(view, entry)}
    return [*found.values()]


def step(view: View, writer: GraphWriter, work: Work, gap_ms: int) -> Work:
    """Does the next step of an event's work."""
    if isinstance(work.write.event, MemoryForget):
        return _forget(view, writer, work, work.write.event)
    return _merge(view, writer, work, gap_ms)


# ---------------------------------------------------------------------- forgetting


def _forget(view: View, writer: GraphWriter, work: Work, event: MemoryForget) -> Work:
    """Forgets memories up to a step's share. A memory that weighs more than the share is thinned out first, over as
    many steps as it takes."""
    cursor, left, done = work.cursor, SHARE, True
    for looked_at, entry in enumerate(_candidates(view, event, work.cursor)):
        if looked_at == LOOKED_AT:
            done = False
            break
        if _matches(view, entry, event):
            for one in with_derived(view, entry):
                weight = _weight(writer, one)
                if weight > left and (left < SHARE or _thin(view, writer, work, one)):
                    done = False
                    break
                view.forget(one)
                left -= weight
            if not done:
                break
        cursor = entry.seq + 1
    synced = sync(view, writer, None, work.write.record.position, retries=0)
    return work.next(cursor, found=left < SHARE, synced=synced, done=done)


def _candidates(view: View, event: MemoryForget, cursor: int) -> Iterator[Entry]:
    """The memories that the event may be about, from the cursor on."""
    if event.memory_id is None:
        return view.entries(cursor)
    current = view.current(event.memory_id)
    return iter([] if current is None or current.forgotten else [view.entry(current.seq)])


def _matches(view: View, entry: Entry, event: MemoryForget) -> bool:
    """Whether a memory is the one named, or fulfils all conditions of the filter; and is one that the event may
    change."""
    wanted = event.filter
    if not view.may_change(entry):
        return False
    if wanted is None:
        return entry.id == event.memory_id
    return (
        wanted.session_id in (None, entry.session_id)
        and wanted.category in (None, entry.category)
        and (wanted.tag is None or wanted.tag in entry.tags)
        and (wanted.older_than is None or entry.created_ms < wanted.older_than)
    )


def _weight(writer: GraphWriter, entry: Entry) -> int:
    """Estimates what it costs to forget a memory, in links."""
    return _MEMORY_WEIGHT + entry.version // _VERSIONS_A_LINK + writer.weigh(entry.id, entry.seq, SHARE)


def _thin(view: View, writer: GraphWriter, work: Work, entry: Entry) -> bool:
    """Removes a step's share of a memory's edges and past versions. Returns False where there were none, or where our
    own code failed at it: then the memory is forgotten with all it has."""
    position = work.write.record.position
    attempt(view.graph, position, partial(writer.thin, entry.id, entry.seq, SHARE))
    return view.forget_versions(entry, SHARE * _VERSIONS_A_LINK) or bool(view.graph.staged.effects)


# ---------------------------------------------------------------------- merging episodes


def _merge(view: View, writer: GraphWriter, work: Work, gap_ms: int) -> Work:
    """Makes a step's share of one episode's members those of the other. The event itself moves the rest."""
    pair = _merged(view, work.write, gap_ms)
    moved = 0

    def move(merged_id: str, into_id: str) -> None:
        nonlocal moved
        moved = writer.merge_episodes(merged_id, into_id, SHARE)
        view.graph.prune()

    synced = pair is None or attempt(view.graph, work.write.record.position, partial(move, *pair))
    return work.next(work.cursor, found=True, synced=True, done=not synced or moved < SHARE)


def _merged(view: View, write: Write, gap_ms: int) -> tuple[str, str] | None:
    """The ids of two episodes where a message merges them: the merged one's, and that of the one that stands."""
    if not isinstance(write.event, Message):
        return None
    at_ms, logged = event_time(write)
    session_id = write.event.session_id
    moment = Episode(view.newest + 1, "", session_id, at_ms, at_ms, logged=logged)
    into, *merged = join(view.episodes(session_id), moment, gap_ms).changed
    return (merged[0].id, into.id) if merged else None


# ---------------------------------------------------------------------- records of stored steps


def encode_record(record: Record) -> list[Any]:
    """Return the fields of a record, as JSON stores them."""
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    flags = record.append_logged, record.silent, record.tombstone
    plain = [*record.position, _text(record.value), record.append_ms, _text(record.key), headers, *flags]
    verdict = (one and [*one] for one in (record.principal, record.refusal))
    return [*plain, *verdict]


def decode_record(encoded: list[Any]) -> Record:
    """Return the record of fields that `encode_record` returned."""
    topic, partition, offset, value, append_ms, key, headers, append_logged, silent, tombstone, *verdict = encoded
    sender, refusal = verdict
    return Record(
        position=Position(topic, partition, offset),
        value=base64.b64decode(value),
        append_ms=append_ms,
        key=_bytes(key),
        append_logged=append_logged,
        headers=None if headers is None else tuple((name, _bytes(text)) for name, text in headers),
        silent=silent,
        tombstone=tombstone,
        principal=None if sender is None else _principal(*sender),
        refusal=None if refusal is None else Refusal(*refusal),
    )


def _principal(name: str, projects: list[str] | None) -> Principal:
    return Principal(name, None if projects is None else tuple(projects))


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
