"""Work that is larger than one event's share, in steps: what an event does to very many memories.

No step takes longer than a batch may. What is done so far, and for which event, is written with each step, so that a
killed process goes on where it was. The event itself is applied when its steps are through: until then its position has
not moved, and whatever comes behind it in its log or is about its owner waits (`queue.py`): nobody sees half of it.
Where steps begin and end follows from what is stored: the state is the same whoever is killed when.
"""

from dataclasses import dataclass, replace

import orjson

from recallflow.errors import InvalidRecord
from recallflow.events import Event, ForgetFilter, MemoryForget
from recallflow.operators.decode import decode
from recallflow.operators.events import Write
from recallflow.operators.graph.sync import sync
from recallflow.operators.graph.write import GraphWriter
from recallflow.operators.view import View
from recallflow.operators.waiting import decode_record, encode_record
from recallflow.records import Record
from recallflow.state.rows import Entry

# Of one step, on a busy core each well below 100 ms.
LOOKED_AT = 4_000
FORGOTTEN = 500


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


def may_be_large(event: Event) -> bool:
    """Whether an event is of the kind that may need steps: most are not, and need not be looked at further."""
    return isinstance(event, MemoryForget) and event.filter is not None


def is_large(view: View, event: Event) -> bool:
    """Whether an event needs steps: one that forgets by a filter where there is more to look at, or to forget, than one
    step takes, and that was not applied before."""
    if not isinstance(event, MemoryForget) or event.filter is None:
        return False
    if event.id is not None and view.was_applied(event.id) is not None:
        return False
    entries = view.entries(0, LOOKED_AT + 1)
    return len(entries) > LOOKED_AT or sum(matches(entry, event.filter) for entry in entries) > FORGOTTEN


def meant(view: View, wanted: ForgetFilter) -> list[str]:
    """The memories that fulfil a filter, where one step is enough."""
    return [entry.id for entry in view.entries(0, LOOKED_AT) if matches(entry, wanted)]


def step(view: View, writer: GraphWriter, work: Work) -> Work:
    """Forgets the next memories that fulfil the event's filter."""
    wanted = work.write.event.filter if isinstance(work.write.event, MemoryForget) else None
    entries = view.entries(work.cursor, LOOKED_AT)
    cursor, found = work.cursor, 0
    for entry in entries:
        if found == FORGOTTEN:
            break
        cursor = entry.seq + 1
        if wanted is not None and matches(entry, wanted) and (current := view.current(entry.id)) is not None:
            view.forget(entry.id, current)
            found += 1
    synced = sync(view, writer, None, work.write.record.position, retries=0)
    done = len(entries) < LOOKED_AT and (not entries or cursor > entries[-1].seq)
    return work.next(cursor, found=found > 0, synced=synced, done=done)


def matches(entry: Entry, wanted: ForgetFilter) -> bool:
    """Whether a memory fulfils all conditions of a filter."""
    return (
        wanted.session_id in (None, entry.session_id)
        and wanted.category in (None, entry.category)
        and (wanted.tag is None or wanted.tag in entry.tags)
        and (wanted.older_than is None or entry.created_ms < wanted.older_than)
    )
