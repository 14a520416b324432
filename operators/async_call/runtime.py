"""The loop thread, and the calls on it."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Self, cast

from recallflow.operators.async_call.completions import Completion, Completions
from recallflow.operators.async_call.results import CallError, Completed, Failed, Result, V, W
from recallflow.operators.async_call.retry import Retry


@dataclass(slots=True)
class Call(Generic[V, W]):
    """One item on its way. The loop thread writes `attempts` and, last, `result`; the logic only reads."""

    item: V
    fn: Callable[[V], Awaitable[W]]
    completion: Completion
    attempts: int = 0
    result: Result[V, W] | None = None


@dataclass(slots=True)
class Counters:
    """What a runtime has done. Read them from anywhere; they only grow, but for `pending`."""

    submitted: int = 0
    """Items."""
    finished: int = 0
    """Items that have a result."""
    calls: int = 0
    """Attempts, retries included."""
    retries: int = 0
    failures: int = 0
    """Items whose last attempt failed."""

    @property
    def pending(self) -> int:
        """Items without a result, under way or waiting for their turn."""
        return self.submitted - self.finished


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

    :arg completions: To tell what has finished.

    :arg capacity: Calls under way at most; further ones wait for their turn. A call that waits to be retried keeps its
        place: a service in trouble gets fewer calls, not more.

    :arg timeout_s: For each attempt.

    :arg retry: When to try again.
    """

    def __init__(
        self, completions: Completions, capacity: int = 100, timeout_s: float = 30.0, retry: Retry | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: nothing could ever be called")
        self.completions = completions
        self.capacity = capacity
        self.counters = Counters()
        self._timeout_s = timeout_s
        self._retry = retry or Retry()
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
        """Lets calls begin, in their order. From any thread; returns at once."""
        with self._changed:
            self._check_open()
            self.counters.submitted += len(calls)
        self._loop.call_soon_threadsafe(self._admit, calls)

    def wait(self, calls: Iterable[Call[Any, Any]]) -> None:
        """Blocks until all of them have results; it ends, as attempts are bounded and each has a timeout."""
        with self._changed:
            for call in calls:
                while call.result is None:
                    self._check_open()
                    self._changed.wait()

    def run(self, coroutine: Coroutine[Any, Any, W]) -> W:
        """Runs anything on the loop thread, such as the opening or closing of a client, and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Cancels what is under way and forgets what waits. The loop stays for other runtimes."""
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
            result = await self._result(call)
        except (Exception, asyncio.CancelledError) as error:
            # The function cancelled its own task, or the retry policy raised, and no item must hang for that.
            if self._closed:
                raise
            result = Failed(call.item, CallError.of(error, call.attempts))
        # Here and not in a callback of the task, which a loop that is busy would come to much later.
        self._end(call, result)

    async def _result(self, call: Call[V, W]) -> Result[V, W]:
        while True:
            call.attempts += 1
            self.counters.calls += 1
            try:
                return Completed(call.item, await self._attempt(call))
            except Exception as error:  # noqa: BLE001 whatever the function raises belongs to its item
                if call.attempts >= self._retry.attempts or not self._retry.when(error):
                    return Failed(call.item, CallError.of(error, call.attempts))
            await asyncio.sleep(self._retry.backoff(call.attempts))
            self.counters.retries += 1

    async def _attempt(self, call: Call[V, W]) -> W:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await call.fn(call.item)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"no result within {self._timeout_s:g} s") from error
            raise

    def _end(self, call: Call[V, W], result: Result[V, W]) -> None:
        with self._changed:
            call.result = result
            self.counters.finished += 1
            self.counters.failures += isinstance(result, Failed)
            self._changed.notify_all()
        self.completions.put(call.completion)
        self._running.remove(cast("asyncio.Task[Any]", asyncio.current_task()))
        self._begin()
