"""`recallflow erase` on directories without Kafka, the search for remains, and the lines about Kafka's topics."""

import base64
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from recallflow.cli.erasing import remains_line
from recallflow.connectors.kafka.erasure import RemainingRecords, Retention
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.owner import state_partition
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify
from tests.unit.cli.harness import Cli, event, jsonl, parsed

ANN, BOB = "ann.of.green.gables@example.com", "bob.the.builder@example.com"
SECRET = "the third locker from the left"
MASTER_KEY = base64.b64encode(bytes(range(32))).decode()
HOUR_MS = 3_600_000
PARTITIONS = 5
AT_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def memory(user: str, content: str, **fields: Any) -> dict[str, Any]:
    return event("memory", user_id=user, content=content, **fields)


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [
        memory(ANN, f"Ann keeps her keys in {SECRET}", tags=["hiding places of Ann"], environment="staging"),
        memory(ANN, "Ann reads novels of the nineteenth century", metadata={"shelf number": "shelf nineteen"}),
        memory(BOB, "Bob keeps bees, and reads novels of the nineteenth century"),
    ]
    path = tmp_path_factory.mktemp("erase") / "s"
    assert process(jsonl(*lines).splitlines(), Settings(partitions=1), path).rejected == []
    return path


@pytest.fixture
def lived(remembered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(remembered, tmp_path / "s")


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", str(PARTITIONS))


def memories(cli: Cli, path: Path, user: str) -> list[str]:
    lines = parsed(cli("export", "acme", user, "--state-dir", path).stdout)
    return [one["content"] for one in lines if one["type"] == "memory"]


def assert_clean(done: CompletedProcess[str]) -> None:
    """Check that an erasure succeeded and that its search found no remains."""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_erased_user_is_in_no_file(lived: Path, cli: Cli) -> None:
    done = cli("erase", "acme", ANN, "--verify", "--state-dir", lived)
    assert_clean(done)
    assert f"{lived}: user {ANN} of tenant acme is erased" in done.stdout
    assert memories(cli, lived, ANN) == []
    assert memories(cli, lived, BOB) == ["Bob keeps bees, and reads novels of the nineteenth century"]
    assert verify(lived).problems == []


@pytest.mark.usefixtures("partitioned")
def test_offsets_and_ids_of_other_users_are_no_remains(cli: Cli, tmp_path: Path) -> None:
    """Give Bob events at the positions that Ann's have, and an id that Ann has too."""
    apart = state_partition("acme", ANN, PARTITIONS)
    bob = next(name for n in range(99) if state_partition("acme", name := f"bob {n}", PARTITIONS) != apart)
    lines = [memory(ANN, "Ann rows", id="shared-id-1", receipt=True), memory(ANN, "Ann sails", receipt=True)]
    lines += [memory(bob, f"Bob is number {n}", receipt=True) for n in range(20)]
    lines += [memory(bob, "Bob rows", id="shared-id-1", receipt=True)]
    lines += [event("memory.forget", user_id=bob, memory_id="shared-id-1", receipt=True)]
    assert cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(*lines)).returncode == 0
    cli("export", "acme", ANN, "--state-dir", tmp_path / "s", "--out", tmp_path / "ann.jsonl")
    export = ("--export", tmp_path / "ann.jsonl")
    assert_clean(cli("erase", "acme", ANN, "--verify", *export, "--state-dir", tmp_path / "s"))


def test_erasure_cleans_files_without_the_background(lived: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateDirectory, "clean", lambda *_: None)
    assert_clean(cli("erase", "acme", ANN, "--verify", "--state-dir", lived))


@pytest.mark.parametrize(("name", "environment"), [("ann.of.green.gable@example.com", "staging"), (ANN, "prd")])
def test_unknown_user_is_not_reported_as_erased(lived: Path, cli: Cli, name: str, environment: str) -> None:
    done = cli("erase", "acme", name, "--environment", environment, "--state-dir", lived)
    assert (done.returncode, "is erased" in done.stdout, name in done.stdout) == (0, False, True)


