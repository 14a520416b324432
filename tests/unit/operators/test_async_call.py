"""Async calls: each gets one result in any order and after any failure; the test decides when calls finish."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, Completions, Runtime

Fn = Callable[[int], Awaitable[Any]]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(Completions(), capacity=4) as made:
        yield made


def submit(runtime: Runtime, fn: Fn, *numbers: int) -> list[AsyncCall[int, Any]]:
    calls = [AsyncCall(number, fn, CallCompletion("k", number)) for number in numbers]
    runtime.submit(calls)
    return calls


def results(runtime: Runtime, fn: Fn, *numbers: int) -> list[Any]:
    calls = submit(runtime, fn, *numbers)
    runtime.wait(calls)
    return [call.result for call in calls]


async def hang(_: int) -> None:
    await asyncio.Event().wait()


def test_capacity_is_reached_and_never_exceeded(runtime: Runtime) -> None:
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

    assert results(runtime, call, *range(50)) == [*range(50)]
    assert most == runtime.capacity
    assert sorted(one.call for one in runtime.completions.pop_all()) == [*range(50)]


def test_waiting_calls_begin_in_the_order_of_submission() -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)

    with Runtime(Completions(), capacity=1) as runtime:
        results(runtime, call, *range(9))
    assert order == [*range(9)]


def test_a_call_without_a_result_in_time_is_a_failure() -> None:
    with Runtime(Completions(), timeout_s=0) as runtime:
        assert results(runtime, hang, 1) == [CallError("TimeoutError")]


def test_an_error_is_the_result_of_its_item(runtime: Runtime) -> None:
    async def odd(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number

    assert results(runtime, odd, 1, 2) == [CallError("ValueError"), 2]


def test_self_cancelled_call_is_a_failure(runtime: Runtime) -> None:
    async def cancelled(_: int) -> None:
        raise asyncio.CancelledError

    (failed,) = results(runtime, cancelled, 1)
    assert isinstance(failed, CallError)
    assert failed.kind == "asyncio.exceptions.CancelledError"


def test_cancelled_calls_make_room_for_others() -> None:
    begun: list[int] = []

    async def note(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    async def succeed(number: int) -> int:
        return number

    with Runtime(Completions(), capacity=2) as runtime:
        calls = submit(runtime, note, 1, 2, 3)
        runtime.cancel(calls)
        more = submit(runtime, note, 4)
        runtime.cancel(more)
        assert results(runtime, succeed, 5) == [5]
    assert 3 not in begun


def test_closing_cancels_open_calls_and_refuses_new_ones() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def call(_: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    runtime = Runtime(Completions())
    calls = submit(runtime, call, 1)
    assert begun.wait(10)
    runtime.close()
    assert cancelled.is_set()
    assert calls[0].result is None
    with pytest.raises(RuntimeError, match="closed"):
        runtime.wait(calls)
    with pytest.raises(RuntimeError, match="closed"):
        runtime.submit(calls)
