"""A checkpoint equals the directory at its time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recallflow.cli import main
from recallflow.errors import StateError, StateInUse
from recallflow.records import Position
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.description import TOPICS, describe
from recallflow.state.directory import StateDirectory
from recallflow.state.files import read_checked, write_checked
from recallflow.state.folders import partition_folder
from recallflow.state.lock import LOCK
from recallflow.state.verify import verify
from tests.event_log import hash_of
from tests.unit.operators.harness import make_event, run_flow

pytestmark = pytest.mark.slow

CACHE_BYTES = 1024 * 1024


def test_restored_directory_equals_the_copy(state_dir: Path, tmp_path: Path) -> None:
    before = hash_of(state_dir)
    write_checked(state_dir / TOPICS, {"read": {}})
    checkpoint(state_dir, tmp_path / "copy")
    run_flow([make_event("message", id="later", content="added afterwards")], state_dir, partitions=2)

    restore(tmp_path / "copy", tmp_path / "new")
    assert hash_of(tmp_path / "new") == before != hash_of(state_dir)
    assert read_checked(tmp_path / "new" / TOPICS) == {"read": {}}
    assert verify(tmp_path / "new").problems == []
    # A checkpoint can be restored more than once, and the directory goes on where it was.
    run_flow([make_event("message", id="later", content="added afterwards")], tmp_path / "new", partitions=2)
    restore(tmp_path / "copy", tmp_path / "again")
    assert hash_of(tmp_path / "again") == before
    assert hash_of(tmp_path / "new") == hash_of(state_dir)


@pytest.mark.usefixtures("no_lock_wait")
def test_a_directory_in_use_is_not_copied(state_dir: Path, tmp_path: Path) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
        directory.partition(1)
        with pytest.raises(StateInUse):
            checkpoint(state_dir, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_folder_with_something_in_it_is_refused(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(StateError, match="not empty"):
        checkpoint(state_dir, tmp_path / "full")
    checkpoint(state_dir, tmp_path / "copy")
    with pytest.raises(StateError, match="not empty"):
        restore(tmp_path / "copy", tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]
    with pytest.raises(StateError, match="inside"):
        checkpoint(state_dir, state_dir / "copy")


@pytest.mark.parametrize("damage", ["folder", "table", "swapped"])
def test_incomplete_checkpoint_is_refused_and_leaves_nothing(state_dir: Path, tmp_path: Path, damage: str) -> None:
    checkpoint(state_dir, tmp_path / "copy")
    first, second = (partition_folder(tmp_path / "copy", number) for number in (0, 1))
    if damage == "folder":
        second.rename(tmp_path / "elsewhere")
    elif damage == "table":
        next(second.glob("*.sst")).unlink()
    else:
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
    with pytest.raises(StateError):
        restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists() or [path.name for path in (tmp_path / "new").iterdir()] == [LOCK]


@pytest.mark.usefixtures("no_lock_wait")
def test_directory_in_use_is_not_restored_from(state_dir: Path, tmp_path: Path) -> None:
    with (
        StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES),
        ThreadPoolExecutor() as pool,
        pytest.raises(StateInUse),
    ):
        pool.submit(restore, state_dir, tmp_path / "new").result()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("target", "source"), [("copy/inner", "copy"), ("", "copy")])
def test_a_directory_and_its_checkpoint_never_lie_within_each_other(
    state_dir: Path, tmp_path: Path, target: str, source: str
) -> None:
    checkpoint(state_dir, tmp_path / "copy")
    before = hash_of(tmp_path / "copy")
    with pytest.raises(StateError, match="within"):
        restore(tmp_path / source, tmp_path / target)
    assert hash_of(tmp_path / "copy") == before


def test_a_directory_of_run_has_its_partitions_alone(
    state_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
        for partition in directory.existing_partitions():
            partition.stage({}, Position("memory.events", partition.number, 7))
            partition.commit()
        directory.forget_folder(0)
    assert main(["state", "verify", "--state-dir", str(state_dir)]) == 1  # as far as anybody knows, of lines
    assert "has lost p000" in capfd.readouterr().out
    write_checked(state_dir / TOPICS, {})

    for copied, restored in ((state_dir, "first"), (tmp_path / "first", "second")):
        assert main(["state", "verify", "--state-dir", str(copied)]) == 0
        assert main(["state", "checkpoint", str(tmp_path / f"{restored}-copy"), "--state-dir", str(copied)]) == 0
        restore(tmp_path / f"{restored}-copy", tmp_path / restored)
        with StateDirectory.existing(tmp_path / restored, CACHE_BYTES) as directory:
            assert directory.existing_numbers() == [1]
            assert directory.partition(1).applied["memory.events:1"] == 7
