"""State, keys and exports are readable by their owner alone, whatever the umask."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recallflow import Memory
from recallflow.cli import main
from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.llm.policy import TokenBudget
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.private_files import OTHERS
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import arriving_folder, copy_partition

LINE = b'{"type": "message", "tenant_id": "acme", "user_id": "ann", "role": "user", "content": "tea"}'
ONE = Settings(partitions=1)


@pytest.fixture(autouse=True)
def umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide nothing from anybody unless the code says so."""
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", "2")
    before = os.umask(0)
    yield
    assert os.umask(before) == 0  # a command gives it back


def reachable(folder: Path) -> list[Path]:
    """Return the paths that another user can read or change below a folder."""
    found = [path for path in folder.iterdir() if path.stat().st_mode & OTHERS]
    return found + [deeper for path in found if path.is_dir() for deeper in reachable(path)]


def wide(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.stat().st_mode & OTHERS]


def run(*words: str | Path) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.mark.slow
def test_everything_that_commands_create_is_private(tmp_path: Path) -> None:
    state, log, control = tmp_path / "made" / "state", tmp_path / "log.jsonl", tmp_path / "control.jsonl"
    log.touch(0o600)
    log.write_bytes(LINE + b"\n{}\n")
    rejects = str(tmp_path / "rejects")
    main(["replay", str(log), "--embedded", "--create", "--state-dir", str(state), "--rejects", rejects])
    run("remember", "tea", "--state-dir", tmp_path / "second", "--create")
    run("state", "checkpoint", tmp_path / "copy", "--state-dir", state)
    run("state", "restore", tmp_path / "copy", "--state-dir", tmp_path / "restored")
    run("state", "split", tmp_path / "second", "--into", f"{tmp_path / 'left'}:0-0", f"{tmp_path / 'right'}:1-1")
    run("export", "acme", "ann", "--state-dir", tmp_path / "restored", "--out", tmp_path / "ann.jsonl")
    run("quota", "set", "acme", "memories_per_user", "5", "--control", control)
    assert len([*tmp_path.rglob("*")]) > 100
    assert wide(tmp_path) == []


def use_memory(root: Path) -> None:
    with Memory(root / "state", embedder="hash") as memory:
        memory.add("tea", user="ann")


def use_existing_folder(root: Path) -> None:
    (root / "state").mkdir()
    use_memory(root)


def use_copies(root: Path) -> None:
    process([LINE], ONE, root / "state")
    checkpoint(root / "state", root / "copy")
    for path in (root / "copy", *(root / "copy").rglob("*")):  # as versions of before left it
        path.chmod(0o777 if path.is_dir() else 0o666)
    restore(root / "copy", root / "restored")
    (root / "copy").chmod(0o700)
    with StateDirectory.existing(root / "state") as directory:
        copy_partition(directory.partition(0), arriving_folder(root / "restored", 0))


def use_store(root: Path) -> None:
    process([LINE], ONE, root / "state")
    store = CheckpointStore.open(f"file:{root / 'kept' / 'store'}")
    about = CheckpointOrigin(8, 0, 1, "memory.events:0", {}, "acme", "run", 0, {})
    manifest = store.save(0, root / "state" / "p000", about).manifest
    store.fetch(manifest, root / "fetched" / "p000")


def use_budget(root: Path) -> None:
    TokenBudget(lambda _: None, lambda: 0.0, root / "spent.json").reserve("acme", 1)
    budget = TokenBudget(lambda _: None, lambda: 0.0, root / "spent.json")
    budget.reserve("acme", 1)
    budget.write()


@pytest.mark.parametrize("use", [use_memory, use_existing_folder, use_copies, use_store, use_budget])
def test_nothing_that_a_program_creates_is_reachable_by_others(tmp_path: Path, use: Callable[[Path], None]) -> None:
    use(tmp_path)
    assert any(tmp_path.iterdir())
    assert reachable(tmp_path) == []
