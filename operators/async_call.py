"""Async calls whose results come back to the thread that asked for them.

1. An operator submits a `Call` to a `Runtime`, and keeps it until its result is there.
2. Calls run on the one asyncio loop thread of the process, at most `capacity` at a time, in the order of submission.
   Retries are the business of the called client.
3. A finished call puts a `Completion`, and sets an event on which the source waits for its own input anyway. The source
   emits the completion, and it is routed by key to the operator that made the call. Nobody polls. A completion only
   names its call: the result is handed over within the process.

There is no back-pressure from an operator to a source: a source that must not read ahead counts what is in flight.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, Self, TypeVar

numbers = count()  # of calls; an earlier run in this process may still have calls under way

V = TypeVar("V")
"""Type of items."""

W = TypeVar("W")
"""Type of values: what a call returns."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call failed. Text and not the exception: many, such as the OpenAI client's, hold more than may be
    kept."""

    kind: str
    """The exception's class, such as `openai.RateLimitError`."""
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(name, str(error))


@dataclass(frozen=True, slots=True)
class Completed(Generic[V, W]):
    item: V
    value: W


@dataclass(frozen=True, slots=True)
class Failed(Generic[V]):
    item: V
    error: CallError


Result = Completed[V, W] | Failed[V]


@dataclass(frozen=True, slots=True)
class CallCompletion:
    """Says that a call has finished: an input of the operator."""

    key: str
    call: int


class Completions:
    """The calls that have finished and were not emitted yet. Any number of runtimes may put completions here.

    `wake` is set with each. A source that waits for input of its own sets the same event when there is some. Whoever
    waits for the event clears it first, and then looks for both input and completions.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._finished: deque[CallCompletion] = deque()

    def put(self, completion: CallCompletion) -> None:
        self._finished.append(completion)
        self.wake.set()

    def pop_all(self) -> list[CallCompletion]:
        popped: list[CallCompletion] = []
        try:
            while True:
                popped.append(self._finished.popleft())
        except IndexError:  # a check beforehand would not do: another worker may pop the last one in between
            return popped


@dataclass(slots=True)
class AsyncCall(Generic[V, W]):
    """The call for one item. The loop thread writes `result`; the logic only reads it."""

    item: V
    fn: Callable[[V], Awaitable[W]]
    completion: CallCompletion
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
        self._waiting: deque[AsyncCall[Any, Any]] = deque()
        self._running: dict[int, asyncio.Task[Any]] = {}  # by the number of the call
        self._closed = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, calls: list[AsyncCall[Any, Any]]) -> None:
        """Queues calls, which begin in their order. Any thread may call it; it returns at once."""
        with self._changed:
            self._check_open()
        self._loop.call_soon_threadsafe(self._admit, calls)

    def cancel(self, calls: Iterable[AsyncCall[Any, Any]]) -> None:
        """Drop calls that wait for their turn, and cancel those under way: nobody wants their results any more."""
        self._loop.call_soon_threadsafe(self._drop, {call.completion.call for call in calls})

    def wait(self, calls: Iterable[AsyncCall[Any, Any]]) -> None:
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
        running = [*self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _admit(self, calls: list[AsyncCall[Any, Any]]) -> None:
        self._waiting.extend(calls)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self.capacity and not self._closed:
            call = self._waiting.popleft()
            task = self._running[call.completion.call] = self._loop.create_task(self._run(call))
            # For a task that was cancelled before its first step. In a busy loop a callback comes late.
            task.add_done_callback(partial(self._release, call.completion.call))

    def _drop(self, numbers: set[int]) -> None:
        self._waiting = deque(call for call in self._waiting if call.completion.call not in numbers)
        for number in numbers & self._running.keys():
            self._running[number].cancel()

    def _release(self, number: int, _: object = None) -> None:
        if self._running.pop(number, None) is not None:
            self._begin()

    async def _run(self, call: AsyncCall[Any, Any]) -> None:
        try:
            result = await self._call(call)
        except asyncio.CancelledError as error:  # by `cancel`, or by the function itself: the item fails
            if self._closed:
                raise
            result = Failed(call.item, CallError.of(error))
        with self._changed:
            call.result = result
            self._changed.notify_all()
        self.completions.put(call.completion)
        self._release(call.completion.call)

    async def _call(self, call: AsyncCall[V, W]) -> Result[V, W]:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return Completed(call.item, await call.fn(call.item))
        except Exception as raised:  # noqa: BLE001 whatever the function raises belongs to its item
            late = isinstance(raised, TimeoutError) and limit.expired()
            error = TimeoutError(f"no result within {self._timeout_s:g} s") if late else raised
            return Failed(call.item, CallError.of(error))
