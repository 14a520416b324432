"""Process-wide concerns: signals, the end of a process, and the budget of file descriptors.

Clients, databases and other files have shares of the descriptors below the limit, so that any number of clients leaves
enough for an engine to write.
"""

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
from typing import NoReturn


def log_at_once(name: str, message: str) -> None:
    """Write a warning from a signal handler. It bypasses the log stream, which the signal may have interrupted in a
    write. `name` is that of the logger."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else f"recallflow: {message}"
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{line}\n".encode())


MEMBER_VARIABLE = "RECALLFLOW_MEMBER"  # set only by a supervisor, whose exit ends our standard input
STDIN = 0

_log = logging.getLogger(__name__)


def end_with_supervisor() -> None:
    """Stop a member by SIGTERM once its supervisor has ended in any way."""
    if MEMBER_VARIABLE in os.environ:
        threading.Thread(target=_watch, daemon=True, name="recallflow-supervised").start()


def _watch() -> None:
    while os.read(STDIN, 1):
        pass  # nothing is ever written to it
    _log.warning("the supervisor is gone: this member ends")
    os.kill(os.getpid(), signal.SIGTERM)


STOPPED = "stopped before it began to work"


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process at once, with 0, until the flow handles them itself. A start may be
    interrupted at any moment, because nothing is in flight yet."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> NoReturn:
    try:
        log_at_once(__name__, STOPPED)
    finally:
        os._exit(0)


def end_process(code: int) -> NoReturn:
    """End the process without Python's clean-up, which waits for threads and destroys clients of librdkafka: a
    client abandoned during a call would block it for ever. All important resources are closed by now."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
    finally:
        os._exit(code)


STATE_SHARE = 1 / 2
CONNECTIONS_SHARE = 1 / 4
ACCEPTED_SHARE = 1 / 16  # connections that one turn of the event loop may accept before any of them is closed
CONNECTIONS_MOST = 4_096  # memory: an open connection takes about 15 kB
BACKLOG_MOST = 2_048
DATABASE_FILES_LEAST = 20  # RocksDB raises anything below to it
_UNLIMITED = 1_048_576  # requested limit if the hard limit is infinite: Linux refuses more than fs.nr_open


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS allows less than it says: the soft limit stays
        return


def descriptor_limit() -> int:
    """Return the limit of open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_most() -> int:
    """Return the connection limit of one server."""
    return max(1, min(CONNECTIONS_MOST, int(descriptor_limit() * CONNECTIONS_SHARE)))


def backlog() -> int:
    """Return the limit of connections that wait to be accepted."""
    return max(8, min(BACKLOG_MOST, int(descriptor_limit() * ACCEPTED_SHARE)))


def database_files(databases: int) -> int:
    """Return RocksDB's `max_open_files` for each of several databases that are open at the same time."""
    return max(DATABASE_FILES_LEAST, int(descriptor_limit() * STATE_SHARE) // max(1, databases))


def descriptors_suffice(databases: int) -> bool:
    """Return whether the state's share holds the minimum for this number of databases."""
    return int(descriptor_limit() * STATE_SHARE) >= databases * DATABASE_FILES_LEAST
