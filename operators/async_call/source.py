"""A source that emits finished calls beside its own items."""

from datetime import datetime
from typing import Generic, TypeVar

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

from recallflow.operators.async_call.completions import Completion, Completions

X = TypeVar("X")
"""Type of what a source emits."""

S = TypeVar("S")
"""Type of a source's resume state."""


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