def test_remains_in_another_folder_are_found_and_not_quoted(lived: Path, cli: Cli, tmp_path: Path) -> None:
    also, copy, export = tmp_path / "also", tmp_path / "copy", tmp_path / "ann.jsonl"
    shutil.copytree(lived, copy)
    also.mkdir()
    (also / "note.b64").write_bytes(base64.b64encode(f"…{SECRET}".encode()))
    cli("export", "acme", ANN, "--state-dir", lived, "--out", export)
    done = cli("erase", "acme", ANN, "--verify", "--also", also, "--also", copy, "--state-dir", lived)
    assert done.returncode == 1
    assert f"{also / 'note.b64'}: FOUND" in done.stdout
    assert f"{copy}/p" in done.stdout
    assert "locker" not in done.stdout
    assert_clean(cli("erase", "acme", ANN, "--verify-only", "--export", export, "--state-dir", lived))


def test_encrypted_directory_is_erased(lived: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the encrypted directory first as a checkpoint, without its key."""
    sealed = tmp_path / "sealed"
    with monkeypatch.context() as keyed:
        keyed.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", MASTER_KEY)
        lines = jsonl(memory(ANN, f"Ann keeps her keys in {SECRET}"), memory(BOB, "Bob keeps bees"))
        assert cli("pipe", "--state-dir", sealed, stdin=lines).returncode == 0
    done = cli("erase", "acme", ANN, "--checkpoint", sealed, "--state-dir", lived)
    assert done.returncode == 1
    assert f"{sealed}: NOT erased: " in done.stdout
    assert f"{lived}: user {ANN} of tenant acme is erased" in done.stdout

    monkeypatch.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY", MASTER_KEY)
    assert memories(cli, sealed, ANN) == [f"Ann keeps her keys in {SECRET}"]
    assert_clean(cli("erase", "acme", ANN, "--verify", "--state-dir", sealed))
    assert memories(cli, sealed, BOB) == ["Bob keeps bees"]


def test_options_that_exclude_each_other_are_refused(lived: Path, cli: Cli) -> None:
    for words, token in (
        ((ANN, "--verify"), "nothing to search"),
        ((ANN, "--verify", "--state-dir", lived, "--also", lived / "nowhere"), str(lived / "nowhere")),
        ((ANN, "--compact-kafka", "--state-dir", lived), "--compact-kafka"),
        (("a/nn", "--compact-kafka"), "slash"),
    ):
        done = cli("erase", "acme", *words)
        assert (done.returncode, token in done.stderr) == (2, True)


@pytest.mark.usefixtures("partitioned")
def test_split_directories_erase_the_users_of_their_own_partitions(cli: Cli, tmp_path: Path) -> None:
    ann, bob = (state_partition("acme", user, PARTITIONS) for user in (ANN, BOB))
    assert ann != bob
    for user in (ANN, BOB):
        owner = ("--tenant", "acme", "--user", user)
        assert cli("remember", f"{user} reads novels", *owner, "--state-dir", tmp_path / "s").returncode == 0
    assert cli("state", "split", tmp_path / "s", "--into", f"{tmp_path / 'other'}:{ann}").returncode == 0
    elsewhere = cli("erase", "acme", ANN, "--state-dir", tmp_path / "s")
    assert (elsewhere.returncode, f"p{ann:03d}" in elsewhere.stderr) == (1, True)
    for user, path in ((ANN, tmp_path / "other"), (BOB, tmp_path / "s")):
        assert verify(path).problems == []
        done = cli("erase", "acme", user, "--verify", "--state-dir", path)
        assert_clean(done)
        assert f"user {user} of tenant acme is erased" in done.stdout
        assert verify(path).problems == []


@pytest.mark.parametrize(
    ("retention", "token"),
    [
        (Retention(("delete",), 24 * HOUR_MS, -1, HOUR_MS), "2023-11-15T23:13:20Z"),
        (Retention(("delete",), 24 * HOUR_MS, 99, HOUR_MS), "retention.bytes=99"),
        (Retention(("delete",), -1, -1, HOUR_MS), "retention.ms=-1"),
        (Retention(("delete",), 2**63 - 1, -1, HOUR_MS), "9999-12-31T23:59:59.999Z"),
        (Retention(("compact",), HOUR_MS, -1, HOUR_MS), "cleanup.policy=compact"),
        (Retention(("compact", "delete"), HOUR_MS, -1, HOUR_MS), "2023-11-15T00:13:20Z"),
        (None, "expiry unknown"),
    ],
)
def test_line_of_a_topic_states_its_retention(retention: Retention | None, token: str) -> None:
    line = remains_line(RemainingRecords("some.topic", retention, 3, AT_MS, [0]), is_memory=False)
    assert line.startswith("some.topic: 3 records, the newest from 2023-11-14T22:13:20Z; ")
    assert token in line
    assert ("compact" in line) is (retention is not None and retention.compacts)
