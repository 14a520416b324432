"""One lock on a whole state directory, acquired before anything in it is read or written.

It is a flock, so the kernel releases it when its process dies. The file names the process that holds it. A process that
is refused has written nothing. Below, RocksDB locks each state partition."""

import contextlib
import fcntl
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from recallflow.errors import StateInUse, StorageError
from recallflow.private_files import FILE_MODE

LOCK = "recallflow.lock"
WAIT_S = 2.0  # after a hand-over the process before may still be ending
RETRY_S = 0.05

command: ContextVar[str] = ContextVar("command", default="a program")  # the name of this process in the lock's note


@dataclass(slots=True)
class _Held:
    file: int
    times: int = 0


class _Thread(threading.local):  # ends with its thread: the number of a thread is used again
    def __init__(self) -> None:
        self.held: dict[Path, _Held] = {}


_thread = _Thread()


@contextlib.contextmanager
def locked(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Lock an existing directory. A thread may lock it repeatedly; the last release unlocks it. Raise StateInUse, which
    names the holder, after `wait_s` (by default `WAIT_S`)."""
    holding, place = _thread.held, path.resolve()
    if place not in holding:
        holding[place] = _Held(_acquired(path, WAIT_S if wait_s is None else wait_s))
    held = holding[place]
    held.times += 1
    try:
        yield
    finally:
        held.times -= 1
        if held.times == 0:
            del holding[place]
            os.close(held.file)


def remove_unused(path: Path) -> None:
    """Remove a directory that holds locks only, as after a failed first start, unless another process uses it."""
    with contextlib.suppress(StateInUse, StorageError), locked(path, wait_s=0.0):
        if all(one.is_dir() or one.name == LOCK for one in path.rglob("*")):
            shutil.rmtree(path)


def holder(path: Path) -> str | None:
    """Return the holder of a directory, or None. It writes nothing and delays openers briefly. Raise StorageError."""
    try:
        file = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path / LOCK}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(file)
    finally:
        os.close(file)
    return None


def _acquired(path: Path, wait_s: float) -> int:
    try:
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            _wait(file, path, time.monotonic() + wait_s)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise StorageError(f"cannot lock {path / LOCK}: {error.strerror}") from error
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
        os.ftruncate(file, 0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"command": command.get(), "pid": os.getpid(), "host": socket.gethostname(), "since": since}
        os.pwrite(file, orjson.dumps(note), 0)
    return file


def _wait(file: int, path: Path, give_up_s: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return
            raise StorageError(f"{path} was removed by a process that could not start: start again")
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                raise StateInUse(f"{path} is in use by {_holder(file)}") from None
        time.sleep(RETRY_S)


def _holder(file: int) -> str:
    try:
        note = orjson.loads(os.pread(file, 4_096, 0))
        return f"{note['command']} (process {note['pid']} on {note['host']}, since {note['since']})"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another process"
