"""Background threads, pauses between attempts, time limits of waits, and errors of closing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OUTAGE_S = 40.0
STOP_S = 4.0
STEP_MAX_S = 5.0  # limit of one wait step: a stopped process did not wait


def exponential(first_s: float, most_s: float) -> Iterator[float]:
    """Yield pauses between attempts: each twice as long as the one before it, up to `most_s`."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(most_s, 2 * pause_s)


@contextmanager
def beside(work: Callable[[], None], name: str, stopping: threading.Event) -> Iterator[None]:
    """Run `work` on a thread within the block. It ends soon after `stopping` is set, which happens at the end of the
    block."""
    thread = threading.Thread(target=work, daemon=True, name=f"recallflow-{name}")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class Patience:
    """Time limit of an outage. It ends soon after `stopping` is set, because supervisors kill slow processes.
    Waiting code checks it every few seconds."""

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
        """Raise the first error."""
        if self._error is not None:
            raise self._error
