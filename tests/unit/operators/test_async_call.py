"""Async calls within a dataflow: each item gets one result, whatever the order, the failures, the crash.

Nothing waits for time to pass: calls finish when the test lets them, and a timeout is one of zero seconds.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, cluster_main, run_main

from recallflow.operators.async_call import Call, CallError, Completed, Completion, Completions, Failed, Runtime
from recallflow.operators.async_call.logic import AsyncCallLogic, Snapshot
from recallflow.operators.async_call.source import WithCompletions
from recallflow.operators.async_call.steps import async_call, async_input

Item = tuple[str, int]
Fn = Callable[[int], Awaitable[Any]]
Keyed = tuple[str, Completed[int, Any] | Failed[int]]
Given = Sequence[Item | TestingSource.EOF | TestingSource.ABORT]

AT_ONCE = timedelta(0)


async def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(Completions(), capacity=4) as made:
        yield made


def items(*numbers: int, key: str = "k") -> list[Item]:
    return [(key, number) for number in numbers]


def flow_of(source: TestingSource[Item], fn: Fn, runtime: Runtime, out: list[Keyed]) -> Dataflow:
    flow = Dataflow("calls")
    read = async_input("read", flow, source, runtime.completions)
    called = async_call("call", read.items, read.finished, fn, runtime)
    op.output("out", called, TestingSink(out))
    return flow


class Hold(TestingSource[Item]):
    """Gives its items at once, and does not end before the test allows."""

    def __init__(self, given: Given, until: Callable[[], bool]) -> None:
        super().__init__(given)
        self._until = until

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any:
        part = super().build_part(step_id, for_part, resume_state)
        give = part.next_batch

        def next_batch() -> list[Item]:
            try:
                return give()
            except StopIteration:
                if self._until():
                    raise
                return []

        part.next_batch = next_batch  # type: ignore[method-assign]
        return part


def run(given: Sequence[Item], fn: Fn, runtime: Runtime, workers: int = 1) -> list[Keyed]:
    """The results of all items, which come while the input goes on: nothing but completions can have brought them."""
    out: list[Keyed] = []
    flow = flow_of(Hold(given, lambda: len(out) == len(given)), fn, runtime, out)
    cluster_main(flow, [], 0, worker_count_per_proc=workers, epoch_interval=AT_ONCE)
    return out


def values(out: list[Keyed]) -> list[Any]:
    return [result.value for _, result in out if isinstance(result, Completed)]


def by_item(out: list[Keyed]) -> list[Keyed]:
    return sorted(out, key=lambda keyed: keyed[1].item)


class Gate:
    """A function whose calls finish when the test says so: `order` names the items, one after the other."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = list(order)
        self._called: dict[int, asyncio.Future[None]] = {}

    async def __call__(self, number: int) -> int:
        self._called[number] = asyncio.get_running_loop().create_future()
        self._open()
        await self._called[number]
        self._order.pop(0)
        self._open()
        return number

    def _open(self) -> None:
        if self._order and (waiting := self._called.get(self._order[0])) and not waiting.done():
            waiting.set_result(None)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_gets_its_result_under_its_key(runtime: Runtime, workers: int) -> None:
    given = [(f"key{number % 5}", number) for number in range(100)]
    out = run(given, double, runtime, workers)
    assert by_item(out) == [(key, Completed(number, 2 * number)) for key, number in given]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_out_as_calls_finish(runtime: Runtime, workers: int) -> None:
    assert values(run(items(0, 1, 2, 3), Gate([3, 1, 2, 0]), runtime, workers)) == [3, 1, 2, 0]


def test_two_steps_share_a_runtime_and_their_completions(runtime: Runtime) -> None:
    out: list[Keyed] = []
    flow = Dataflow("calls")
    source = Hold(items(1, 2, 3), lambda: len(out) == 3)
    read = async_input("read", flow, source, runtime.completions)
    doubled = async_call("first", read.items, read.finished, double, runtime)
    again = op.filter_map_value("value", doubled, lambda one: one.value if isinstance(one, Completed) else None)
    op.output("out", async_call("second", again, read.finished, double, runtime), TestingSink(out))
    run_main(flow)
    assert sorted(values(out)) == [4, 8, 12]


