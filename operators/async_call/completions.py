"""Brings finished calls to the worker: the source emits them beside its own items."""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

X = TypeVar("X")
"""Type of what a source emits."""

S = TypeVar("S")
"""Type of a source's resume state."""

WAIT_S = 0.005


@dataclass(frozen=True, slots=True)
class Completion:
    """Says that a call has finished: an input of the operator."""

    step: int
    key: str
    call: int


class Completions:
    """The calls that have finished and were not emitted yet. Any number of runtimes may put completions here, and any
    number of workers emit them: an exchange routes each to the logic of its key.

    `wake` is set with each. A source that waits for input of its own sets the same event when there is some. Whoever
    waits for the event clears it first, and then looks for both input and completions.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._finished: deque[Completion] = deque()

    def put(self, completion: Completion) -> None:
        self._finished.append(completion)
        self.wake.set()

    def pop_all(self) -> list[Completion]:
        popped: list[Completion] = []
        try:
            while True:
                popped.append(self._finished.popleft())
        except IndexError:  # a check beforehand would not do: another worker may pop the last one in between
            return popped


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
        # The part comes first: once it has ended, completions stay for the logics, which then wait for all calls.
        items = self._items()
        finished = self._completions.pop_all()
        if not items and not finished and self._wait_s:
            self._completions.wake.wait(self._wait_s)
            self._completions.wake.clear()
            finished = self._completions.pop_all()
        return [*items, *finished]

    def _items(self) -> list[X]:
        if self._awake is not None and datetime.now(UTC) < self._awake:
            return []
        items = list(self._part.next_batch())
        self._awake = self._part.next_awake()
        return items

    def next_awake(self) -> datetime | None:
        # After an empty batch Bytewax would sleep for 1 ms, and this part has already waited. A part that itself waits
        # for `wake` says when it is to be polled next.
        return _LONG_AGO if self._wait_s else self._awake

    def snapshot(self) -> S:
        return self._part.snapshot()

    def close(self) -> None:
        self._part.close()
