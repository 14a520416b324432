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
from recallflow.operators.graph.extract import read_names
from recallflow.operators.graph.write import GraphWriter, Remembered, Touched
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
    before = changes.staged.copied()
    try:
        once(STEP, position, work, partial(changes.drop, before))
    except InvalidRecord as error:
        if error.code != "internal_error":
            raise
        return False
    return True


def _write(view: View, writer: GraphWriter, analysis: Analysis | None, unsynced: dict[int, Unsynced]) -> None:
    for pair in view.merged_episodes():
        writer.merge_episodes(*pair)
    for one in view.touched:
        _write_memory(view, writer, one, analysis if one.said_anew else None, unsynced.get(one.seq))
    view.graph.prune()


def _write_stored(view: View, writer: GraphWriter, seq: int, marker: Unsynced) -> None:
    """Writes a memory that is out of step, as it is stored."""
    current = view.current(marker.id)
    if current is None or current.forgotten:
        stored = Touched(marker.id, seq, None, -1, None, said_anew=True)
    else:
        row, episode = view.row(marker.id, current.version), view.entry(seq).episode
        stored = Touched(marker.id, seq, row, episode, view.vectors(seq), said_anew=True)
    _write_memory(view, writer, stored, None, marker)
    view.graph.prune()


def _write_memory(
    view: View, writer: GraphWriter, one: Touched, analysis: Analysis | None, marker: Unsynced | None
) -> None:
    """Writes a memory. One that was out of step is not any more; what was to be done beside it is done first."""
    if marker is not None:
        view.graph.put_unsynced(one.seq, None)
        for pair in marker.merged:
            writer.merge_episodes(*pair)
    if one.row is None:
        writer.forget(one.memory_id, one.seq)
        return
    writer.remember(
        Remembered(
            row=one.row,
            episode_id=view.episode_id(one.row.session_id, one.episode),
            named=read_names(one.row.content) if analysis is None else analysis.named,
            vectors=one.vectors,
            sketch=b"" if analysis is None else analysis.sketch,
            known=one.known,
            said_anew=one.said_anew or marker is not None,
            newest=view.newest,
        )
    )


def _mark(view: View, unsynced: dict[int, Unsynced]) -> None:
    """Marks the memories of an event as out of step."""
    merged = view.merged_episodes()
    for one in view.touched:
        before = unsynced.get(one.seq, Unsynced(one.memory_id, 0, []))
        marker = before._replace(failures=before.failures + 1, merged=[*before.merged, *merged])
        view.graph.put_unsynced(one.seq, marker)
