"""Leaves a service alone that fails, so that one which is down costs nothing after a few calls."""

import math
import time
from collections.abc import Callable

FAILURES = 5  # in a row
LEFT_ALONE_S = 10.0


class Breaker:
    """After failures in a row nobody asks for a while; then one tries, and another as long after that, until one
    succeeds. Use it on one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s`: seconds, from any start."""
        self._now_s = now_s
        self._failures = 0
        self._closed_until_s = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether the service is left alone, or but tried."""
        return self._failures >= FAILURES

    def begin(self) -> float:
        """0.0: ask now, and say how it went. Else seconds until the service may be asked."""
        now_s = self._now_s()
        if now_s < self._closed_until_s:
            return self._closed_until_s - now_s
        if self.is_open:
            self._closed_until_s = now_s + LEFT_ALONE_S  # while one tries it
        return 0.0

    def succeeded(self) -> None:
        self._failures, self._closed_until_s = 0, -math.inf

    def failed(self, at_least_s: float = 0.0) -> None:
        """`at_least_s`: for how long the service wants to be left alone, if it says so."""
        self._failures += 1
        if self.is_open:
            self._closed_until_s = max(self._closed_until_s, self._now_s() + max(LEFT_ALONE_S, at_least_s))
