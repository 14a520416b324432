"""Call an async function once per item without blocking the worker.

    completions = Completions()
    runtime = Runtime(completions, capacity=100, timeout_s=30.0, retry=Retry(attempts=3))

    read = async_input("read", flow, source, completions)
    asked = op.key_on("key", read.items, lambda question: question.user)
    answered = async_call("ask", asked, read.finished, ask_model, runtime)
    results = split_results("split", answered)  # .oks: Completed(item, value); .errs: Failed(item, error)

How it works:

1. The operator's logic hands an item to the runtime and keeps it. What it keeps is its snapshot, so that whatever had
   no result by then is called again on resume: a call happens at least once, its result leaves the operator once.
2. The runtime's calls run on the one asyncio loop thread of the process, at most `capacity` at a time, first come
   first served over all keys, steps and workers. Timeouts, retries and their jitter's randomness stay on that thread.
3. A finished call makes a `Completion`, and sets an event on which the source waits for its own input anyway. The
   source emits the completion, it is routed by key to the logic it belongs to, and that logic emits the result. Nobody
   polls. A completion only names its call: the result is handed over within the process.
4. Where the input ends, the logic waits for what is pending, so that a finite run is complete.

No back-pressure crosses from a stateful step to a source: a source that should stop reading ahead asks
`runtime.counters.pending`.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, takewhile
from typing import Any, Generic, Self, TypeVar, cast

from bytewax import operators as op
from bytewax.dataflow import Dataflow, Stream, operator
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import KeyedStream, StatefulBatchLogic

V = TypeVar("V")
"""Type of items."""

W = TypeVar("W")
"""Type of values: what a call returns."""

X = TypeVar("X")
"""Type of what a source emits."""

S = TypeVar("S")
"""Type of a source's resume state."""

WAIT_S = 0.005
_numbers = count()  # of steps and calls; an earlier run in this process may still have calls under way

# ── what comes out ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call failed in the end. Text and not the exception: many, such as the OpenAI client's, cannot be pickled,
    and a failure must be fit for snapshots and exchanges."""

    kind: str
    """The exception's class, such as `openai.RateLimitError`."""
    message: str
    attempts: int

    @classmethod
    def of(cls, error: BaseException, attempts: int) -> Self:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(name, str(error), attempts)


@dataclass(frozen=True, slots=True)
class Completed(Generic[V, W]):
    item: V
    value: W


@dataclass(frozen=True, slots=True)
class Failed(Generic[V]):
    item: V
    error: CallError


Result = Completed[V, W] | Failed[V]


# ── how the worker hears of it ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Completion:
    """News that a call has finished, as an input of the operator."""

    step: int
    key: str
    call: int


