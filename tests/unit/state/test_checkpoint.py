"""A checkpoint is the directory as it was; verify finds what does not hang together."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main
from recallflow.errors import StateError, StateInUse
from recallflow.flows.embedded import Processed
from recallflow.owner import Owner, state_partition
from recallflow.state import keys
from recallflow.state.checkpoint import checkpoint, partition_folder, restore, verify
from recallflow.state.directory import DESCRIPTION, RECOVERY, StateDirectory, describe
from recallflow.state.logical import state_hash
from recallflow.state.partition import Partition
from recallflow.state.rows import Current, Entry, Vectors

CACHE_BYTES = 1024 * 1024
HOUR_MS = 3_600_000
ANN = Owner("acme", "prod", "ann")

Flow = Callable[..., Processed]
Event = Callable[..., dict[str, Any]]


def hash_of(path: Path) -> str:
    with StateDirectory.open(path, describe(path)[0], CACHE_BYTES) as directory:
        return state_hash(directory)


@pytest.fixture
def state_dir(tmp_path: Path, run_flow: Flow, make_event: Event) -> Path:
    """Two users in two state partitions: messages, an update, a forgotten memory, an ended episode."""
    events = [
        make_event("message", n * HOUR_MS, id=f"{user}{n}", user_id=user, content=f"walnut {n}", session_id="s")
        for user, n in itertools.product(("ann", "bob", "cy", "dee"), range(6))
    ]
    events += [
        make_event("memory.update", id="change", memory_id="ann2", content="pecan"),
        make_event("memory.forget", memory_id="ann3"),
        make_event("episode.end", 5 * HOUR_MS, session_id="s"),
        make_event("memory", id="fact", content="likes ferries", receipt=True),
    ]
    run_flow(events, tmp_path / "s", partitions=2)
    return tmp_path / "s"


# ── checkpoint and restore ────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_restored_is_what_was_copied(
    state_dir: Path, tmp_path: Path, run_flow: Flow, make_event: Event
) -> None:
    before = hash_of(state_dir)
    (state_dir / "begin.json").write_text("{}")
    checkpoint(state_dir, tmp_path / "copy")
    run_flow([make_event("message", id="later", content="added afterwards")], state_dir, partitions=2)

    restore(tmp_path / "copy", tmp_path / "new")
    assert hash_of(tmp_path / "new") == before != hash_of(state_dir)
    assert (tmp_path / "new" / "begin.json").read_text() == "{}"
    assert verify(tmp_path / "new").problems == []
    # A checkpoint can be restored more than once, and the directory goes on where it was.
    run_flow([make_event("message", id="later", content="added afterwards")], tmp_path / "new", partitions=2)
    restore(tmp_path / "copy", tmp_path / "again")
    assert hash_of(tmp_path / "again") == before
    assert hash_of(tmp_path / "new") == hash_of(state_dir)


def test_a_directory_in_use_is_not_copied(state_dir: Path, tmp_path: Path) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
        directory.partition(1)
        with pytest.raises(StateInUse, match="in use by another process: stop that process"):
            checkpoint(state_dir, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_folder_with_something_in_it_is_refused(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(StateError, match="not empty: give an empty or new folder"):
        checkpoint(state_dir, tmp_path / "full")
    checkpoint(state_dir, tmp_path / "copy")
    with pytest.raises(StateError, match="not empty: give an empty or new folder"):
        restore(tmp_path / "copy", tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]
    with pytest.raises(StateError, match="inside"):
        checkpoint(state_dir, state_dir / "copy")


def test_an_empty_folder_is_filled(state_dir: Path, tmp_path: Path) -> None:
    for name in ("copy", "new"):
        (tmp_path / name).mkdir()
    checkpoint(state_dir, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "new")
    assert hash_of(tmp_path / "new") == hash_of(state_dir)


@pytest.mark.parametrize("damage", ["folder", "table", "swapped", "store"])
def test_a_checkpoint_that_is_not_whole_is_refused_and_leaves_nothing(
    state_dir: Path, tmp_path: Path, damage: str
) -> None:
    checkpoint(state_dir, tmp_path / "copy")
    first, second = (partition_folder(tmp_path / "copy", number) for number in (0, 1))
    if damage == "folder":
        second.rename(tmp_path / "elsewhere")
    elif damage == "table":
        next(second.glob("*.sst")).unlink()
    elif damage == "store":
        (tmp_path / "copy" / RECOVERY).rename(tmp_path / "elsewhere")
    else:
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
    with pytest.raises(StateError):
        restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


def test_a_state_directory_is_no_checkpoint(state_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="recallflow state checkpoint"):
        restore(state_dir, tmp_path / "new")


def test_a_directory_without_its_recovery_store_is_not_copied(state_dir: Path, tmp_path: Path) -> None:
    (state_dir / RECOVERY).rename(tmp_path / "lost")
    with pytest.raises(StateError, match="no recovery store"):
        checkpoint(state_dir, tmp_path / "copy")


# ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_directory_has_no_problems(state_dir: Path) -> None:
    report = verify(state_dir)
    assert report.problems == []
    assert report.partitions == 2
    expected = {"owners": 4, "ids": 25, "rows": 25, "entries": 24, "vectors": 24, "event ids": 1}
    assert {name: report.records[name] for name in expected} == expected


@contextlib.contextmanager
def damaging(state_dir: Path) -> Iterator[tuple[Partition, dict[bytes, bytes | None]]]:
    """The open state partition that holds Ann, and what will be written to it."""
    damages: dict[bytes, bytes | None] = {}
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
        partition = directory.partition(state_partition(ANN.tenant_id, ANN.user_id, 2))
        yield partition, damages
        partition.stage(damages)
        partition.commit()


def test_every_planted_damage_is_found(state_dir: Path) -> None:
    """All in one directory: the first does not hide the others."""
    with damaging(state_dir) as (partition, damages):
        ann = partition.keyring.owner(ANN)
        name = {memory_id: partition.keyring.name(ann, memory_id) for memory_id in ("ann1", "ann2", "fact")}
        row, vectors = keys.row(ann, name["ann1"], 0), keys.vectors(ann, 0)
        entry = Entry.decode(partition.get(keys.entry(ann, 4)) or b"")
        current = Current.decode(partition.get(keys.current(ann, name["fact"])) or b"")
        whole_row, whole_vectors = partition.get(row) or b"", partition.get(vectors) or b""
        stored = Vectors.decode(whole_vectors)
        damages |= {
            keys.row(ann, name["ann2"], 0): None,
            keys.entry(ann, 5): None,
            row: whole_row[:-5],
            vectors: whole_vectors[:-1],
            keys.vectors(ann, 1): stored._replace(matrix=stored.matrix[:, :10]).encode(),
            keys.entry(ann, 4): entry._replace(episode=99).encode(),
            keys.current(ann, name["fact"]): current._replace(version=1).encode(),
            keys.OWNERS + ann + b"Zfoo": b"",
            b"\x07foreign": b"",
            keys.head(partition.keyring.owner(Owner("x", "y", "z"))): orjson.dumps(["x", "y", "other", 0]),
        }
    said = "\n".join(verify(state_dir).problems)
    for expected in (
        f"id {name['ann2'].hex()}: row of version 0 missing",
        "entry 5 missing",
        f"rows {row[18:].hex()}: cannot be decoded",
        f"vectors {vectors[18:].hex()}: cannot be decoded",
        "of dimension 10, not of 384",
        "entry 4: episode 99 missing",
        f"id {name['fact'].hex()}: row of version 1 missing",
        "is of version 0, not 1",
        f"{(keys.OWNERS + ann + b'Zfoo').hex()}: a key of no table",
        "07666f726569676e: a key of no table",
        "names an owner of another key",
        "vectors 5: of no entry",
    ):
        assert expected in said
    assert "walnut" not in said


def test_a_head_that_would_give_out_a_number_twice_is_found(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        damages[keys.head(partition.keyring.owner(ANN))] = orjson.dumps([*ANN, 3])
    assert any("next sequence number is 3, and 6 is taken" in problem for problem in verify(state_dir).problems)


def test_a_table_file_with_a_flipped_bit_is_found(state_dir: Path) -> None:
    """RocksDB's iterator ends there without a word, as if there were no more records."""
    hash_of(state_dir)  # opened and closed once more: what was in the write-ahead log is in a table file now
    file = max(state_dir.glob("p*/*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    assert any("cannot be read" in problem for problem in verify(state_dir).problems)


def test_a_partition_that_cannot_be_opened_is_one_problem_among_others(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        damages[b"\x07foreign"] = b""
    (partition_folder(state_dir, 1 - partition.number) / "CURRENT").write_bytes(b"nonsense")
    problems = verify(state_dir).problems
    assert len(problems) == 2
    assert any("a key of no table" in problem for problem in problems)


# ── the commands ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_commands_say_what_they_did(state_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def state(action: str, *arguments: str, of: Path = state_dir) -> tuple[int, str, str]:
        code = main(["state", action, "--state-dir", str(of), *arguments])
        return code, *capfd.readouterr()

    assert state("checkpoint", str(tmp_path / "copy"))[0] == 0
    code, out, _ = state("restore", str(tmp_path / "copy"), of=tmp_path / "new")
    assert (code, "restored" in out) == (0, True)
    code, out, _ = state("verify", "--json", of=tmp_path / "new")
    assert (code, orjson.loads(out)["problems"]) == (0, [])
    code, _, err = state("rebuild")
    assert code == 1
    assert "no topic to read again" in err

    for file in partition_folder(tmp_path / "new", 0).iterdir():
        file.unlink()
    partition_folder(tmp_path / "new", 0).rmdir()
    code, out, _ = state("verify", of=tmp_path / "new")
    assert code == 1
    assert "p000 is missing: " in out
    code, _, err = state("checkpoint", str(tmp_path / "lame"), of=tmp_path / "new")
    assert code == 1
    assert "rebuild first" in err
    assert not (tmp_path / "lame").exists()
    assert (tmp_path / "copy" / DESCRIPTION).exists()
