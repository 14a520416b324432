"""Python's search for cycles, left alone while very many objects are made that hold none.

It looks at all there is each time a quarter has been added: 100,000 entries and what is in them kept a worker for up to
400 ms at once, between steps of 30.
"""

import gc
from threading import Lock
from types import TracebackType


class Unswept:
    """No search for cycles within any `with` of it, in whatever thread; what holds no cycle goes as ever."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._within = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0 and self._was_on:
                gc.enable()


unswept = Unswept()
