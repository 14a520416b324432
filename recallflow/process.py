"""The process: signals, its end, the budget of file descriptors, background threads, and time limits of outages.

Clients, databases and other files have shares of the file descriptors: no number of clients stops writes of an engine.
"""

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

MEMBER_VARIABLE = "RECALLFLOW_MEMBER"  # set by a supervisor only; the supervisor's exit closes our standard input
_log = logging.getLogger(__name__)
STATE_SHARE = 1 / 2  # of the permitted file descriptors, like the next two
CONNECTIONS_SHARE = 1 / 4
ACCEPTED_SHARE = 1 / 16  # connections that one iteration of the event loop may accept before it closes any
CONNECTIONS_MOST = 4_096  # because of memory: an open connection takes about 15 kB
BACKLOG_MOST = 2_048
DATABASE_FILES_LEAST = 20  # RocksDB raises lower values to 20
_UNLIMITED = 1_048_576  # requested limit if the hard limit is infinite: Linux refuses more than fs.nr_open
OUTAGE_S = 40.0  # default time limit of an outage
STOP_S = 4.0  # time limit after a request to stop
STEP_MAX_S = 5.0  # largest counted time between two calls: during a suspension the process did not wait


def log_from_signal_handler(name: str, message: str) -> None:
    """Log a warning from a signal handler, without the log stream: the signal may have interrupted a write to it."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else f"recallflow: {message}"
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{line}\n".encode())


def end_with_supervisor() -> None:
    """Stop this process by SIGTERM once its supervisor has exited or was killed. No effect without a supervisor."""

    def watch() -> None:
        while os.read(0, 1):
            pass  # the supervisor never writes to our standard input: a read ends when it is closed
        _log.warning("the supervisor has exited: this member ends")
        os.kill(os.getpid(), signal.SIGTERM)

    if MEMBER_VARIABLE in os.environ:
        threading.Thread(target=watch, daemon=True, name="recallflow-supervised").start()


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end the process at once with exit code 0, until the flow installs its own handlers. Before
    that no record is in flight, so that an interruption loses nothing."""

    def stop(*_: object) -> NoReturn:
        try:
            log_from_signal_handler(__name__, "stopped during the start")
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def end_process(code: int) -> NoReturn:
    """End the process without Python's clean-up. The clean-up waits for threads and destroys clients of librdkafka; a
    client with an unfinished call would block it for ever. Call this after all important resources are closed."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
    finally:
        os._exit(code)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    with contextlib.suppress(OSError, ValueError):  # macOS permits less than its hard limit: the soft limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def max_connections() -> int:
    return max(1, min(CONNECTIONS_MOST, int(descriptor_limit() * CONNECTIONS_SHARE)))


def max_backlog() -> int:
    """Return the maximum number of connections that wait to be accepted."""
    return max(8, min(BACKLOG_MOST, int(descriptor_limit() * ACCEPTED_SHARE)))


def max_database_files(databases: int) -> int:
    """Return RocksDB's `max_open_files` for each of several databases that are open at the same time."""
    return max(DATABASE_FILES_LEAST, int(descriptor_limit() * STATE_SHARE) // max(1, databases))


def descriptors_suffice(databases: int) -> bool:
    """Return whether the state's share of descriptors is enough for the minimum of this number of databases."""
    return int(descriptor_limit() * STATE_SHARE) >= databases * DATABASE_FILES_LEAST


def backoffs_s(first_s: float, most_s: float) -> Iterator[float]:
    """Yield pauses between attempts: each twice as long as the one before it, up to `most_s`."""
    while True:
        yield first_s
        first_s = min(most_s, 2 * first_s)


@contextmanager
def background_thread(work: Callable[[], None], name: str, stopping: threading.Event) -> Iterator[None]:
    """Run `work` on a thread within the block. After the block, set `stopping` and wait until `work` returns."""
    thread = threading.Thread(target=work, daemon=True, name=f"recallflow-{name}")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class TimeLimit:
    """Time limit of an outage, up to `STOP_S` after `stopping` is set: supervisors kill processes that stop slowly."""

    def __init__(
        self,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outage_s = outage_s
        self._stopping = stopping or threading.Event()
        self._clock_s = clock_s
        self._polled_s = clock_s()
        self._waited_s = 0.0
        self._stop_s: float | None = None  # when `stopping` was first found set

    def poll_expired(self) -> bool:
        """Count the time since the last call, and return whether the limit is reached."""
        now_s = self._clock_s()
        self._waited_s += min(now_s - self._polled_s, STEP_MAX_S)
        self._polled_s = now_s
        if self._stopping.is_set() and self._stop_s is None:
            self._stop_s = now_s
        return self._waited_s >= self._outage_s or (self._stop_s is not None and now_s - self._stop_s >= STOP_S)

    @property
    def is_stopping(self) -> bool:
        return self._stop_s is not None

    def __str__(self) -> str:
        return f"within {STOP_S:.0f} s of the signal to stop" if self.is_stopping else f"within {self._outage_s:.0f} s"


class CloseErrors:
    """Runs steps that close a part of the dataflow, and keeps the first error for `check`. Bytewax also closes parts
    while it handles an error: a second error would abort the process (SIGABRT) without a message."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __call__(self, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = self._error or error

    def check(self) -> None:
        """Raise the first error, if any."""
        if self._error is not None:
            raise self._error
