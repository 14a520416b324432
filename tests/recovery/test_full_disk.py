"""A disk without room is told as that, by every command: nothing is broken, to be restored, or to be given up."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from recallflow.cli import main
from recallflow.state import database

COMMANDS = (("state", "verify"), ("state", "checkpoint", "COPY"), ("ask", "tea?"), ("remember", "Tea."))
NO_SPACE = os.strerror(errno.ENOSPC)


def rocksdb(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(f"IO error: {NO_SPACE}: While appending to file: /s/p000/000012.log: {NO_SPACE}")

    monkeypatch.setattr(database, "Rdict", refuse)


def lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(f"IO error: {NO_SPACE}: While open a file for lock: /s/p000/LOCK: {NO_SPACE}")

    monkeypatch.setattr(database, "Rdict", refuse)


def sqlite(message: str) -> Callable[[pytest.MonkeyPatch], None]:
    def fail(monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> NoReturn:
            raise sqlite3.OperationalError(message)

        used: Any = shutil.disk_usage
        monkeypatch.setattr(sqlite3, "connect", refuse)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: used(path)._replace(free=0))

    return fail


@pytest.mark.parametrize("fails", [rocksdb, lock, sqlite("disk I/O error"), sqlite("database or disk is full")])
def test_a_full_disk_is_told_as_such(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fails: Callable[[pytest.MonkeyPatch], None],
) -> None:
    where = ["--state-dir", str(tmp_path / "s")]
    log = tmp_path / "log.jsonl"
    log.write_text('{"type": "message", "tenant_id": "acme", "user_id": "ann", "role": "user", "content": "red"}\n')
    assert main(["replay", str(log), "--embedded", "--create", *where]) == 0
    capfd.readouterr()
    for words in COMMANDS:
        with monkeypatch.context() as while_full:
            fails(while_full)
            assert main([str(tmp_path / "copy") if word == "COPY" else word for word in words] + where) == 1
        out, err = capfd.readouterr()
        assert out == ""
        assert "is full" in err
        assert "free space" in err
        assert not [harmful for harmful in ("restore", "Restore", "rebuild", "give-up", "away") if harmful in err]
    assert main(["state", "verify", *where]) == 0  # once there is room
