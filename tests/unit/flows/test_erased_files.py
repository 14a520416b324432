"""An erased user is in no file and in no hash, also after copies and repeated logs."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify
from tests.event_log import hash_of, make_log
from tests.readable import files_with

SETTINGS = Settings(partitions=2)
USER, MARK = "bob-of-leeds", "zanzibarfish"
BROKEN = b"{"


@pytest.fixture(scope="module", params=[21, pytest.param(22, marks=pytest.mark.exhaustive)])
def lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Return a log in which all texts of one user contain a word."""
    renamed = (
        line.replace(b'"user_id":"bob"', f'"user_id":"{USER}"'.encode()) for line in make_log(request.param, 250)
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
    return files_with(folder, USER, MARK)


def test_erasure_leaves_a_state_without_the_user(lines: list[bytes], tmp_path: Path) -> None:
    process(lines, SETTINGS, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s")
    process([erasure()], SETTINGS, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s") == []
    without = [BROKEN if is_of(line) else line for line in lines]
    process(without, SETTINGS, tmp_path / "without")
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "without")
    assert verify(tmp_path / "s").problems == []
    process([*lines, erasure()], SETTINGS, tmp_path / "new")  # the whole log, into a new directory
    assert hash_of(tmp_path / "new") == hash_of(tmp_path / "without")
    process(lines, SETTINGS, tmp_path / "s")  # and into the same one, without the erasure
    assert (remembered(tmp_path / "s"), files_with_the_user(tmp_path / "s")) == (0, [])


def test_user_returns_after_an_erasure_without_a_past(lines: list[bytes], tmp_path: Path) -> None:
    half = len(lines) // 2
    early = erasure(timestamp="2020-01-01T00:00:00Z")  # all that comes later is later than it
    process([*lines[:half], early, *lines[half:]], SETTINGS, tmp_path / "s")
    before = [BROKEN if is_of(line) else line for line in lines[:half]]
    process([*before, BROKEN, *lines[half:]], SETTINGS, tmp_path / "late")
    assert remembered(tmp_path / "s") == remembered(tmp_path / "late") > 0
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "late")
    assert verify(tmp_path / "s").problems == []


def test_restored_older_checkpoint_is_erased_again(lines: list[bytes], tmp_path: Path) -> None:
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


def test_checkpoint_waits_for_clean_files(lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(lines, SETTINGS, tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(StateDirectory, "clean", lambda *_: None)  # as if killed before
        process([erasure()], SETTINGS, tmp_path / "s")
        assert files_with_the_user(tmp_path / "s")
        checkpoint(tmp_path / "s", tmp_path / "copy")
    assert files_with_the_user(tmp_path / "copy") == []
