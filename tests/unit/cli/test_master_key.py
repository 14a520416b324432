"""Master keys of state directories: which one a directory needs, and that a wrong one changes nothing."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from recallflow.connectors.master_keys import read_master_key
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from tests.unit.cli.harness import Cli, assert_error, event, jsonl

REGION = "eu-west-1"
WRONG = "is not the one that was used"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two keys and a directory that is encrypted with the first."""
    folder = tmp_path_factory.mktemp("keys")
    for number, name in enumerate(("master.key", "other.key"), 1):
        (folder / name).write_text(base64.b64encode(bytes([number] * 32)).decode() + "\n")
    memory = event("memory", content="walnut cake", tenant_id="default", user_id="user")
    at_rest = AtRest(read_master_key(folder / "master.key"))
    process([jsonl(memory)], Settings(partitions=1), folder / "s", at_rest=at_rest)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "f")


@pytest.fixture
def key(folder: Path) -> Path:
    return folder / "master.key"


@pytest.fixture
def other(folder: Path) -> Path:
    return folder / "other.key"


@pytest.fixture
def encrypted(folder: Path) -> Path:
    return folder / "s"


def content(folder: Path) -> dict[str, bytes]:
    """Return all files but the lock, whose note names its last holder."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "recallflow.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# Every command that opens a state directory without Kafka.
COMMANDS = (
    "pipe", "ask cake?", "remember tea", "graph status", "state info", "state hash", "state verify",
    "state checkpoint COPY", "state rotate-key --to-master-key-file OTHER",
)  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_command_needs_the_key_of_the_directory(cli: Cli, encrypted: Path, key: Path, other: Path, line: str) -> None:
    names = {"COPY": encrypted.parent / "copy", "OTHER": other}
    words = [*(names.get(word, word) for word in line.split()), "--state-dir", encrypted]
    before = content(encrypted)
    assert_error(cli(*words), 2, f"{encrypted} is encrypted")
    assert_error(cli(*words, "--master-key-file", other), 2, WRONG)
    assert content(encrypted) == before
    assert not (encrypted.parent / "copy").exists()
    done = cli(*words, "--master-key-file", key)
    assert done.returncode == 0, done.stderr


def test_plain_directory_takes_no_key(cli: Cli, filled: Path, key: Path) -> None:
    before = content(filled)
    said = "is not encrypted"
    assert_error(cli("ask", "cake?", "--state-dir", filled, "--master-key-file", key), 2, said)
    assert content(filled) == before
    assert_error(cli("state", "rotate-key", "--to-master-key-file", key, "--state-dir", filled), 2, said)


@pytest.mark.parametrize(
    ("written", "token"),
    [
        (b"short", "openssl rand -base64 32"), (b"\xff\xfe\x00", "holds no master key"), (b"", "holds no master key"),
        (base64.b64encode(bytes(33)), "holds no master key"), (None, "cannot read"),
    ],
)  # fmt: skip
def test_file_without_a_key_is_refused_unquoted(cli: Cli, tmp_path: Path, written: bytes | None, token: str) -> None:
    if written is not None:
        (tmp_path / "k").write_bytes(written)
    done = cli("remember", "tea", "--state-dir", tmp_path / "s", "--master-key-file", tmp_path / "k")
    assert_error(done, 2, token)
    assert "short" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_key_of_the_environment_is_used_unquoted(
    cli: Cli, encrypted: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = key.read_text().strip()
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", text)
    assert "walnut cake" in cli("ask", "walnut?", "--state-dir", encrypted).stdout
    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", text[:-4])
    done = cli("ask", "walnut?", "--state-dir", encrypted)
    assert_error(done, 2, "encryption.master_key")
    assert text[:-4] not in done.stderr


def test_rotated_directory_opens_with_the_new_key_only(cli: Cli, encrypted: Path, key: Path, other: Path) -> None:
    state, old, new = ("--state-dir", encrypted), ("--master-key-file", key), ("--master-key-file", other)
    hashed = cli("state", "hash", *state, *old).stdout
    before = content(encrypted)
    done = cli("state", "rotate-key", *state, *old, "--to-master-key-file", other)
    assert (done.returncode, done.stderr) == (0, "")
    after = content(encrypted)
    assert [name for name in after if after[name] != before.get(name)] == ["recallflow.json"]
    assert_error(cli("state", "hash", *state, *old), 2, WRONG)
    assert cli("state", "hash", *state, *new).stdout == hashed
    assert_error(cli("state", "rotate-key", *state, *new), 2, "--to")


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the ids of two keys of a local key service."""
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


def test_key_of_kms_protects_a_directory_and_is_rotated(cli: Cli, tmp_path: Path, kms: list[str], key: Path) -> None:
    state, (one, two) = ("--state-dir", tmp_path / "s"), kms
    assert cli("remember", "walnut cake", *state, "--kms-key", one).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--kms-key", one).stdout
    assert_error(cli("ask", "walnut?", *state, "--kms-key", two), 2, "cannot be used")
    assert_error(cli("ask", "walnut?", *state, "--master-key-file", key), 2, f"kms {one}")
    assert cli("state", "rotate-key", *state, "--kms-key", one, "--to-kms-key", two).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--kms-key", two).stdout
    assert cli("state", "rotate-key", *state, "--kms-key", two, "--to-master-key-file", key).returncode == 0
    assert "walnut cake" in cli("ask", "walnut?", *state, "--master-key-file", key).stdout


def test_damaged_owner_key_fails_every_command(cli: Cli, encrypted: Path, key: Path) -> None:
    with StateDirectory.existing(encrypted, 2**20, AtRest(read_master_key(key))) as directory:
        for partition in directory.partitions():
            for place, stored in [*partition.scan_stored(keys.OWNER_KEYS, keys.after(keys.OWNER_KEYS))]:
                partition._db.put(place, stored[:-1] + bytes([stored[-1] ^ 1]))
    state = ("--state-dir", encrypted, "--master-key-file", key)
    for question in (["ask", "cake?"], ["graph", "status"], ["graph", "trace", "cake"], ["graph", "facts"]):
        shown = cli(*question, *state).stdout
        assert shown.startswith("decryption_failed: ")
        assert "nothing remembered" not in shown
    done = cli("remember", "tea", *state)
    assert (done.returncode, done.stdout, "cannot be opened" in done.stderr) == (1, "", True)
