"""Brings finished calls to the worker: the source emits them beside its own items."""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

X = TypeVar("X")
"""Type of what a source emits."""

S = TypeVar("S")
"""Type of a source's resume state."""


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
    """Any source, emitting completions beside its own items. One that waits for its input also waits for
    `completions.wake`.

    :arg source: To wrap. Parts and resume states are its own.

    :arg completions: To emit.
    """

    def __init__(self, source: FixedPartitionedSource[X, S], completions: Completions) -> None:
        self._source = source
        self._completions = completions

    def list_parts(self) -> list[str]:
        return self._source.list_parts()

    def build_part(self, step_id: str, for_part: str, resume_state: S | None) -> "_Part[X, S]":
        return _Part(self._source.build_part(step_id, for_part, resume_state), self._completions)


class _Part(StatefulSourcePartition[X | Completion, S], Generic[X, S]):
    def __init__(self, part: StatefulSourcePartition[X, S], completions: Completions) -> None:
        self._part = part
        self._completions = completions

    def next_batch(self) -> list[X | Completion]:
        return [*self._part.next_batch(), *self._completions.pop_all()]

    def next_awake(self) -> datetime | None:
        return self._part.next_awake()

    def snapshot(self) -> S:
        return self._part.snapshot()

    def close(self) -> None:
        self._part.close()
