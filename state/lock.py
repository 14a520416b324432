"""The lock on a state directory, acquired before anything in it is read or written.

It is a flock, so the kernel releases it when its process dies. The lock file names the process. A process that does
not get the lock has written nothing. In addition, RocksDB locks each state partition."""

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
from recallflow.state.files import storage_errors

LOCK = "recallflow.lock"
WAIT_S = 2.0  # the previous process may still be closing the directory
RETRY_S = 0.05

command: ContextVar[str] = ContextVar("command", default="a program")  # the name of this process in the lock file


@dataclass(slots=True)
class _AcquiredLock:
    descriptor: int
    uses: int = 0


# Locks of each thread by path. They are not kept by thread number, because a later thread may have the same number.
_thread_locks = threading.local()


@contextlib.contextmanager
def locked(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Lock an existing directory. A thread may lock it repeatedly; the last release unlocks it. Raise StateInUse, which
    names the other process, after `wait_s` (by default `WAIT_S`)."""
    locks: dict[str, _AcquiredLock] = vars(_thread_locks)  # of this thread
    resolved = str(path.resolve())
    if resolved not in locks:
        locks[resolved] = _AcquiredLock(_acquire(path, WAIT_S if wait_s is None else wait_s))
    lock = locks[resolved]
    lock.uses += 1
    try:
        yield
    finally:
        lock.uses -= 1
        if lock.uses == 0:
            del locks[resolved]
            os.close(lock.descriptor)


def remove_unused(path: Path) -> None:
    """Remove a directory that contains only lock files (after a failed first start), unless another process uses it."""
    with contextlib.suppress(StateInUse, StorageError), locked(path, wait_s=0.0):
        if all(one.is_dir() or one.name == LOCK for one in path.rglob("*")):
            shutil.rmtree(path)


def holder(path: Path) -> str | None:
    """Return the process that has locked a directory, or None. Nothing is written. A process that opens the directory
    at the same time may have to wait briefly. Raise StorageError."""
    with storage_errors(path / LOCK):
        try:
            file = os.open(path / LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(file)
    finally:
        os.close(file)
    return None


def _acquire(path: Path, wait_s: float) -> int:
    """Return the descriptor of the locked file."""
    with storage_errors(path / LOCK):
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            _wait(file, path, time.monotonic() + wait_s)
        except BaseException:
            os.close(file)
            raise
    with contextlib.suppress(OSError):  # the lock is valid even if a full disk refuses the note
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
            raise StorageError(f"{path} was removed by another process whose start failed: start again")
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                raise StateInUse(f"{path} is in use by {_read_holder(file)}") from None
        time.sleep(RETRY_S)


def _read_holder(file: int) -> str:
    try:
        note = orjson.loads(os.pread(file, 4_096, 0))
        return f"{note['command']} (process {note['pid']} on {note['host']}, since {note['since']})"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another process"
