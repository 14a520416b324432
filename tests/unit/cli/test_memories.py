"""Everyday commands on memories, erasure and the master key."""

import base64
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from rich.cells import cell_len

from recallflow.cli.erase_steps import remaining_line
from recallflow.cli.memories import relative_time
from recallflow.connectors.kafka.topic_erasure import RemainingRecords, Retention
from recallflow.connectors.master_keys import read_master_key
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.owner import state_partition
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from recallflow.state.verify import verify
from tests.unit.cli.harness import Cli, assert_error, event, jsonl, on_terminal, parsed, without_colours

OWNER = {"tenant_id": "default", "user_id": "user"}
# It would clear the screen, ring, set the title, and write from right to left.
HOSTILE = "before\x1b[2J\x07\x1b]0;owned\x07\u009b31m\u202eafter\r\nnext\x00"
WIDE = "東京の天気は晴れです。" * 12
HEBREW = "שלום, אני גר בתל אביב " * 8
SHOW_HOSTILE = (("list",), ("show", "m0"), ("ask", "what was before and after?"), ("episodes",))
ALL = ["m2", "m1", "m0", *(f"f{n}" for n in reversed(range(25)))]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with 25 facts, one of them changed, a conversation, and texts that are hard to show."""
    facts: list[dict[str, Any]] = [
        event("memory", id=f"f{n}", content=f"fact {n}") | {"timestamp": f"2025-01-01T00:{n:02}:00Z"} for n in range(25)
    ]
    facts[3] |= {"category": "food", "tags": ["sweet", "cold"], "session_id": "s1", "importance": 0.9}
    facts[4] |= {"category": "food", "tags": ["sweet"]}
    said = [
        event("message", id=f"m{n}", name="Ann", session_id="chat", content=text)
        | {"timestamp": f"2025-02-01T00:0{n}:00Z"}
        for n, text in enumerate((HOSTILE, WIDE, HEBREW))
    ]
    changed = event("memory.update", memory_id="f3", content="ice cream") | {"timestamp": "2025-01-02T00:00:00Z"}
    lines = jsonl(*(one | OWNER for one in (*facts, changed, *said))).splitlines()
    state_dir = tmp_path_factory.mktemp("memories") / "s"
    assert process(lines, Settings(partitions=1), state_dir).rejected == []
    return state_dir


@pytest.fixture(scope="module")
def directory(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(pristine, tmp_path_factory.mktemp("queried") / "s")


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(cli: Cli, directory: Path) -> Run:
    return lambda *words: cli(*words, "--state-dir", directory)


@pytest.fixture
def own(pristine: Path, tmp_path: Path) -> Path:
    """Return a copy that no other test has queried."""
    return shutil.copytree(pristine, tmp_path / "own")


def listed(done: CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t")[1] for line in done.stdout.splitlines() if "\t" in line]


@pytest.mark.parametrize(
    ("narrowed", "ids"),
    [
        ((), ALL[:20]), (("--limit", "3"), ALL[:3]), (("--all",), ALL), (("--category", "food"), ["f4", "f3"]),
        (("--tag", "cold"), ["f3"]), (("--session", "chat"), ["m2", "m1", "m0"]),
        (("--session", "chat", "--session", "s1"), ["m2", "m1", "m0", "f3"]),
        (("--kind", "message", "--limit", "1"), ["m2"]),
        (("--category", "food", "--as-of", "2025-01-01T00:03:30Z"), ["f3"]), (("--tag", "x"), []),
    ],
)  # fmt: skip
def test_list_shows_the_newest_that_fit(run: Run, narrowed: tuple[str, ...], ids: list[str]) -> None:
    assert listed(run("list", *narrowed)) == ids


def test_list_continues_over_pages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.cli.memories.PAGE_SIZE_MAX", 4)
    assert (listed(run("list", "--limit", 10)), listed(run("list", "--all"))) == (ALL[:10], ALL)
    pages = parsed(run("list", "--limit", 10, "--json").stdout)
    assert [len(page["memory_page"]["memories"]) for page in pages] == [4, 4, 2]


def test_memory_is_shown_with_its_fields_and_versions(run: Run) -> None:
    done = run("show", "f3")
    assert (done.returncode, done.stderr) == (0, "")
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shown[0] == "fact: ice cream"
    assert {"id f3", "category food", "tags sweet, cold", "session s1", "importance 0.9"} <= {*shown}
    assert any(line.startswith("version 0 ") and line.endswith(": fact 3") for line in shown)


def test_memory_in_json_is_its_current_version_and_history(run: Run) -> None:
    now, history = parsed(run("show", "f3", "--json").stdout)
    assert [one["content"] for one in now["versions"]] == ["ice cream"]
    assert [one["content"] for one in history["versions"]] == ["fact 3", "ice cream"]


def test_unknown_memory_is_refused(run: Run) -> None:
    done = run("show", "nix")
    assert (done.returncode, done.stdout, "'nix'" in done.stderr) == (1, "", True)


def test_episodes_are_listed(run: Run) -> None:
    (line,) = run("episodes", "--session", "chat").stdout.splitlines()
    begun, ended, episode, session, messages, _ = line.split("\t")
    assert (begun, ended, session, messages) == ("2025-02-01T00:00:00Z", "2025-02-01T00:02:00Z", "chat", "3")
    assert episode in [one["id"] for one in json.loads(run("episodes", "--json").stdout)["episodes"]]


def test_show_tells_when_a_memory_was_used(cli: Cli, own: Path) -> None:
    assert "used         never" in cli("show", "f3", "--state-dir", own).stdout
    cli("ask", "Who has ice cream?", "--state-dir", own)
    assert "used         once, last today" in cli("show", "f3", "--state-dir", own).stdout


def test_ask_shows_how_a_score_came_about(run: Run) -> None:
    first = json.loads(run("ask", "ice cream", "--json", "--explain").stdout)["memories"][0]
    assert first["id"] == "f3"
    shown = re.search(r"score ([\d.]+) \(semantic ", run("ask", "ice cream", "--explain").stdout)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(first["score"], abs=0.01)


def test_forgotten_memories_are_gone(cli: Cli, own: Path) -> None:
    assert cli("forget", "f4", "--state-dir", own).stdout == "forgotten\n"
    assert "f4" not in listed(cli("list", "--all", "--state-dir", own))
    assert json.loads(cli("forget", "--session", "chat", "--json", "--state-dir", own).stdout)["outcome"] == "forgotten"
    assert listed(cli("list", "--session", "chat", "--state-dir", own)) == []
    assert cli("forget", "--session", "chat", "--state-dir", own).stdout == "no memories to forget\n"


@pytest.mark.parametrize("named", [(), ("f3", "--tag", "sweet")])
def test_forget_needs_either_an_id_or_options(run: Run, named: tuple[str, ...]) -> None:
    done = run("forget", *named)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "typed", "asks", "left"),
    [
        (("--category", "food"), b"\n", "all 2", ["f4", "f3"]), (("--category", "food"), b"y\n", "all 2", []),
        (("f3",), b"y\n", "[y/N]", ["f4"]), (("f3", "--yes"), b"", "", ["f4"]),
    ],
)  # fmt: skip
def test_forget_on_a_terminal_asks_first(
    cli: Cli, own: Path, words: tuple[str, ...], typed: bytes, asks: str, left: list[str]
) -> None:
    shown = on_terminal(80, "forget", *words, "--state-dir", own, typed=typed)
    assert ("[y/N]" in shown, "ice cream" in shown) == (bool(asks), bool(asks))
    assert asks in shown
    assert listed(cli("list", "--category", "food", "--state-dir", own)) == left


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_table_fits_the_terminal_in_every_script(directory: Path, columns: int) -> None:
    plain = without_colours(on_terminal(columns, "list", "--state-dir", directory)).splitlines()
    assert [line for line in plain if cell_len(line) > columns] == []
    assert len([line for line in plain if "2025" in line]) == 20
    assert any("東京" in line and line.rstrip().endswith("…") for line in plain)
    assert any("שלום" in line for line in plain)


@pytest.mark.parametrize("command", SHOW_HOSTILE, ids=" ".join)
def test_hostile_text_does_not_control_the_terminal(run: Run, directory: Path, command: tuple[str, ...]) -> None:
    shown = without_colours(on_terminal(100, *command, "--state-dir", directory))
    assert [character for character in shown if character < " " and character != "\n"] == []
    assert not {*"\x7f\u009b\u202e"} & {*shown}
    piped = run(*command).stdout
    assert not {*"\x00\x07\x1b\r\u009b\u202e"} & {*piped}
    assert "before" in shown
    assert "before" in piped


def test_words_of_the_question_are_highlighted(directory: Path) -> None:
    shown = on_terminal(100, "ask", "Who has ice cream?", "-k", "1", "--state-dir", directory)
    assert "\x1b[1;33mice\x1b[0m" in shown
    assert len([line for line in without_colours(shown).splitlines() if "because: " in line]) == 1


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("2026-03-10T09:05:00Z", "today 09:05"), ("2026-03-09T23:59:00Z", "yesterday 23:59"),
        ("2026-03-04T12:00:00Z", "6 days ago"), ("2026-03-03T12:00:00Z", "3 March"),
        ("2025-12-24T12:00:00Z", "24 December 2025"), ("2026-03-12T12:00:00Z", "12 March"),
        ("0001-01-01T00:00:00Z", "0001-01-01"), ("9999-12-31T23:59:59Z", "9999-12-31"),
    ],
)  # fmt: skip
def test_time_is_shown_relative_to_now(at: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert relative_time(at, datetime(2026, 3, 10, 12, tzinfo=UTC)) == said


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


def test_erased_user_is_in_no_file(lived: Path, cli: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert cli("state", "checkpoint", copy, "--state-dir", lived).returncode == 0
    done = cli("erase", "acme", ANN, "--verify", "--checkpoint", copy, "--state-dir", lived)
    assert_clean(done)
    assert (f"{copy}: user {ANN} of tenant acme is erased" in done.stdout, memories(cli, copy, ANN)) == (True, [])
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
    line = remaining_line(RemainingRecords("some.topic", retention, 3, AT_MS, [0]), is_memory=False)
    assert line.startswith("some.topic: 3 records, the newest from 2023-11-14T22:13:20Z; ")
    assert token in line
    assert ("compact" in line) is (retention is not None and "compact" in retention.policies)


REGION = "eu-west-1"
WRONG = "is not the one of this directory"


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
        (b"short", "openssl rand -base64 32"), (b"\xff\xfe\x00", "is not a master key"), (b"", "is not a master key"),
        (base64.b64encode(bytes(33)), "is not a master key"), (None, "cannot read"),
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
    with StateDirectory.existing(encrypted, AtRest(read_master_key(key))) as directory:
        for partition in directory.partitions():
            for place, stored in [*partition.scan_stored(keys.OWNER_KEYS, keys.after(keys.OWNER_KEYS))]:
                partition._db.put(place, stored[:-1] + bytes([stored[-1] ^ 1]))
    state = ("--state-dir", encrypted, "--master-key-file", key)
    for question in (["ask", "cake?"], ["graph", "status"], ["graph", "trace", "cake"], ["graph", "facts"]):
        shown = cli(*question, *state).stdout
        assert shown.startswith("decryption_failed: ")
        assert "nothing remembered" not in shown
    done = cli("remember", "tea", *state)
    assert (done.returncode, done.stdout, "cannot be decrypted" in done.stderr) == (1, "", True)
