"""What threads find out, handed to an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Landing:
    """Calls functions on one event loop, from other threads, in order. However much comes while the loop is busy, it is
    woken up once: a wake-up costs a system call, and one more turn of the loop."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False

    def attach(self) -> asyncio.AbstractEventLoop:
        """Calls go to the loop that runs here."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Nothing happens where no loop is attached, or it is closed: nobody waits there."""
        if self._loop is None:
            return
        self._calls.append((function, arguments))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # first: what comes from now on wakes the loop again
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


def resolve(future: "asyncio.Future[Any]", found: Any) -> None:
    """Gives a future what was found, a result or an error, unless nobody waits any more."""
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
