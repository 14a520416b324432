"""A memory event's part of the graph, and what becomes of it where our own code fails there.

The memory is stored all the same. What was to be written of the graph is dropped as a whole, and the memory is marked
as out of step. Each later event of its owner, whatever it is, tries again from what is stored, the oldest mark first;
after some failures only an event about the memory itself does. Nothing is embedded again.
"""

from collections.abc import Callable
from functools import partial

from recallflow.errors import InvalidRecord
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.write import Forgotten, GraphWriter, Remembered
from recallflow.operators.guard import once
from recallflow.operators.view import View
from recallflow.records import Position
from recallflow.state.graph_codec import Unsynced

STEP = "graph"
RETRIES = 4  # marks tried again with one event
FAILURES_MAX = 5
SYNC_FAILED = "GRAPH_RELATIONSHIP_SYNC_FAILED"


def sync(
    view: View, writer: GraphWriter, analysis: Analysis | None, position: Position, retries: int = RETRIES
) -> bool:
    """Brings the graph up to date with an event, and with so many earlier ones that failed. Returns False where it
    failed with this one. `analysis`: of the text that the event brought, if it brought one."""
    changes, touched = view.graph, view.touched
    unsynced = changes.unsynced()
    synced = True
    if touched:
        synced = attempt(changes, position, partial(_write, view, writer, analysis, unsynced))
        if not synced:
            _mark(view, unsynced)
    if unsynced:
        own = {one.seq for one in touched}
        due = [seq for seq in sorted(unsynced) if seq not in own and unsynced[seq].failures < FAILURES_MAX]
        for seq in due[:retries]:
            marker = unsynced[seq]
            if not attempt(changes, position, partial(_write_stored, view, writer, seq, marker)):
                changes.put_unsynced(seq, marker._replace(failures=marker.failures + 1))
    return synced


def attempt(changes: Changes, position: Position, work: Callable[[], object]) -> bool:
    """Whether the work succeeded; where it did not, it left nothing."""
    before = changes.staged.copied() if changes.staged.effects else None
    try:
        once(STEP, position, work, undo=partial(changes.drop, before))
    except InvalidRecord as error:
        if error.code != "internal_error":
            raise
        return False
    return True


def _write(view: View, writer: GraphWriter, analysis: Analysis | None, unsynced: dict[int, Unsynced]) -> None:
    for pair in view.merged_episodes():
        writer.merge_episodes(*pair)
    for one in view.touched:
        own = analysis if isinstance(one, Remembered) and one.content_changed else None
        _write_memory(view, writer, one, own, unsynced.get(one.seq))
    view.graph.prune()


def _write_stored(view: View, writer: GraphWriter, seq: int, marker: Unsynced) -> None:
    """Writes a memory that is out of step, as it is stored."""
    current = view.current(marker.id)
    if current is None or current.forgotten:
        _write_memory(view, writer, Forgotten(marker.id, seq), None, marker)
    else:
        row, episode = view.row(marker.id, current.version), view.entry(seq).episode
        _write_memory(view, writer, Remembered(row, episode, view.vectors(seq), content_changed=True), None, marker)
    view.graph.prune()


def _write_memory(
    view: View,
    writer: GraphWriter,
    memory: Remembered | Forgotten,
    analysis: Analysis | None,
    marker: Unsynced | None,
) -> None:
    """Writes a memory. One that was out of step is not any more; what was to be done beside it is done first."""
    if marker is not None:
        view.graph.put_unsynced(memory.seq, None)
        for pair in marker.merged:
            writer.merge_episodes(*pair)
    if isinstance(memory, Forgotten):
        writer.forget(memory.memory_id, memory.seq)
        return
    if marker is not None:
        memory = memory._replace(content_changed=True)
    elif memory.embedded:
        writer.embed(memory, view.newest)
        return
    writer.remember(memory, analysis, view.episode_id(memory.row.session_id, memory.episode), view.newest)


def _mark(view: View, unsynced: dict[int, Unsynced]) -> None:
    """Marks the memories of an event as out of step."""
    merged = view.merged_episodes()
    for one in view.touched:
        before = unsynced.get(one.seq, Unsynced(one.memory_id, 0, []))
        marker = before._replace(failures=before.failures + 1, merged=[*before.merged, *merged])
        view.graph.put_unsynced(one.seq, marker)
