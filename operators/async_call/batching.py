"""Items of a key in batches: so many, or those that came within a while."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from bytewax import operators as op
from bytewax.dataflow import operator
from bytewax.operators import KeyedStream, StatefulBatchLogic

from recallflow.checked import Checked

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Held(Checked, Generic[V]):
    """The items of a batch that is not full."""

    items: tuple[V, ...]


class BatchingLogic(StatefulBatchLogic[V, tuple[V, ...], Held[V]]):
    """The items of one key. Discarded when there are none."""

    def __init__(self, size: int, wait_s: float, now_s: Callable[[], float], resumed: Held[V] | None) -> None:
        self._size = size
        self._wait_s = wait_s
        self._now_s = now_s
        self._items = list(resumed.items) if resumed else []
        self._due_s = now_s() + (0.0 if resumed else wait_s)

    def on_batch(self, values: list[V]) -> tuple[Iterable[tuple[V, ...]], bool]:
        if not self._items:
            self._due_s = self._now_s() + self._wait_s
        self._items += values
        full = len(self._items) - len(self._items) % self._size
        batches, self._items = self._cut(full), self._items[full:]
        if batches:
            self._due_s = self._now_s() + self._wait_s
        return batches, not self._items

    def on_notify(self) -> tuple[Iterable[tuple[V, ...]], bool]:
        return self._cut(len(self._items)), StatefulBatchLogic.DISCARD

    def notify_at(self) -> datetime:
        return datetime.fromtimestamp(self._due_s, UTC)

    def snapshot(self) -> Held[V]:
        return Held(tuple(self._items))

    def _cut(self, count: int) -> list[tuple[V, ...]]:
        return [tuple(self._items[at : min(at + self._size, count)]) for at in range(0, count, self._size)]


@operator
def batched(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    up: KeyedStream[V],
    size: int,
    wait_s: float,
    now_s: Callable[[], float] = time.time,
) -> KeyedStream[tuple[V, ...]]:
    """Collect items of a key into batches. Where the input ends, those that are not full stay in the snapshot.

    :arg step_id: Unique ID.

    :arg up: Keyed stream. Items must be pickle-able.

    :arg size: Of a batch, at most.

    :arg wait_s: How long after its first item a batch goes on at the latest.

    :arg now_s: Seconds since 1970.

    :returns: Keyed stream of tuples of items, in their order.
    """
    return op.stateful_batch("batch", up, lambda resumed: BatchingLogic(size, wait_s, now_s, resumed))
