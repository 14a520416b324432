"""A memory event's part of the graph, and what becomes of it where our own code fails there.

The memory is stored all the same. What was to be written of the graph is dropped as a whole, and the memory is marked
as out of step. Each later event of its owner, whatever it is, tries again from what is stored, the oldest mark first;
after some failures only an event about the memory itself does. Nothing is embedded again.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from recallflow.errors import InvalidRecord
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.extract import read_names
from recallflow.operators.graph.write import GraphWriter, Remembered
from recallflow.operators.guard import once
from recallflow.records import Position
from recallflow.state.graph_codec import Unsynced
from recallflow.state.rows import Current, Entry, MemoryRow, Vectors

STEP = "graph"
RETRIES = 4  # marks tried again with one event
FAILURES_MAX = 5
SYNC_FAILED = "GRAPH_RELATIONSHIP_SYNC_FAILED"


class Touched(NamedTuple):
    """A memory that an event changed: its version now, or None where it is forgotten. `episode` is the number of the
    episode it joined; `said_anew`: its text or its vector is another; `known`: it was there before."""

    memory_id: str
    seq: int
    row: MemoryRow | None
    episode: int
    vectors: Vectors | None
    said_anew: bool
    known: bool = True


class Stored(Protocol):
    """What is read of an owner's memories, and what the event at hand changed of them."""

    touched: list[Touched]

    @property
    def graph(self) -> Changes: ...
    @property
    def newest(self) -> int: ...
    def current(self, memory_id: str) -> Current | None: ...
    def row(self, memory_id: str, version: int) -> MemoryRow: ...
    def entry(self, seq: int) -> Entry: ...
    def vectors(self, seq: int) -> Vectors | None: ...
    def episode_id(self, session_id: str | None, number: int) -> str | None: ...
    def merged_episodes(self) -> list[tuple[str, str]]: ...


def sync(
    stored: Stored, writer: GraphWriter, analysis: Analysis | None, position: Position, retries: int = RETRIES
) -> bool:
    """Brings the graph up to date with an event, and with so many earlier ones that failed. Returns False where it
    failed with this one. `analysis`: of the text that the event brought, if it brought one."""
    changes, touched = stored.graph, stored.touched
    waiting = changes.unsynced()
    synced = True
    if touched:
        synced = attempt(changes, position, partial(_write, stored, writer, analysis, waiting))
        if not synced:
            _mark(stored, waiting)
    if waiting:
        own = {one.seq for one in touched}
        due = [seq for seq in sorted(waiting) if seq not in own and waiting[seq].failures < FAILURES_MAX]
        for seq in due[:retries]:
            marker = waiting[seq]
            if not attempt(changes, position, partial(_again, stored, writer, seq, marker)):
                changes.put_unsynced(seq, marker._replace(failures=marker.failures + 1))
    return synced


def attempt(changes: Changes, position: Position, work: Callable[[], object]) -> bool:
    """Whether the work succeeded; where it did not, it left nothing."""
    before = changes.staged.copied() if changes.staged.effects else None
    try:
        once(STEP, position, work, partial(changes.drop, before))
    except InvalidRecord as error:
        if error.code != "internal_error":
            raise
        return False
    return True


def _write(stored: Stored, writer: GraphWriter, analysis: Analysis | None, waiting: dict[int, Unsynced]) -> None:
    for taken, into in stored.merged_episodes():
        writer.merge_episodes(taken, into)
    for one in stored.touched:
        marker = waiting.get(one.seq)
        if marker is not None:
            _close(stored, writer, one.seq, marker)
        if one.row is None:
            writer.forget(one.memory_id, one.seq)
        else:
            own, anew = analysis if one.said_anew else None, one.said_anew or marker is not None
            writer.remember(_remembered(stored, one.row, one.episode, own, one.vectors, anew, one.known))
    stored.graph.settle()


def _again(stored: Stored, writer: GraphWriter, seq: int, marker: Unsynced) -> None:
    _close(stored, writer, seq, marker)
    current = stored.current(marker.id)
    if current is None or current.forgotten:
        writer.forget(marker.id, seq)
    else:
        row, episode = stored.row(marker.id, current.version), stored.entry(seq).episode
        writer.remember(_remembered(stored, row, episode, None, stored.vectors(seq), said_anew=True, known=True))
    stored.graph.settle()


def _close(stored: Stored, writer: GraphWriter, seq: int, marker: Unsynced) -> None:
    """Takes the mark away, and does what was to be done beside the memory."""
    stored.graph.put_unsynced(seq, None)
    for taken, into in marker.merged:
        writer.merge_episodes(taken, into)


def _mark(stored: Stored, waiting: dict[int, Unsynced]) -> None:
    merged = stored.merged_episodes()
    for one in stored.touched:
        before = waiting.get(one.seq, Unsynced(one.memory_id, 0, []))
        marker = before._replace(failures=before.failures + 1, merged=[*before.merged, *merged])
        stored.graph.put_unsynced(one.seq, marker)


def _remembered(
    stored: Stored,
    row: MemoryRow,
    episode: int,
    analysis: Analysis | None,
    vectors: Vectors | None,
    said_anew: bool,
    known: bool,
) -> Remembered:
    return Remembered(
        row=row,
        episode_id=stored.episode_id(row.session_id, episode),
        named=read_names(row.content) if analysis is None else analysis.named,
        vectors=vectors,
        sketch=b"" if analysis is None else analysis.sketch,
        known=known,
        said_anew=said_anew,
        newest=stored.newest,
    )
