"""Threads beside the dataflow, pauses between attempts, bounds of waits, and errors of closing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OUTAGE_S = 40.0
STOP_S = 4.0
STEP_MAX_S = 5.0  # between two looks counts no more than this: a process that was paused has not waited meanwhile


def exponential(first_s: float, most_s: float) -> Iterator[float]:
    """Yield pauses between attempts: each twice as long as the one before it, up to `most_s`."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(most_s, 2 * pause_s)


@contextmanager
def beside(work: Callable[[], None], name: str, stopping: threading.Event) -> Iterator[None]:
    """Work on a thread of its own, which ends soon once `stopping` is set, as it is at the end."""
    thread = threading.Thread(target=work, daemon=True, name=f"recallflow-{name}")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class Patience:
    """It ends after an outage's length, and soon once `stopping` is set, as supervisors kill what does not end soon.
    Who waits asks every few seconds whether it has ended."""

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


class Closing:
    """Runs what closes a part, and keeps what goes wrong. Bytewax closes parts while an error is on its way, too: a
    second one would end the process there and then (SIGABRT), without a word of either."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __call__(self, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = self._error or error

    def check(self) -> None:
        """Raises what went wrong first."""
        if self._error is not None:
            raise self._error
