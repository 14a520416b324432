"""The process: signals, its end, the budget of file descriptors, background threads, and time limits of waits.

Clients, databases and other files have shares of the descriptors below the limit, so that any number of clients leaves
enough for an engine to write."""

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


def log_from_signal_handler(name: str, message: str) -> None:
    """Log a warning from a signal handler, past the log stream, which the signal may have interrupted."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else f"recallflow: {message}"
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{line}\n".encode())


MEMBER_VARIABLE = "RECALLFLOW_MEMBER"  # set only by a supervisor, whose exit ends our standard input

_log = logging.getLogger(__name__)


def end_with_supervisor() -> None:
    """Stop a member by SIGTERM once its supervisor has ended in any way."""

    def watch() -> None:
        while os.read(0, 1):
            pass  # nothing is ever written to standard input
        _log.warning("the supervisor is gone: this member ends")
        os.kill(os.getpid(), signal.SIGTERM)

    if MEMBER_VARIABLE in os.environ:
        threading.Thread(target=watch, daemon=True, name="recallflow-supervised").start()


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process at once, with 0, until the flow handles them itself. A start may be
    interrupted at any moment, because nothing is in flight yet."""

    def stop(*_: object) -> NoReturn:
        try:
            log_from_signal_handler(__name__, "stopped before it began to work")
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


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
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def max_connections() -> int:
    return max(1, min(CONNECTIONS_MOST, int(descriptor_limit() * CONNECTIONS_SHARE)))


def max_backlog() -> int:
    """Return the limit of connections that wait to be accepted."""
    return max(8, min(BACKLOG_MOST, int(descriptor_limit() * ACCEPTED_SHARE)))


def max_database_files(databases: int) -> int:
    """Return RocksDB's `max_open_files` for each of several databases that are open at the same time."""
    return max(DATABASE_FILES_LEAST, int(descriptor_limit() * STATE_SHARE) // max(1, databases))


def descriptors_suffice(databases: int) -> bool:
    """Return whether the state's share holds the minimum for this number of databases."""
    return int(descriptor_limit() * STATE_SHARE) >= databases * DATABASE_FILES_LEAST


OUTAGE_S = 40.0
STOP_S = 4.0
STEP_MAX_S = 5.0  # limit of one wait step: a stopped process did not wait


def backoffs_s(first_s: float, most_s: float) -> Iterator[float]:
    """Yield pauses between attempts: each twice as long as the one before it, up to `most_s`."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(most_s, 2 * pause_s)


@contextmanager
def background_thread(work: Callable[[], None], name: str, stopping: threading.Event) -> Iterator[None]:
    """Run `work` on a thread within the block. `stopping`, which is set at the end of the block, must end it."""
    thread = threading.Thread(target=work, daemon=True, name=f"recallflow-{name}")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class TimeLimit:
    """Time limit of an outage. It ends soon after `stopping` is set, because supervisors kill slow processes."""

    def __init__(
        self,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outage_s = outage_s
        self._stopping = stopping or threading.Event()
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._waited_s = 0.0
        self._stopped_s: float | None = None

    def ended(self) -> bool:
        now_s = self._clock_s()
        self._waited_s += min(now_s - self._looked_s, STEP_MAX_S)
        self._looked_s = now_s
        if self._stopping.is_set() and self._stopped_s is None:
            self._stopped_s = now_s
        stopped = self._stopped_s is not None and now_s - self._stopped_s >= STOP_S
        return stopped or self._waited_s >= self._outage_s

    def __str__(self) -> str:
        if self._stopped_s is None:
            return f"within {self._outage_s:.0f} s"
        return f"within {STOP_S:.0f} s of the signal to stop"


class CloseErrors:
    """Steps that close a part of the dataflow; errors are kept. Bytewax also closes parts during an error: a second
    error would abort the process (SIGABRT) without a message."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __call__(self, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = self._error or error

    def check(self) -> None:
        if self._error is not None:
            raise self._error
