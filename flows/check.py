"""Whether the next start of a state directory would succeed: what is there beside its state partitions, and whether it
fits them."""

import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from recallflow.errors import DiskFull, StateError, StateInUse, StorageError
from recallflow.flows import behind
from recallflow.flows.recovery import LINES_FLOW_ID, check_snapshots, has_store
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.checkpoint import copy_sqlite
from recallflow.state.directory import RECOVERY
from recallflow.state.files import check_room, read_checked


def start_problems(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> Iterator[str]:
    """Everything that would stop a start, or have it go on from the wrong place."""
    found = set()
    for look in (_check_small_files, _check_recovery, partial(behind.check, at_rest=at_rest)):
        try:
            look(state_dir)
        except (StateInUse, DiskFull):
            raise
        except StateError as error:
            if str(error) not in found:
                yield str(error)
            found.add(str(error))


def _check_small_files(state_dir: Path) -> None:
    for path in sorted(state_dir.glob("*.json")):
        read_checked(path)


def _check_recovery(state_dir: Path) -> None:
    if has_store(state_dir):  # whether one is lost is seen where partitions are looked at
        check_snapshots(state_dir)
        _resume_a_copy(state_dir)


def _resume_a_copy(state_dir: Path) -> None:
    """Bytewax judges its own store when it resumes: a flow without records resumes a copy of it."""
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig
    from bytewax.run import cli_main
    from bytewax.testing import TestingSink, TestingSource

    flow = Dataflow(LINES_FLOW_ID)
    op.output("out", op.input("in", flow, TestingSource([])), TestingSink([]))
    with tempfile.TemporaryDirectory(prefix="recallflow-") as folder:
        for file in (state_dir / RECOVERY).glob("*.sqlite3"):
            try:
                copy_sqlite(file, Path(folder) / file.name)
            except sqlite3.Error as error:
                check_room(Path(folder), error)
                raise StorageError(f"{file} cannot be copied to {folder}: {error}") from error
        try:
            cli_main(flow, recovery_config=RecoveryConfig(folder, timedelta(0)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic, which is no Exception
            check_room(Path(folder), error)
            raise StorageError(
                f"the recovery store in {state_dir / RECOVERY} cannot be resumed ({error}): restore a checkpoint"
            ) from error
