"""What Bytewax's recovery store holds, which is kept beside the state partitions.

Bytewax resumes from the epoch that every worker had finished, but uses each key's latest snapshot below that epoch's
number in the NEXT execution, also one that a killed execution wrote and never committed. Such a snapshot is ahead of
the source: what lies between would come twice or not at all. So they are removed before each start of a dataflow.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recallflow.checked import unpickled
from recallflow.errors import StorageError
from recallflow.state.directory import RECOVERY
from recallflow.state.files import check_room


def has_store(state_dir: Path) -> bool:
    """Whether there is a recovery store: its folder alone is none."""
    return any((state_dir / RECOVERY).glob("*.sqlite3"))


def resume_epoch(files: list[sqlite3.Connection]) -> int:
    """The epoch the next execution begins at: the one all workers of the last execution had reached. Nothing of it, or
    of a later one, was committed."""
    executions = rows_of(files, "SELECT ex_num, worker_count, resume_epoch FROM exs")
    if not executions:
        return 0
    last, workers, resumed = max(executions)
    reached = dict.fromkeys(range(workers), resumed)
    for number, worker, frontier in rows_of(files, "SELECT ex_num, worker_index, worker_frontier FROM fronts"):
        if number == last:
            reached[worker] = max(reached[worker], frontier)
    return int(min(reached.values()))


def committed(state_dir: Path, step: str) -> dict[str, Any]:
    """What a resumed flow would be given: of each key of a step the last snapshot below the resume epoch. Raises
    StorageError."""
    last: dict[str, tuple[int, bytes | None]] = {}
    wanted = "SELECT state_key, snap_epoch, ser_change FROM snaps WHERE step_id = ? AND snap_epoch < ?"
    with _reading(state_dir) as files:
        epoch = resume_epoch(files)
        for file in files:
            for key, at, change in file.execute(wanted, (step, epoch)):
                if key not in last or last[key][0] < at:
                    last[key] = at, change
        return {key: unpickled(change) for key, (_, change) in last.items() if change is not None}


def check_snapshots(state_dir: Path) -> None:
    """Reads all of the store. Raises StorageError where it is not sound, or a snapshot is none."""
    with _reading(state_dir) as files:
        for (verdict,) in rows_of(files, "PRAGMA integrity_check"):
            if verdict != "ok":
                raise StorageError(verdict)
        for (change,) in rows_of(files, "SELECT ser_change FROM snaps WHERE ser_change IS NOT NULL"):
            unpickled(change)


def snapshot_time(state_dir: Path) -> str:
    """When the last snapshot was committed, or else when the store was made: a checkpoint keeps it."""
    with _reading(state_dir) as files:
        committed_at = rows_of(files, "SELECT created_at FROM snaps WHERE snap_epoch < ?", resume_epoch(files))
        made_at = rows_of(files, "SELECT created_at FROM parts")
    return f"{max(committed_at or made_at)[0]}+00:00"


@contextlib.contextmanager
def _reading(state_dir: Path) -> Iterator[list[sqlite3.Connection]]:
    """The store's databases. What is wrong with them or with what they hold is a StorageError."""
    with contextlib.ExitStack() as stack:
        try:
            found = sorted((state_dir / RECOVERY).glob("*.sqlite3"))
            yield [stack.enter_context(contextlib.closing(sqlite3.connect(file))) for file in found]
        except (OSError, sqlite3.Error, StorageError) as error:
            check_room(state_dir, error)
            raise StorageError(
                f"the recovery store in {state_dir / RECOVERY} cannot be read ({error}): restore a checkpoint"
            ) from error


def rows_of(files: list[sqlite3.Connection], query: str, *values: int) -> list[tuple[Any, ...]]:
    return [row for file in files for row in file.execute(query, values)]
