"""The graph write of a memory event, and retries after internal errors.

A failed graph write does not affect the memory. Its changes are dropped as a whole, and the memory is marked as
unsynced. Later events of the owner retry from stored data, oldest mark first. After several failures, only events of
the memory itself retry. Nothing is embedded again."""

from collections.abc import Callable
from functools import partial

from recallflow.errors import InvalidRecord
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import GraphChanges
from recallflow.operators.graph.write import ForgottenMemory, GraphWriter, RememberedMemory
from recallflow.operators.guard import once
from recallflow.operators.view import View
from recallflow.records import Position
from recallflow.state.graph_codec import Unsynced

STEP = "graph"
RETRIES = 4  # retries per event
FAILURES_MAX = 5
SYNC_FAILED = "GRAPH_RELATIONSHIP_SYNC_FAILED"


def sync(
    view: View, writer: GraphWriter, analysis: Analysis | None, position: Position, retries: int = RETRIES
) -> bool:
    """Write the graph of an event, and retry earlier failures. Return False if this event's write failed. `analysis` is
    of the event's text, if it has one."""
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


def attempt(changes: GraphChanges, position: Position, work: Callable[[], object]) -> bool:
    """Run work on the graph. Return whether it succeeded; after a failure its changes are dropped."""
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
        own = analysis if isinstance(one, RememberedMemory) and one.content_changed else None
        _write_memory(view, writer, one, own, unsynced.get(one.seq))
    view.graph.prune()


def _write_stored(view: View, writer: GraphWriter, seq: int, marker: Unsynced) -> None:
    """Write an unsynced memory from stored data."""
    current = view.current(marker.id)
    if current is None or current.forgotten:
        _write_memory(view, writer, ForgottenMemory(marker.id, seq), None, marker)
    else:
        row, episode = view.row(marker.id, current.version), view.entry(seq).episode
        _write_memory(
            view, writer, RememberedMemory(row, episode, view.vectors(seq), content_changed=True), None, marker
        )
    view.graph.prune()


def _write_memory(
    view: View,
    writer: GraphWriter,
    memory: RememberedMemory | ForgottenMemory,
    analysis: Analysis | None,
    marker: Unsynced | None,
) -> None:
    """Write a memory. For an unsynced one, complete its pending episode merges first."""
    if marker is not None:
        view.graph.put_unsynced(memory.seq, None)
        for pair in marker.merged:
            writer.merge_episodes(*pair)
    if isinstance(memory, ForgottenMemory):
        writer.forget(memory.memory_id, memory.seq)
        return
    if marker is not None:
        memory = memory._replace(content_changed=True)
    elif memory.embedded:
        writer.embed(memory, view.newest)
        return
    writer.remember(memory, analysis, view.episode_id(memory.row.session_id, memory.episode), view.newest)


def _mark(view: View, unsynced: dict[int, Unsynced]) -> None:
    """Mark the memories of an event as unsynced."""
    merged = view.merged_episodes()
    for one in view.touched:
        before = unsynced.get(one.seq, Unsynced(one.memory_id, 0, []))
        marker = before._replace(failures=before.failures + 1, merged=[*before.merged, *merged])
        view.graph.put_unsynced(one.seq, marker)
