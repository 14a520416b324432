"""Snapshots in Bytewax's recovery store that a resumed flow would use."""

import pickle
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from recallflow.checked import Checked
from recallflow.flows.recovery import committed
from recallflow.state.directory import RECOVERY

STEP, EPOCH = "read", 5


@dataclass(frozen=True, slots=True)
class EpochSnapshot(Checked):
    epoch: int


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two workers, the slower of which had finished all epochs below EPOCH."""
    (tmp_path / RECOVERY).mkdir()
    with closing(sqlite3.connect(tmp_path / RECOVERY / "part-0.sqlite3")) as file, file:
        file.execute("CREATE TABLE exs (ex_num, worker_count, resume_epoch)")
        file.execute("CREATE TABLE fronts (ex_num, worker_index, worker_frontier)")
        file.execute("CREATE TABLE snaps (step_id, state_key, snap_epoch, ser_change)")
        file.execute("INSERT INTO exs VALUES (0, 2, 1)")
        file.executemany("INSERT INTO fronts VALUES (0, ?, ?)", [(0, EPOCH), (1, EPOCH + 4)])
    return tmp_path


def add_snapshots(store: Path, key: str, *epochs: int) -> None:
    with closing(sqlite3.connect(store / RECOVERY / "part-0.sqlite3")) as file, file:
        file.executemany(
            "INSERT INTO snaps VALUES (?, ?, ?, ?)", [(STEP, key, at, pickle.dumps(EpochSnapshot(at))) for at in epochs]
        )


def test_snapshot_of_an_uncommitted_epoch_is_ignored(store: Path) -> None:
    add_snapshots(store, "a", EPOCH - 3, EPOCH - 1, EPOCH)
    add_snapshots(store, "b", EPOCH, EPOCH + 3)
    assert committed(store, STEP) == {"a": EpochSnapshot(EPOCH - 1)}
