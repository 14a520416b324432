"""Which master key a state directory needs is said in one line, and another one touches nothing."""

import base64
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from recallflow.connectors.master_keys import read_master_key
from recallflow.state import keys
from recallflow.state.at_rest import AtRest
from recallflow.state.directory import StateDirectory

Cli = Callable[..., subprocess.CompletedProcess[str]]
REGION = "eu-west-1"


def write_key(path: Path, number: int) -> Path:
    path.write_text(base64.b64encode(bytes([number] * 32)).decode() + "\n")
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_key(tmp_path / "master.key", 1)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_key(tmp_path / "other.key", 2)


@pytest.fixture
def encrypted(cli: Cli, tmp_path: Path, key: Path) -> Path:
    done = cli("remember", "walnut cake", "--state-dir", tmp_path / "s", "--master-key-file", key)
    assert done.returncode == 0, done.stderr
    return tmp_path / "s"


def content(folder: Path) -> dict[str, bytes]:
    """All files but the lock, whose note says who held it last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "recallflow.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("recallflow: ")
    assert said in line


def commands(state_dir: Path) -> list[list[str | Path]]:
    """Every command that opens a state directory without Kafka."""
    state: list[str | Path] = ["--state-dir", state_dir]
    return [
        ["pipe", *state],
        ["ask", "cake?", *state],
        ["remember", "tea", *state],
        ["graph", "status", *state],
        ["state", "info", *state],
        ["state", "hash", *state],
        ["state", "verify", *state],
        ["state", "checkpoint", state_dir.parent / "copy", *state],
        ["state", "rotate-key", "--to-master-key-file", state_dir.parent / "other.key", *state],
    ]


@pytest.mark.parametrize("command", range(9))
def test_every_command_needs_the_directorys_own_key(
    cli: Cli, encrypted: Path, key: Path, other: Path, command: int
) -> None:
    before, arguments = content(encrypted), commands(encrypted)[command]
    assert_refused(cli(*arguments), f"{encrypted} is encrypted: give its master key (local ")
    assert_refused(cli(*arguments, "--master-key-file", other), "is not the one that was used: give that one")
    assert content(encrypted) == before
    assert not (encrypted.parent / "copy").exists()
    done = cli(*arguments, "--master-key-file", key)
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_is_restored_with_its_key_only(cli: Cli, encrypted: Path, key: Path, other: Path) -> None:
    copy, new = encrypted.parent / "copy", encrypted.parent / "new"
    assert cli("state", "checkpoint", copy, "--state-dir", encrypted, "--master-key-file", key).returncode == 0
    assert_refused(cli("state", "restore", copy, "--state-dir", new), "is encrypted: give its master key")
    assert_refused(
        cli("state", "restore", copy, "--state-dir", new, "--master-key-file", other), "is not the one that was used"
    )
    assert not new.exists()
    assert cli("state", "restore", copy, "--state-dir", new, "--master-key-file", key).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", "--state-dir", new, "--master-key-file", key).stdout


def test_a_directory_that_is_not_encrypted_stays_so(cli: Cli, tmp_path: Path, key: Path) -> None:
    assert cli("remember", "walnut cake", "--state-dir", tmp_path / "s").returncode == 0
    before = content(tmp_path / "s")
    said = "was made without a master key, and is not encrypted: open it without one, or replay the log into a new"
    assert_refused(cli("ask", "cake?", "--state-dir", tmp_path / "s", "--master-key-file", key), said)
    assert content(tmp_path / "s") == before
    rotated = cli("state", "rotate-key", "--to-master-key-file", key, "--state-dir", tmp_path / "s")
    assert_refused(rotated, "is not encrypted: replay the log into a new directory with a master key")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"short", "holds no master key, 32 bytes in base64: make one with: openssl rand -base64 32"),
        (b"\xff\xfe\x00", "holds no master key"),
        (b"", "holds no master key"),
        (base64.b64encode(bytes(33)), "holds no master key"),
        (None, "cannot read the master key"),
    ],
)
def test_a_file_that_holds_no_key_is_refused_without_quoting_it(
    cli: Cli, tmp_path: Path, written: bytes | None, said: str
) -> None:
    if written is not None:
        (tmp_path / "k").write_bytes(written)
    done = cli("remember", "tea", "--state-dir", tmp_path / "s", "--master-key-file", tmp_path / "k")
    assert_refused(done, said)
    assert "short" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_the_key_may_stand_in_the_environment_which_nobody_prints(
    cli: Cli, encrypted: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = key.read_text().strip()
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", text)
    assert "walnut cake" in cli("ask", "walnut?", "--state-dir", encrypted).stdout
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", text[:-4])
    done = cli("ask", "walnut?", "--state-dir", encrypted)
    assert_refused(done, "encryption.master_key holds no master key")
    assert text[:-4] not in done.stderr


def test_after_a_rotation_only_the_new_key_opens_and_nothing_else_changed(
    cli: Cli, encrypted: Path, key: Path, other: Path
) -> None:
    state = ("--state-dir", encrypted)
    hashed = cli("state", "hash", *state, "--master-key-file", key).stdout
    before = content(encrypted)
    done = cli("state", "rotate-key", *state, "--master-key-file", key, "--to-master-key-file", other)
    assert (done.returncode, done.stderr) == (0, "")
    after = content(encrypted)
    assert [name for name in after if after[name] != before.get(name)] == ["recallflow.json"]
    assert_refused(cli("state", "hash", *state, "--master-key-file", key), "is not the one that was used")
    assert cli("state", "hash", *state, "--master-key-file", other).stdout == hashed
    assert_refused(cli("state", "rotate-key", *state, "--master-key-file", other), "give the new master key: --to")


def test_a_rotation_that_is_killed_leaves_the_old_key_or_the_new_one(
    cli: Cli, encrypted: Path, key: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is one rename: what is beside before it counts for nothing."""
    monkeypatch.setattr("recallflow.state.files.sync", _killed)  # the last step, behind the rename
    rotate = ("state", "rotate-key", "--state-dir", encrypted, "--master-key-file", key, "--to-master-key-file", other)
    assert cli(*rotate).returncode == 1
    monkeypatch.undo()
    assert cli("state", "verify", "--state-dir", encrypted, "--master-key-file", other).returncode == 0
    (encrypted / "recallflow.json.new").write_bytes(b"{half")
    assert cli("state", "verify", "--state-dir", encrypted, "--master-key-file", other).returncode == 0


