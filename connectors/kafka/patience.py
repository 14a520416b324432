"""How long brokers that are away are waited for."""

import threading
import time
from collections.abc import Callable

OUTAGE_S = 40.0
STOP_S = 4.0


class Patience:
    """It ends after an outage's length, and soon once `stopping` is set, as supervisors kill what does not end soon."""

    def __init__(
        self,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outage_s = outage_s
        self._stopping = stopping or threading.Event()
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._stopped_s: float | None = None

    def ended(self) -> bool:
        now_s = self._clock_s()
        if self._stopping.is_set() and self._stopped_s is None:
            self._stopped_s = now_s
        stopped = self._stopped_s is not None and now_s - self._stopped_s >= STOP_S
        return stopped or now_s - self._began_s >= self._outage_s

    def __str__(self) -> str:
        if self._stopped_s is None:
            return f"within {self._outage_s:.0f} s"
        return f"within {STOP_S:.0f} s of the signal to stop"
