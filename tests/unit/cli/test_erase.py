"""`recallflow erase` on directories without Kafka, and the search for what is left."""

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import orjson
import pytest

from recallflow.flows.settings import Settings
from recallflow.owner import state_partition
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify

Cli = Callable[..., CompletedProcess[str]]

ANN, BOB = "ann.of.green.gables@example.com", "bob.the.builder@example.com"
SECRET = "the third locker from the left"
MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


def told(user: str, content: str, **fields: Any) -> bytes:
    return orjson.dumps({"type": "memory", "tenant_id": "acme", "user_id": user, "content": content, **fields})


@pytest.fixture
def lived(tmp_path: Path, cli: Cli) -> Path:
    """A directory of two users, and a copy of it."""
    lines = [
        told(ANN, f"Ann keeps her keys in {SECRET}", tags=["hiding places of Ann"], environment="staging"),
        told(ANN, "Ann reads novels of the nineteenth century", metadata={"shelf number": "shelf nineteen"}),
        told(BOB, "Bob keeps bees, and reads novels of the nineteenth century"),
    ]
    assert cli("pipe", "--state-dir", tmp_path / "s", stdin=b"\n".join(lines)).returncode == 0
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    return tmp_path / "s"


def memories(cli: Cli, path: Path, user: str) -> list[str]:
    lines = cli("export", "acme", user, "--state-dir", path).stdout.splitlines()
    return [one["content"] for one in map(orjson.loads, lines) if one["type"] == "memory"]


def test_a_person_is_gone_from_a_directory_and_nothing_is_left_in_its_files(lived: Path, cli: Cli) -> None:
    done = cli("erase", "acme", ANN, "--verify", "--state-dir", lived)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"{lived}: user {ANN} of tenant acme is erased" in done.stdout
    assert done.stdout.endswith("nothing was found\n")
    assert memories(cli, lived, ANN) == []
    assert memories(cli, lived, BOB) == ["Bob keeps bees, and reads novels of the nineteenth century"]
    assert verify(lived).problems == []