def test_completions_wait_for_the_logics_where_the_input_ends() -> None:
    completions = Completions()
    nothing: TestingSource[Item] = TestingSource([])
    part = WithCompletions(nothing, completions).build_part("s", "iterable", None)
    completions.put(Completion(0, "k", 1))
    with pytest.raises(StopIteration):
        part.next_batch()
    assert completions.pop_all() == [Completion(0, "k", 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_capacity_is_reached_and_never_exceeded(runtime: Runtime, workers: int) -> None:
    under_way = most = 0
    full = asyncio.Event()

    async def call(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == runtime.capacity:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        under_way -= 1
        return number

    out = run([(f"key{number % 7}", number) for number in range(50)], call, runtime, workers=workers)
    assert (len(out), most) == (50, runtime.capacity)


def test_waiting_items_are_called_first_come_first_served() -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)

    with Runtime(Completions(), capacity=1) as runtime:
        run([(f"key{number % 3}", number) for number in range(9)], call, runtime)
    assert order == list(range(9))


def test_a_call_without_a_result_in_time_is_a_failure() -> None:
    async def hang(number: int) -> None:  # noqa: ARG001
        await asyncio.Event().wait()

    with Runtime(Completions(), timeout_s=0) as runtime:
        out = run(items(1), hang, runtime)
    assert out == [("k", Failed(1, CallError("TimeoutError", "no result within 0 s")))]


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Runtime(Completions(), capacity=0)


def test_an_error_is_the_result_of_its_item(runtime: Runtime) -> None:
    async def odd(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number

    out = run(items(1, 2, 3, 4), odd, runtime)
    odds = [Failed(n, CallError("ValueError", f"{n} is odd")) for n in (1, 3)]
    assert by_item(out) == [("k", odds[0]), ("k", Completed(2, 2)), ("k", odds[1]), ("k", Completed(4, 4))]


def test_a_call_that_cancels_itself_is_a_failure_not_a_hang(runtime: Runtime) -> None:
    async def cancelled(number: int) -> None:  # noqa: ARG001
        raise asyncio.CancelledError

    ((_, failed),) = run(items(1), cancelled, runtime)
    assert isinstance(failed, Failed)
    assert failed.error.kind == "asyncio.exceptions.CancelledError"


def test_closing_cancels_what_is_under_way_and_refuses_more() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def hang(number: int) -> None:  # noqa: ARG001
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    runtime = Runtime(Completions())
    call = Call(1, hang, Completion(0, "k", 0))
    runtime.submit([call])
    assert begun.wait(10)
    runtime.close()
    assert cancelled.is_set()
    assert call.result is None
    with pytest.raises(RuntimeError, match="closed"):
        runtime.wait([call])
    with pytest.raises(RuntimeError, match="closed"):
        runtime.submit([call])


def finished(runtime: Runtime) -> Completion:
    """The next completion, as a source would see it."""
    assert runtime.completions.wake.wait(10)
    runtime.completions.wake.clear()
    (completion,) = runtime.completions.pop_all()
    return completion


class Manual:
    """Calls finish one at a time, from the test's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._called: dict[int, asyncio.Future[int]] = {}

    async def __call__(self, number: int) -> int:
        return await self._called.setdefault(number, asyncio.get_running_loop().create_future())

    def finish(self, number: int) -> Completion:
        async def let_through() -> None:
            future = self._called.setdefault(number, asyncio.get_running_loop().create_future())
            future.set_result(number)

        self._runtime.run(let_through())
        return finished(self._runtime)


def logic_of(runtime: Runtime, fn: Fn, resumed: Snapshot[int] | None = None) -> AsyncCallLogic[int, int]:
    return AsyncCallLogic(0, fn, runtime, resumed)


def test_a_logic_is_discarded_when_nothing_is_pending_and_not_before(runtime: Runtime) -> None:
    manual = Manual(runtime)
    logic = logic_of(runtime, manual)
    assert logic.on_batch([("k", 1), ("k", 2)]) == ([], False)
    assert logic.on_batch([manual.finish(2)]) == ([Completed(2, 2)], False)
    assert logic.on_eof() == ((), False)
    assert logic.on_batch([manual.finish(1)]) == ([Completed(1, 1)], True)


def test_a_snapshot_is_the_pending_items_and_they_are_called_again(runtime: Runtime) -> None:
    manual = Manual(runtime)
    logic = logic_of(runtime, manual)
    logic.on_batch([("k", 1), ("k", 2), ("k", 3)])
    logic.on_batch([manual.finish(2)])
    assert logic.snapshot() == Snapshot("k", (1, 3))

    again = Manual(runtime)
    resumed = logic_of(runtime, again, logic.snapshot())
    assert resumed.on_batch([again.finish(3)]) == ([Completed(3, 3)], False)
    assert resumed.on_batch([again.finish(1)]) == ([Completed(1, 1)], True)


def test_a_completion_of_an_earlier_run_changes_nothing(runtime: Runtime) -> None:
    logic = logic_of(runtime, Manual(runtime))
    assert logic.on_batch([Completion(0, "k", -1)]) == ([], True)
    logic.on_batch([("k", 1)])
    assert logic.on_batch([Completion(0, "k", -1)]) == ([], False)


@pytest.fixture
def recovery(tmp_path: Path) -> RecoveryConfig:
    init_db_dir(tmp_path, 1)
    return RecoveryConfig(str(tmp_path))


class Recorder:
    """Notes what is called. What is stuck hangs for ever, and takes its run with it."""

    def __init__(self, stuck: Sequence[int] = ()) -> None:
        self.called: list[int] = []
        self._stuck = stuck

    async def __call__(self, number: int) -> int:
        self.called.append(number)
        if number in self._stuck:
            await asyncio.Event().wait()
        return number


def test_after_an_abort_what_was_pending_is_called_again_and_nothing_else(recovery: RecoveryConfig) -> None:
    """1 and 3 finish and come out before the crash; 2 and 4 hang."""
    out: list[Keyed] = []
    before = [*items(1, 2, key="a"), *items(3, 4, key="b")]

    first = Recorder(stuck=[2, 4])
    with Runtime(Completions()) as runtime:
        source = AbortWhen([*before, TestingSource.ABORT()], lambda: len(out) == 2)
        run_main(flow_of(source, first, runtime, out), epoch_interval=AT_ONCE, recovery_config=recovery)
    assert sorted(values(out)) == [1, 3]

    out.clear()
    second = Recorder()
    with Runtime(Completions()) as runtime:
        goes_on = Hold([*before, *items(5, key="a")], lambda: len(out) == 3)
        run_main(flow_of(goes_on, second, runtime, out), epoch_interval=AT_ONCE, recovery_config=recovery)
    assert sorted(second.called) == [2, 4, 5]
    assert by_item(out) == [("a", Completed(2, 2)), ("b", Completed(4, 4)), ("a", Completed(5, 5))]


class AbortWhen(TestingSource[Item]):
    """Comes to its ABORT once the test's condition holds, and three epochs have closed after that."""

    def __init__(self, given: Given, ready: Callable[[], bool]) -> None:
        super().__init__(given)
        self._ready = ready
        self._items = sum(
            isinstance(one, tuple)
            for one in given[: [isinstance(one, TestingSource.ABORT) for one in given].index(True)]
        )

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any:
        part = super().build_part(step_id, for_part, resume_state)
        give, snapshot = part.next_batch, part.snapshot
        after = 0

        def next_batch() -> list[Item]:
            return give() if snapshot() < self._items or after >= 3 else []

        def count_epochs() -> int:
            nonlocal after
            after += self._ready()
            return snapshot()

        part.next_batch = next_batch  # type: ignore[method-assign]
        part.snapshot = count_epochs  # type: ignore[method-assign]
        return part


@pytest.mark.parametrize("workers", [1, 2])
def test_where_the_input_ends_what_is_pending_is_called_in_the_next_run(recovery: RecoveryConfig, workers: int) -> None:
    """2 hangs when the source stops, and the end does not wait for it."""
    given = [*items(1, 2, key="a"), *items(3, key="b")]
    out: list[Keyed] = []
    for recorder, wanted, called in ((Recorder(stuck=[2]), [1, 3], [1, 2, 3]), (Recorder(), [2], [2])):
        out.clear()
        with Runtime(Completions()) as runtime:
            flow = flow_of(Hold(given, lambda: len(out) == len(wanted)), recorder, runtime, out)  # noqa: B023 it runs here
            cluster_main(flow, [], 0, worker_count_per_proc=workers, epoch_interval=AT_ONCE, recovery_config=recovery)
        assert sorted(values(out)) == wanted
        assert sorted(recorder.called) == called
