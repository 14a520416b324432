"""Runs a dataflow: on Bytewax, with its recovery store beside the state partitions."""

import contextlib
import re
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

from bytewax.dataflow import Dataflow
from bytewax.recovery import (
    InconsistentPartitionsError,
    MissingPartitionsError,
    NoPartitionsError,
    RecoveryConfig,
    init_db_dir,
)
from bytewax.run import cli_main

from recallflow.errors import RecallflowError, StateError, StorageError
from recallflow.flows.cycles import computing
from recallflow.flows.recovery import check_snapshots, has_store, resume_epoch
from recallflow.flows.settings import Settings
from recallflow.private_files import make_private_folder, restrict_tree
from recallflow.state.directory import RECOVERY
from recallflow.state.files import check_room, sync, sync_tree

_STORE_ERRORS = (InconsistentPartitionsError, MissingPartitionsError, NoPartitionsError)


def recovery_store(state_dir: Path) -> RecoveryConfig:
    """The state directory's recovery store, holding committed snapshots only, and each of them as it was written. Made
    aside and renamed, so that a kill leaves none or a whole one. Raises StorageError."""
    store = state_dir / RECOVERY
    try:
        if not has_store(state_dir):
            _create(store)
        _drop_uncommitted(store)
    except (OSError, RuntimeError, sqlite3.Error) as error:
        check_room(state_dir, error)
        raise StorageError(f"the recovery store in {store} cannot be used: {error}") from error
    check_snapshots(state_dir)
    return RecoveryConfig(store, timedelta(0))


def _create(store: Path) -> None:
    aside = store.with_name(f"{RECOVERY}.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(store, ignore_errors=True)
    make_private_folder(aside)
    try:
        init_db_dir(aside, 1)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic, which is no Exception
        check_room(store.parent, error)
        raise StorageError(f"{aside} cannot be made: {error}") from error
    restrict_tree(aside)
    sync_tree(aside)
    aside.rename(store)
    sync(store.parent)


def _drop_uncommitted(store: Path) -> None:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(sqlite3.connect(file))) for file in store.glob("*.sqlite3")]
        epoch = resume_epoch(files)
        for file in files:
            with file:
                file.execute("DELETE FROM snaps WHERE snap_epoch >= ?", (epoch,))


def run_dataflow(flow: Dataflow, settings: Settings, workers: int, recovery: RecoveryConfig | None) -> None:
    """Runs a dataflow to its end. Raises what went wrong as it is, without what Bytewax wraps around it."""
    # Where nothing is kept of an epoch, its end would only cost a snapshot of everything.
    epoch = timedelta(days=1) if recovery is None else timedelta(milliseconds=settings.epoch_ms)
    with computing():
        try:
            cli_main(flow, workers_per_process=workers, epoch_interval=epoch, recovery_config=recovery)
        except Exception as error:  # noqa: BLE001 - the one that says most is raised again
            found = cause(error)
            raise _named(found) from (error if found is error else found.__cause__)


def cause(error: BaseException) -> BaseException:
    """What went wrong, out of what Bytewax wraps around it: our own error, or else the innermost."""
    while error.__cause__ is not None and not isinstance(error, RecallflowError):
        error = error.__cause__
    return error


def _named(error: BaseException) -> BaseException:
    """The error that says what to do, for what Bytewax alone knows of."""
    if isinstance(error, _STORE_ERRORS):
        return StateError(
            f"the recovery store cannot be gone on with ({_first_line(error)}). Restore a checkpoint, or start with "
            "another --state-dir"
        )
    if isinstance(error, RuntimeError) and "SqliteFailure" in str(error):
        return StorageError(
            f"the recovery store could not be written ({_first_line(error)}). Nothing acknowledged is lost; free disk "
            "space and start again, it continues where it stopped"
        )
    if isinstance(error, RuntimeError) and (
        unknown := re.search(r'Key StateKey\("(.+?)"\) is not in this', str(error))
    ):
        return StateError(
            f"{unknown[1]} is in the recovery store and not among the topics' partitions any more: a topic was made "
            "anew with fewer. Give it as many as before, or start with another state directory"
        )
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