class Completions:
    """What has finished and was not emitted yet. Any number of runtimes may fill one, and any number of workers drain
    it: an exchange takes each completion to where it belongs.

    `wake` is set with each. A source that waits for input of its own sets the same event when there is some. Who waits
    on it clears it, and looks at everything it stands for only after that.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._news: deque[Completion] = deque()

    def put(self, completion: Completion) -> None:
        self._news.append(completion)
        self.wake.set()

    def take(self) -> list[Completion]:
        taken: list[Completion] = []
        try:
            while True:
                taken.append(self._news.popleft())
        except IndexError:  # and not a look beforehand: another worker may take the last one in between
            return taken


class WithCompletions(FixedPartitionedSource[X | Completion, S], Generic[X, S]):
    """Any source, emitting completions beside its own items. When it has neither, it waits for the wake event.

    :arg source: To wrap. Parts and resume states are its own.

    :arg completions: To emit.

    :arg wait_s: How long to wait at most, over all parts, before the dataflow does its other work. 0 for a source that
        itself waits for `completions.wake`.
    """

    def __init__(self, source: FixedPartitionedSource[X, S], completions: Completions, wait_s: float = WAIT_S) -> None:
        self._source = source
        self._completions = completions
        self._wait_s = wait_s

    def list_parts(self) -> list[str]:
        return self._source.list_parts()

    def build_part(self, step_id: str, for_part: str, resume_state: S | None) -> "_Part[X, S]":
        part = self._source.build_part(step_id, for_part, resume_state)
        return _Part(part, self._completions, self._wait_s / len(self._source.list_parts()))


_LONG_AGO = datetime.fromtimestamp(0, UTC)


class _Part(StatefulSourcePartition[X | Completion, S], Generic[X, S]):
    def __init__(self, part: StatefulSourcePartition[X, S], completions: Completions, wait_s: float) -> None:
        self._part = part
        self._completions = completions
        self._wait_s = wait_s
        self._awake = part.next_awake()

    def next_batch(self) -> list[X | Completion]:
        # The part first: where it has ended, what finished is left for the logics, which drain at the end.
        items = self._items()
        finished = self._completions.take()
        if not items and not finished and self._wait_s:
            self._completions.wake.wait(self._wait_s)
            self._completions.wake.clear()
            finished = self._completions.take()
        return [*items, *finished]

    def _items(self) -> list[X]:
        if self._awake is not None and datetime.now(UTC) < self._awake:
            return []
        items = list(self._part.next_batch())
        self._awake = self._part.next_awake()
        return items

    def next_awake(self) -> datetime | None:
        # After an empty batch Bytewax would sleep 1 ms; we have waited, and want to hear at once.
        return _LONG_AGO if self._wait_s else None

    def snapshot(self) -> S:
        return self._part.snapshot()

    def close(self) -> None:
        self._part.close()


# ── retries ───────────────────────────────────────────────────────────────────────────────────────────────────────

Backoff = Callable[[int], float]
"""Seconds to wait after so many failed attempts of a call."""


def full_jitter(base_s: float = 0.5, most_s: float = 30.0, draw: Callable[[], float] = random.random) -> Backoff:
    """Anything up to an exponentially growing bound, so that calls that failed together do not return together.

    :arg draw: A number in [0, 1). Asked on the loop thread only: a logic's outputs must not depend on chance.
    """
    return lambda failures: draw() * min(most_s, base_s * 2 ** min(failures - 1, 30))


def any_error(error: Exception) -> bool:  # noqa: ARG001
    return True


def errors_of(*kinds: type[Exception]) -> Callable[[Exception], bool]:
    """Only errors of these classes."""
    return lambda error: isinstance(error, kinds)


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again.

    :arg attempts: In all, the first included.

    :arg backoff: How long to wait before the next.

    :arg when: Which errors are worth another attempt. A timeout is a `TimeoutError`.
    """

    attempts: int = 3
    backoff: Backoff = field(default_factory=full_jitter)
    when: Callable[[Exception], bool] = any_error


# ── the loop thread ───────────────────────────────────────────────────────────────────────────────────────────────


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


# ── the operators ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[V, W]):
    """Pending items in the order they came; in ordered mode with the results that wait for an earlier item's."""

    key: str
    pending: tuple[tuple[V, Result[V, W] | None], ...]


class AsyncCallLogic(StatefulBatchLogic[tuple[str, V] | Completion, Result[V, W], Snapshot[V, W]]):
    """The pending items of one key. Discarded when there are none, and never before."""

    def __init__(
        self,
        step: int,
        fn: Callable[[V], Awaitable[W]],
        runtime: Runtime,
        ordered: bool,
        resumed: Snapshot[V, W] | None,
    ) -> None:
        self._step = step
        self._fn = fn
        self._runtime = runtime
        self._ordered = ordered
        self._key = ""  # comes with the first item, as Bytewax does not tell it
        self._calls: dict[int, Call[V, W]] = {}
        self._held: set[int] = set()  # in ordered mode: finished, behind a call that has not
        if resumed is not None:
            self._resume(resumed)

    def on_batch(self, values: list[tuple[str, V] | Completion]) -> tuple[Iterable[Result[V, W]], bool]:
        new: list[Call[Any, Any]] = []
        finished: list[int] = []
        for value in values:
            if isinstance(value, Completion):
                finished.append(value.call)
            else:
                self._key, item = value
                new.append(self._keep(item))
        if new:
            self._runtime.submit(new)
        return self._emit(self._ready(finished)), not self._calls

    def on_eof(self) -> tuple[Iterable[Result[V, W]], bool]:
        self._runtime.wait(self._calls.values())
        return self._emit(list(self._calls)), StatefulBatchLogic.DISCARD

    def snapshot(self) -> Snapshot[V, W]:
        pending = ((call.item, call.result if number in self._held else None) for number, call in self._calls.items())
        return Snapshot(self._key, tuple(pending))

    def _keep(self, item: V) -> Call[V, W]:
        number = next(_numbers)
        call = Call(item, self._fn, Completion(self._step, self._key, number))
        self._calls[number] = call
        return call

    def _ready(self, finished: list[int]) -> list[int]:
        """The calls whose results go out now: of those that a completion told of, although others may have finished
        too, so that outputs follow from inputs and not from how threads are scheduled. A completion that no call waits
        for is left from an earlier run in this process."""
        known = [number for number in finished if number in self._calls]
        if not self._ordered:
            return known
        self._held.update(known)
        return list(takewhile(self._held.__contains__, self._calls))

    def _emit(self, ready: list[int]) -> list[Result[V, W]]:
        self._held.difference_update(ready)
        results = [self._calls.pop(number).result for number in ready]
        return [result for result in results if result is not None]

    def _resume(self, resumed: Snapshot[V, W]) -> None:
        self._key = resumed.key
        again: list[Call[Any, Any]] = []
        for item, result in resumed.pending:
            call = self._keep(item)
            if result is None:
                again.append(call)
            else:
                # Told again and not held at once: the step may since have become an unordered one.
                call.result = result
                self._runtime.completions.put(call.completion)
        self._runtime.submit(again)


