"""Async calls whose results return to the calling thread.

1. An operator submits an `AsyncCall` to a `Runtime`, and keeps the call until the call has a result.
2. Calls run on the only asyncio loop thread of the process, at most `capacity` at a time, in order of submission. The
   called client is responsible for retries.
3. For each finished call, the source emits a `CallCompletion`, which is routed by key to the operator of the call. It
   only names the call; the result stays in the process.

An operator cannot slow down a source: a source that must not read ahead counts the items in flight itself."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

call_numbers = count()  # unique in the process, because calls of an earlier run may still be in progress
V = TypeVar("V")  # an item
W = TypeVar("W")  # the result of a call
_loop_lock = threading.Lock()


class CallError(NamedTuple):
    """The failure of a call. It does not keep the exception, which may refer to data that must be deleted."""

    kind: str  # the exception's class, such as `openai.RateLimitError`


def _error_of(error: BaseException) -> CallError:
    kind = type(error)
    return CallError(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True, slots=True)
class CallCompletion:
    """An input of the operator: the call has finished."""

    key: str
    call: int


class Completions:
    """Finished calls that were not emitted yet, of any number of runtimes. Each sets the event `wake`; a source sets it
    for its own input too. A waiting source first clears the event, then looks for both input and completions."""

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._finished: deque[CallCompletion] = deque()

    def put(self, completion: CallCompletion) -> None:
        self._finished.append(completion)
        self.wake.set()

    def pop_all(self) -> list[CallCompletion]:
        popped: list[CallCompletion] = []
        with suppress(IndexError):  # another worker may pop the last one concurrently
            while True:
                popped.append(self._finished.popleft())
        return popped


@dataclass(slots=True)
class AsyncCall(Generic[V, W]):
    """The call for one item. The loop thread writes the result; the operator only reads it."""

    item: V
    fn: Callable[[V], Awaitable[W]]
    completion: CallCompletion
    result: W | CallError | None = None
    ended: bool = False


@cache
def _process_loop() -> asyncio.AbstractEventLoop:
    """Return the process's only asyncio loop, which runs in its own thread. Async clients belong to the loop that first
    used them, and further threads would contend for the GIL. Call it under `_loop_lock`."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="async-call").start()
    return loop


class Runtime(AbstractContextManager["Runtime"]):
    """The executor of calls, with limits shared by all operators. Close it after the dataflow. At most `capacity` calls
    are concurrent. `timeout_s` limits each call; None if the called function has its own limit."""

    def __init__(self, completions: Completions, capacity: int = 100, timeout_s: float | None = 30.0) -> None:
        self.completions, self.capacity, self._timeout_s = completions, capacity, timeout_s
        with _loop_lock:
            self._loop = _process_loop()
        self._slots = asyncio.Semaphore(capacity)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the number of the call
        self._closed = False
        self._changed = threading.Condition()

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, calls: list[AsyncCall[Any, Any]]) -> None:
        """Queue calls in order. Any thread may call it; it does not block."""
        with self._changed:
            self._check_open()
        self._loop.call_soon_threadsafe(self._begin, calls)

    def cancel(self, calls: Iterable[AsyncCall[Any, Any]]) -> None:
        self._loop.call_soon_threadsafe(self._cancel, [call.completion.call for call in calls])

    def wait(self, calls: Iterable[AsyncCall[Any, Any]]) -> None:
        """Block until all calls have results. The called client's retries and timeouts bound the time."""
        with self._changed:
            for call in calls:
                while not call.ended:
                    self._check_open()
                    self._changed.wait()

    def run(self, coroutine: Coroutine[Any, Any, W]) -> W:
        """Run a coroutine on the loop thread, such as the closing of a client, and wait for it."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, W]) -> "Future[W]":
        """Start a coroutine on the loop thread without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel all calls. The loop continues for other runtimes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.run(self._end())

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the runtime of async calls was closed before the dataflow ended")

    # ── on the loop thread ──

    async def _end(self) -> None:
        await asyncio.gather(*self._cancel([*self._tasks]), return_exceptions=True)

    def _begin(self, calls: list[AsyncCall[Any, Any]]) -> None:
        for call in () if self._closed else calls:
            number = call.completion.call
            task = self._tasks[number] = self._loop.create_task(self._run(call))
            task.add_done_callback(partial(self._tasks.pop, number))

    def _cancel(self, numbers: list[int]) -> list[asyncio.Task[None]]:
        tasks = [self._tasks[number] for number in numbers if number in self._tasks]
        for task in tasks:
            task.cancel()
        return tasks

    async def _run(self, call: AsyncCall[Any, Any]) -> None:
        try:
            async with self._slots:
                result = await self._call(call)
        except asyncio.CancelledError as error:  # by `cancel`, or by the function itself: the item fails
            if self._closed:
                raise
            result = _error_of(error)
        with self._changed:
            call.result, call.ended = result, True
            self._changed.notify_all()
        self.completions.put(call.completion)

    async def _call(self, call: AsyncCall[V, W]) -> W | CallError:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call.fn(call.item)
        except Exception as error:  # noqa: BLE001 an error of the function fails its item only
            return _error_of(error)
