"""The loop thread, and the calls that run on it."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Self, cast

from recallflow.operators.async_call.completions import Completion, Completions
from recallflow.operators.async_call.results import CallError, Completed, Failed, Result, V, W


@dataclass(slots=True)
class Call(Generic[V, W]):
    """The call for one item. The loop thread writes `result`; the logic only reads it."""

    item: V
    fn: Callable[[V], Awaitable[W]]
    completion: Completion
    result: Result[V, W] | None = None


class _Loop:
    """The process's one asyncio loop and its thread. One for all runtimes: async clients belong to the loop that first
    used them, and every further thread would contend for the GIL."""

    _only: asyncio.AbstractEventLoop | None = None
    _making = threading.Lock()

    @classmethod
    def get(cls) -> asyncio.AbstractEventLoop:
        with cls._making:
            if cls._only is None:
                cls._only = asyncio.new_event_loop()
                threading.Thread(target=cls._only.run_forever, daemon=True, name="async-call").start()
            return cls._only


class Runtime:
    """Runs calls, within limits that all steps and workers that use it share. Close it after the dataflow.

    :arg completions: Where finished calls are put.

    :arg capacity: The most calls under way; further ones wait for their turn.

    :arg timeout_s: For each call; None where the function has one of its own.
    """

    def __init__(self, completions: Completions, capacity: int = 100, timeout_s: float | None = 30.0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: nothing could ever be called")
        self.completions = completions
        self.capacity = capacity
        self._timeout_s = timeout_s
        self._loop = _Loop.get()
        self._waiting: deque[Call[Any, Any]] = deque()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, calls: list[Call[Any, Any]]) -> None:
        """Queues calls, which begin in their order. Any thread may call it; it returns at once."""
        with self._changed:
            self._check_open()
        self._loop.call_soon_threadsafe(self._admit, calls)

    def wait(self, calls: Iterable[Call[Any, Any]]) -> None:
        """Blocks until all calls have results. It ends, as attempts are bounded and each has a timeout."""
        with self._changed:
            for call in calls:
                while call.result is None:
                    self._check_open()
                    self._changed.wait()

    def run(self, coroutine: Coroutine[Any, Any, W]) -> W:
        """Runs anything on the loop thread, such as the opening or closing of a client, and waits for it."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, W]) -> "Future[W]":
        """The same, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancels the calls under way and drops those that wait. The loop goes on for other runtimes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.run(self._cancel())

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the runtime of async calls was closed before the dataflow ended")

    # ── from here on, on the loop thread ──

    async def _cancel(self) -> None:
        self._waiting.clear()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _admit(self, calls: list[Call[Any, Any]]) -> None:
        self._waiting.extend(calls)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self.capacity and not self._closed:
            call = self._waiting.popleft()
            self._running.add(self._loop.create_task(self._run(call)))

    async def _run(self, call: Call[Any, Any]) -> None:
        try:
            result = await self._call(call)
        except (
            asyncio.CancelledError
        ) as error:  # the function cancelled its own task: the item fails, and does not hang
            if self._closed:
                raise
            result = Failed(call.item, CallError.of(error))
        # All this is done here, as a busy loop would run a callback of the task much later.
        with self._changed:
            call.result = result
            self._changed.notify_all()
        self.completions.put(call.completion)
        self._running.remove(cast("asyncio.Task[Any]", asyncio.current_task()))
        self._begin()

    async def _call(self, call: Call[V, W]) -> Result[V, W]:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return Completed(call.item, await call.fn(call.item))
        except Exception as raised:  # noqa: BLE001 whatever the function raises belongs to its item
            late = isinstance(raised, TimeoutError) and limit.expired()
            error = TimeoutError(f"no result within {self._timeout_s:g} s") if late else raised
            return Failed(call.item, CallError.of(error))
