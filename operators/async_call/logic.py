"""The state per key: the items whose results are pending."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic

from bytewax.operators import StatefulBatchLogic

from recallflow.checked import Checked
from recallflow.operators.async_call.completions import Completion, numbers
from recallflow.operators.async_call.results import Result, V, W
from recallflow.operators.async_call.runtime import Call, Runtime


@dataclass(frozen=True, slots=True)
class Snapshot(Checked, Generic[V]):
    """Pending items in the order they came."""

    key: str
    pending: tuple[V, ...]


class AsyncCallLogic(StatefulBatchLogic[tuple[str, V] | Completion, Result[V, W], Snapshot[V]]):
    """The pending items of one key. Discarded when there are none, and never before: where the input ends, they stay in
    the snapshot."""

    def __init__(
        self, step: int, fn: Callable[[V], Awaitable[W]], runtime: Runtime, resumed: Snapshot[V] | None
    ) -> None:
        self._step = step
        self._fn = fn
        self._runtime = runtime
        self._key = "" if resumed is None else resumed.key  # each item has it, as Bytewax does not pass it to a logic
        self._calls: dict[int, Call[V, W]] = {}
        if resumed is not None:
            self._submit(resumed.pending)

    def on_batch(self, values: list[tuple[str, V] | Completion]) -> tuple[Iterable[Result[V, W]], bool]:
        new: list[V] = []
        finished: list[int] = []
        for value in values:
            if isinstance(value, Completion):
                finished.append(value.call)
            else:
                self._key, item = value
                new.append(item)
        if new:
            self._submit(new)
        # A completion without a call comes from an earlier run in this process.
        results = [self._calls.pop(number).result for number in finished if number in self._calls]
        return [result for result in results if result is not None], not self._calls

    def snapshot(self) -> Snapshot[V]:
        return Snapshot(self._key, tuple(call.item for call in self._calls.values()))

    def _submit(self, items: Iterable[V]) -> None:
        calls: dict[int, Call[V, W]] = {}
        for item, number in zip(items, numbers, strict=False):
            calls[number] = Call(item, self._fn, Completion(self._step, self._key, number))
        self._calls |= calls
        self._runtime.submit([*calls.values()])