def test_what_others_put_out_and_where_it_stood_in_its_log_proves_nothing(cli: Cli, tmp_path: Path) -> None:
    """Ann's first event stands where those of Bob seem to, and Bob forgot a memory that has an id of Ann's."""
    apart = state_partition("acme", ANN, Settings().partitions)
    bob = next(name for n in range(99) if state_partition("acme", name := f"bob {n}", Settings().partitions) != apart)
    forget = {"type": "memory.forget", "tenant_id": "acme", "user_id": bob, "memory_id": "shared-id-1", "receipt": True}
    lines = [told(ANN, "Ann rows", id="shared-id-1", receipt=True), told(ANN, "Ann sails", receipt=True)]
    lines += [told(bob, f"Bob is number {n}", receipt=True) for n in range(20)]
    lines += [told(bob, "Bob rows", id="shared-id-1", receipt=True), orjson.dumps(forget)]
    assert cli("pipe", "--state-dir", tmp_path / "s", stdin=b"\n".join(lines)).returncode == 0
    cli("export", "acme", ANN, "--state-dir", tmp_path / "s", "--out", tmp_path / "ann.jsonl")
    done = cli("erase", "acme", ANN, "--verify", "--export", tmp_path / "ann.jsonl", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_command_waits_until_files_are_clean(lived: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing cleans them in the background."""
    monkeypatch.setattr(StateDirectory, "clean", lambda *_: None)
    done = cli("erase", "acme", ANN, "--verify", "--state-dir", lived)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_name_that_nobody_has_does_not_look_like_one_that_was_known(lived: Path, cli: Cli) -> None:
    for name, environment in (("ann.of.green.gable@example.com", "staging"), (ANN, "prd")):
        done = cli("erase", "acme", name, "--environment", environment, "--state-dir", lived)
        assert (done.returncode, done.stdout) == (0, f"{lived}: nothing was held on user {name} of tenant acme\n")


def test_one_environment_can_be_erased_alone(lived: Path, cli: Cli) -> None:
    done = cli("erase", "acme", ANN, "--environment", "staging", "--verify", "--state-dir", lived)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert memories(cli, lived, ANN) == ["Ann reads novels of the nineteenth century"]


def test_what_is_left_in_another_folder_is_found_and_not_quoted(lived: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "also").mkdir()
    (tmp_path / "also" / "note.b64").write_bytes(base64.b64encode(f"…{SECRET}".encode()))
    cli("export", "acme", ANN, "--state-dir", lived, "--out", tmp_path / "ann.jsonl")
    done = cli("erase", "acme", ANN, "--verify", "--also", tmp_path / "also", "--also", tmp_path / "copy",
               "--state-dir", lived)  # fmt: skip
    said = done.stdout
    assert done.returncode == 1
    assert f"{tmp_path / 'also' / 'note.b64'}: FOUND" in said
    assert f"{tmp_path / 'copy'}/p" in said
    assert "locker" not in said
    again = cli("erase", "acme", ANN, "--verify-only", "--export", tmp_path / "ann.jsonl", "--state-dir", lived)
    assert (again.returncode, again.stderr) == (0, ""), again.stdout


def test_a_checkpoint_of_another_master_key_is_listed(lived: Path, cli: Cli, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", MASTER_KEY)
    assert cli("pipe", "--state-dir", tmp_path / "sealed", stdin=told(ANN, "Ann sails")).returncode == 0
    monkeypatch.delenv("RECALLFLOW_ENCRYPTION_MASTER_KEY")
    done = cli("erase", "acme", ANN, "--checkpoint", tmp_path / "sealed", "--state-dir", lived)
    assert done.returncode == 1
    assert f"{tmp_path / 'sealed'}: NOT erased: " in done.stdout
    assert f"{lived}: user {ANN} of tenant acme is erased" in done.stdout


def test_an_encrypted_directory_is_erased_and_searched(cli: Cli, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", MASTER_KEY)
    lines = b"\n".join((told(ANN, f"Ann keeps her keys in {SECRET}"), told(BOB, "Bob keeps bees")))
    assert cli("pipe", "--state-dir", tmp_path / "s", stdin=lines).returncode == 0
    assert memories(cli, tmp_path / "s", ANN) == [f"Ann keeps her keys in {SECRET}"]
    done = cli("erase", "acme", ANN, "--verify", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert memories(cli, tmp_path / "s", BOB) == ["Bob keeps bees"]


def test_options_that_do_not_go_together_are_told(lived: Path, cli: Cli) -> None:
    nothing = cli("erase", "acme", ANN, "--verify")
    assert (nothing.returncode, "nothing to search" in nothing.stderr) == (2, True)
    nowhere = cli("erase", "acme", ANN, "--verify", "--state-dir", lived, "--also", lived / "nowhere")
    assert (nowhere.returncode, f"there is no folder {lived / 'nowhere'}" in nowhere.stderr) == (2, True)
    apart = cli("erase", "acme", ANN, "--compact-kafka", "--state-dir", lived)
    assert (apart.returncode, "--compact-kafka" in apart.stderr) == (2, True)
    slash = cli("erase", "acme", "a/nn", "--compact-kafka")
    assert (slash.returncode, "slash" in slash.stderr) == (2, True)


def test_of_directories_that_partitions_were_moved_between_the_one_with_the_persons_is_erased(
    cli: Cli, tmp_path: Path
) -> None:
    """Whoever has not got the partition says so: nobody is taken for unknown there."""
    ann, bob = (state_partition("acme", user, Settings().partitions) for user in (ANN, BOB))
    assert ann != bob
    for user in (ANN, BOB):
        words = ("--tenant", "acme", "--user", user, "--state-dir", tmp_path / "s", "--create")
        assert cli("remember", f"{user} reads novels", *words).returncode == 0
    assert cli("state", "split", tmp_path / "s", "--into", f"{tmp_path / 'other'}:{ann}").returncode == 0
    for path in (tmp_path / "s", tmp_path / "other"):
        assert verify(path).problems == []
    elsewhere = cli("erase", "acme", ANN, "--state-dir", tmp_path / "s")
    assert elsewhere.returncode == 1
    assert f"does not hold p{ann:03d}: name the directory that does" in elsewhere.stderr
    for user, path in ((ANN, tmp_path / "other"), (BOB, tmp_path / "s")):
        done = cli("erase", "acme", user, "--verify", "--state-dir", path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert f"user {user} of tenant acme is erased" in done.stdout
        assert verify(path).problems == []