@dataclass(frozen=True)
class InputOut(Generic[X]):
    """Streams returned from `async_input`."""

    items: Stream[X]
    finished: Stream[Completion]


@operator
def async_input(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    flow: Dataflow,
    source: FixedPartitionedSource[X, Any],
    completions: Completions,
    wait_s: float = WAIT_S,
) -> InputOut[X]:
    """Introduce a source's items into a dataflow, and beside them what async calls have finished.

    :arg step_id: Unique ID.

    :arg flow: Dataflow.

    :arg source: To read items from.

    :arg completions: Of the runtimes that `async_call` steps of this dataflow use.

    :arg wait_s: See `WithCompletions`.

    :returns: A stream of items, and one of completions for `async_call`.
    """
    read = op.input("input", flow, WithCompletions(source, completions, wait_s))
    branch = op.branch("branch", read, lambda emitted: isinstance(emitted, Completion))
    return InputOut(cast(Stream[X], branch.falses), cast(Stream[Completion], branch.trues))


@operator
def async_call(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    up: KeyedStream[V],
    finished: Stream[Completion],
    fn: Callable[[V], Awaitable[W]],
    runtime: Runtime,
    ordered: bool = False,
) -> KeyedStream[Result[V, W]]:
    """Call an async function once per item, without blocking the worker.

    Items that have no result yet are part of the snapshot, and are called again on resume. So a call happens at least
    once, and a result comes out exactly as often as its item went in. At the end of the input, all results come out
    before the step ends.

    :arg step_id: Unique ID.

    :arg up: Keyed stream. Items must be pickle-able, and are kept by reference: do not change them.

    :arg finished: What the source emitted out of `runtime.completions`. Several steps can share the stream.

    :arg fn: To call on the process's loop thread. It must not block, and must let itself be cancelled: that is how a
        timeout ends it.

    :arg runtime: With the capacity, the timeout and the retries.

    :arg ordered: Whether results come out in the order of their items, per key. One slow call then holds back the
        results of its key, not the calls; they are part of the snapshot too, so values must be pickle-able. Otherwise
        results come out as calls finish.

    :returns: Keyed stream of `Completed(item, value)` and `Failed(item, error)`; see `split_results`.
    """
    step = next(_numbers)

    def with_key(batch: list[tuple[str, V]]) -> list[tuple[str, tuple[str, V] | Completion]]:
        return [(key, (key, item)) for key, item in batch]

    def of_this_step(batch: list[Completion]) -> list[tuple[str, tuple[str, V] | Completion]]:
        return [(news.key, news) for news in batch if news.step == step]

    inputs: KeyedStream[tuple[str, V] | Completion] = op.merge(
        "inputs",
        op.flat_map_batch("items", up, with_key),
        op.flat_map_batch("finished", finished, of_this_step),
    )
    return op.stateful_batch("call", inputs, lambda resumed: AsyncCallLogic(step, fn, runtime, ordered, resumed))


@dataclass(frozen=True)
class ResultsOut(Generic[V, W]):
    """Streams returned from `split_results`."""

    oks: KeyedStream[Completed[V, W]]
    errs: KeyedStream[Failed[V]]


@operator
def split_results(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    up: KeyedStream[Completed[V, W] | Failed[V]],
) -> ResultsOut[V, W]:
    """Divide the results of async calls into two streams. Between the two their order is lost.

    :arg step_id: Unique ID.

    :arg up: What `async_call` returned.

    :returns: A stream of what completed, and one of what failed.
    """
    branch = op.branch("branch", up, lambda keyed: isinstance(keyed[1], Completed))
    return ResultsOut(
        cast(KeyedStream[Completed[V, W]], branch.trues),
        cast(KeyedStream[Failed[V]], branch.falses),
    )
