"""What threads find out, handed to an event loop."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any


class Landing:
    """Resolves futures of one event loop from other threads. However much comes while the loop is busy, it is woken up
    once: a wake-up costs a system call, and one more turn of the loop."""

    def __init__(self) -> None:
        self._found: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._woken = False

    def put(self, future: "asyncio.Future[Any]", found: Any) -> None:
        """The future gets what was found: a result, or an error. Nothing happens where nobody waits any more."""
        self._found.append((future, found))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._woken = False  # first: what comes from now on wakes the loop again
        while self._found:
            future, found = self._found.popleft()
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)
