"""The state per key: the items whose results are pending."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Generic

from bytewax.operators import StatefulBatchLogic

from recallflow.checked import Checked
from recallflow.operators.async_call.completions import Completion
from recallflow.operators.async_call.results import Result, V, W
from recallflow.operators.async_call.runtime import Call, Runtime

numbers = count()  # of steps and calls; an earlier run in this process may still have calls under way


@dataclass(frozen=True, slots=True)
class Snapshot(Checked, Generic[V, W]):
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
        self._key = ""  # each item has it, as Bytewax does not pass it to a logic
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
        number = next(numbers)
        call = Call(item, self._fn, Completion(self._step, self._key, number))
        self._calls[number] = call
        return call

    def _ready(self, finished: list[int]) -> list[int]:
        """The calls whose results are emitted now. Only calls with a completion count, although others may have
        finished too: outputs depend on inputs alone, and not on how threads are scheduled. A completion without a call
        comes from an earlier run in this process."""
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
                # A new completion, and not an entry in `_held`: the step may be an unordered one since the snapshot.
                call.result = result
                self._runtime.completions.put(call.completion)
        self._runtime.submit(again)
