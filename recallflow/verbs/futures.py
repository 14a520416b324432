"""Outcomes that come later, of calls that return at once."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from recallflow.errors import CatchingUp, QueryFailed
from recallflow.responses import ErrorBody, Response

S = TypeVar("S")
T = TypeVar("T")


def new_future() -> "Future[Any]":
    """A future that cannot be cancelled: an asyncio task that is cancelled lets go of it, and it ends by itself."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def then(before: "Future[S]", make: Callable[[S], T]) -> "Future[T]":
    """What is made of an outcome once it is there."""
    made: Future[T] = new_future()

    def go_on(done: "Future[S]") -> None:
        try:
            made.set_result(make(done.result()))
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is waited for
            made.set_exception(error)

    before.add_done_callback(go_on)
    return made


def together(before: Sequence["Future[S]"]) -> "Future[list[S]]":
    """All outcomes, in the order of their calls, or the first error among them; once all are there."""
    every: Future[list[S]] = new_future()
    left, counting = len(before), threading.Lock()

    def count(_: object) -> None:
        nonlocal left
        with counting:
            left -= 1
            if left > 0:
                return
        if (error := next((error for one in before if (error := one.exception()) is not None), None)) is not None:
            every.set_exception(error)
        else:
            every.set_result([one.result() for one in before])

    for one in before:
        one.add_done_callback(count)
    return every


def resolve(asked: "Future[Response]", response: Response) -> None:
    """The response of a query is there: one that is an error is raised as that."""
    if response.status == "error":
        reason = response.error or ErrorBody(code="unknown", message="the response names no reason")
        failed = CatchingUp if reason.code == "catching_up" else QueryFailed
        asked.set_exception(failed(response.query_id, reason))
    else:
        asked.set_result(response)
