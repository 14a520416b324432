"""What a partition that arrives takes from the store of checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from recallflow.connectors.checkpoints.manifest import About
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.flows.checkpointing import Checkpoints
from recallflow.flows.settings import Settings
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import copy_partition
from tests.unit.operators.harness import HASHING

TOPIC, NUMBER, OFFSET = "memory.events", 3, 41
FINGERPRINT = Settings().fingerprint(HASHING)


@contextmanager
def opened(path: Path) -> Iterator[StateDirectory]:
    path.mkdir()
    with StateDirectory.open(path, FINGERPRINT, 1024 * 1024) as directory:
        yield directory


@pytest.fixture
def kept(tmp_path: Path) -> tuple[CheckpointStore, Path, About]:
    """A store, and what a member would save in it: the folder of a partition that has applied records."""
    with opened(tmp_path / "one") as directory:
        partition = directory.partition(NUMBER)
        partition.stage({}, Position(TOPIC, NUMBER, OFFSET))
        partition.commit()
        partition.sync()
        copy_partition(partition, tmp_path / "copy")
    source = f"{TOPIC}:{NUMBER}"
    about = About(keys.FORMAT_VERSION, NUMBER, 16, source, {source: OFFSET}, "acme", "run", 0, asdict(FINGERPRINT))
    return CheckpointStore.open(f"file://{tmp_path / 'store'}"), tmp_path / "copy", about


@pytest.mark.parametrize(
    ("differs", "applied"),
    [
        ({}, OFFSET),
        ({"state_format": keys.FORMAT_VERSION + 1}, -1),
        ({"fingerprint": asdict(FINGERPRINT) | {"embedder": "another"}}, -1),
    ],
    ids=["ours", "another format", "another embedder"],
)
def test_a_checkpoint_is_taken_where_we_can_read_it(
    kept: tuple[CheckpointStore, Path, About],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    differs: dict[str, object],
    applied: int,
) -> None:
    store, folder, about = kept
    store.save(NUMBER, folder, replace(about, **differs))  # type: ignore[arg-type]
    with opened(tmp_path / "two") as directory:
        Checkpoints(store, directory, TOPIC, "acme", every_s=60, keep=1, owned=frozenset).restore(NUMBER, lambda: True)
        assert directory.partition(NUMBER).applied.get(f"{TOPIC}:{NUMBER}", -1) == applied
    assert ("is not taken from a checkpoint" in caplog.text) is (applied < 0)
    assert not [*(tmp_path / "two").glob("*arriv*")]