def _killed(_: Path) -> None:
    raise MemoryError


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ids of two keys of a service that the environment leads to."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_KMS_ENDPOINT", endpoint)
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_KMS_REGION", REGION)
    client = boto3.client("kms", region_name=REGION, endpoint_url=endpoint)
    yield [client.create_key()["KeyMetadata"]["KeyId"] for _ in range(2)]
    server.stop()


def test_a_key_of_kms_protects_a_directory_and_is_rotated(cli: Cli, tmp_path: Path, kms: list[str], key: Path) -> None:
    state, (one, two) = ("--state-dir", tmp_path / "s"), kms
    assert cli("remember", "walnut cake", *state, "--kms-key", one).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--kms-key", one).stdout
    assert_refused(cli("ask", "walnut?", *state, "--kms-key", two), "cannot be used")
    assert_refused(cli("ask", "walnut?", *state, "--master-key-file", key), f"encrypted with the master key kms {one}")
    assert cli("state", "rotate-key", *state, "--kms-key", one, "--to-kms-key", two).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--kms-key", two).stdout
    assert cli("state", "rotate-key", *state, "--kms-key", two, "--to-master-key-file", key).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--master-key-file", key).stdout


def test_who_has_lost_its_key_is_told_so_by_every_question(cli: Cli, encrypted: Path, key: Path) -> None:
    with StateDirectory.existing(encrypted, 2**20, AtRest(read_master_key(key))) as directory:
        for partition in directory.partitions():
            for place, stored in [*partition.scan_stored(keys.OWNER_KEYS, keys.after(keys.OWNER_KEYS))]:
                partition._db.put(place, stored[:-1] + bytes([stored[-1] ^ 1]))
    for question in (["ask", "cake?"], ["graph", "status"], ["graph", "trace", "cake"], ["graph", "facts"]):
        done = cli(*question, "--state-dir", encrypted, "--master-key-file", key)
        assert done.stdout.startswith("decryption_failed: what is stored of the user could not be opened\n")
        assert "nothing remembered" not in done.stdout
    done = cli("remember", "tea", "--state-dir", encrypted, "--master-key-file", key)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be opened: restore the key or a checkpoint, or erase the user" in done.stderr
