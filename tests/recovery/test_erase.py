"""A user who is erased is in no file and in no hash, whatever was killed, copied or sent again."""

import base64
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify

DRIVER = Path(__file__).with_name("erasing.py")
SETTINGS = Settings(partitions=2)
USER, MARK = "bob-of-leeds", "zanzibarfish"
BROKEN = b"{"

MakeLog = Callable[..., list[bytes]]
HashOf = Callable[[Path], str]


@pytest.fixture(scope="module", params=[21, 22])
def lines(request: pytest.FixtureRequest, make_log: MakeLog) -> list[bytes]:
    """A log in which all that one user says has a word of its own."""
    renamed = (
        line.replace(b'"user_id":"bob"', f'"user_id":"{USER}"'.encode()) for line in make_log(request.param, 900)
    )
    return [line.replace(b'"content":"', f'"content":"{MARK} '.encode()) if is_of(line) else line for line in renamed]


def is_of(line: bytes) -> bool:
    return f'"user_id":"{USER}"'.encode() in line


def erasure(**fields: Any) -> bytes:
    told = {"type": "user.erase", "tenant_id": "acme", "user_id": USER, "timestamp": "2027-01-01T00:00:00Z"}
    return orjson.dumps(told | fields)


def remembered(state_dir: Path) -> int:
    asked = {"type": "user.stats", "tenant_id": "acme", "user_id": USER}
    (response,) = process([orjson.dumps(asked)], SETTINGS, state_dir).responses
    return int(response["stats"]["memories"])


def files_with_the_user(folder: Path) -> list[str]:
    """The files that hold a word of the user's, in whatever writing."""
    written = [word for text in (USER, MARK) for word in (text.encode(), text.encode("utf-16-le"))]
    for text in (USER, MARK):  # within base64, a text begins at one of three places
        written += [base64.b64encode(b"." * at + text.encode())[4:-4] for at in (0, 1, 2)]
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted({path.name for path in found if any(word in path.read_bytes() for word in written)})


def test_a_kill_at_any_step_of_an_erasure_changes_nothing(tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, "-m", "tests.recovery.erasing", tmp_path / "s"]
    found = subprocess.run(words, cwd=DRIVER.parents[2], capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    *broken, last = found.stdout.splitlines()
    assert broken == []
    kills, uncleaned = map(int, last.split())
    assert kills > 30
    assert uncleaned > 10


def test_what_is_left_is_a_log_without_the_user(lines: list[bytes], tmp_path: Path, hash_of: HashOf) -> None:
    """In the state as in its files, those of the recovery store too."""
    process(lines, SETTINGS, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s")
    process([erasure()], SETTINGS, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s") == []
    without: Sequence[bytes] = [BROKEN if is_of(line) else line for line in lines]
    process(without, SETTINGS, tmp_path / "without")
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "without")
    assert verify(tmp_path / "s").problems == []

    process([*lines, erasure()], SETTINGS, tmp_path / "new")  # the whole log, into a new directory
    assert hash_of(tmp_path / "new") == hash_of(tmp_path / "without")
    process(lines, SETTINGS, tmp_path / "s")  # and into the same one, without the erasure
    assert remembered(tmp_path / "s") == 0
    assert files_with_the_user(tmp_path / "s") == []


def test_who_goes_on_after_the_erasure_begins_anew(lines: list[bytes], tmp_path: Path, hash_of: HashOf) -> None:
    half = len(lines) // 2
    early = erasure(timestamp="2020-01-01T00:00:00Z")  # all that comes later is later than it
    process([*lines[:half], early, *lines[half:]], SETTINGS, tmp_path / "s")
    before = [BROKEN if is_of(line) else line for line in lines[:half]]
    process([*before, BROKEN, *lines[half:]], SETTINGS, tmp_path / "late")
    assert remembered(tmp_path / "s") == remembered(tmp_path / "late") > 0
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "late")
    assert verify(tmp_path / "s").problems == []


def test_a_checkpoint_from_before_that_is_run_on_is_erased_again(
    lines: list[bytes], tmp_path: Path, hash_of: HashOf
) -> None:
    half = len(lines) // 2
    process(lines[:half], SETTINGS, tmp_path / "s")
    checkpoint(tmp_path / "s", tmp_path / "copy")
    rest = [*lines[half:], erasure()]
    process(rest, SETTINGS, tmp_path / "s")
    restore(tmp_path / "copy", tmp_path / "restored")
    process(rest, SETTINGS, tmp_path / "restored")
    assert hash_of(tmp_path / "restored") == hash_of(tmp_path / "s")
    assert files_with_the_user(tmp_path / "restored") == []
    assert files_with_the_user(tmp_path / "copy")


def test_a_checkpoint_waits_until_files_are_clean(
    lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(lines, SETTINGS, tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(StateDirectory, "clean", lambda *_: None)  # as if killed before it came to that
        process([erasure()], SETTINGS, tmp_path / "s")
        assert files_with_the_user(tmp_path / "s")
        checkpoint(tmp_path / "s", tmp_path / "copy")
    assert files_with_the_user(tmp_path / "copy") == []
