"""The engine without a dataflow: a loop that calls the steps in their order, on the thread that it runs on.

Nothing reads a log again here: who calls has an answer, or asks again. So nothing is kept of outputs and of questions
that are under way, and numbers go on behind what the state says is applied: there is nothing else to resume from, and
a dataflow may have had the directory before, or have it next.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from recallflow.connectors.calls import Calls
from recallflow.connectors.lines import Delivered
from recallflow.embedder import Embedder
from recallflow.flows.order import BeforeApplied, ToState, decided, opener, preparer
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.rules import Rules
from recallflow.operators.snapshot import Snapshot, key_of_partition, partition_hashed
from recallflow.outputs import Done, Output
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory


class Direct:
    """All state partitions of a directory, for one thread: the one that makes it."""

    def __init__(
        self,
        directory: StateDirectory,
        embedder: Embedder,
        rules: Rules,
        sync_s: float | None,
        *,
        decode: Callable[[Record], Item] = decode,
        observe: Callable[[Output], None] = lambda _: None,
        models: Models | None = None,
        ahead: BeforeApplied | None = None,
    ) -> None:
        """`sync_s`: how long what is applied may wait for the disk; None where nothing is to outlive the process.
        `decode`: for a caller that looks at what comes in. `observe` is shown all that comes out. `ahead`: see
        `preparer`."""
        rules = replace(rules, comes_again=False)
        self._directory, self._decisions, self._observe, self._models = directory, rules.decisions, observe, models
        partitions = directory.fingerprint.partitions
        self._prepared = preparer(embedder, partial(partition_hashed, partitions=partitions), decode, ahead)
        open_step = opener(directory, embedder, rules, models)
        numbers = range(partitions) if directory.begins else directory.existing_numbers()
        self._steps = {key_of_partition(number): open_step(Snapshot.empty(number)) for number in numbers}
        self._sync_s, self._sync_at_s = sync_s, float("inf")

    def begin(self, topics: Iterable[str]) -> dict[str, int]:
        """The first offset of each topic that is new. An event that took steps when an earlier process was killed is
        gone on with."""
        sources = {topic: f"{topic}:0" for topic in topics}
        for step in self._steps.values():
            for source in sources.values():
                step.go_on(source)
        steps = self._steps.values()
        return {topic: max((step.next_offset(one) for step in steps), default=0) for topic, one in sources.items()}

    def run(self, read: Sequence[Record | Completion]) -> list[Delivered | Done]:
        """What comes out for a batch; by then it is applied."""
        given: dict[str, list[ToState]] = defaultdict(list)
        for key, one in self._prepared(read):
            given[key].append(one)
        for elsewhere in given.keys() - self._steps.keys():
            self._directory.partition(int(elsewhere))  # raises StateError
        outputs = [output for key, values in given.items() for output in self._steps[key].take(values)]
        if self._sync_s is not None:
            self._sync_at_s = min(self._sync_at_s, time.monotonic() + self._sync_s)
        return self._decided(outputs)

    def turn(self) -> list[Delivered | Done]:
        """What comes out of state partitions whose time has come: one step of each."""
        now_ms = time.time_ns() // 1_000_000
        due = [step for step in self._steps.values() if (at := step.due_ms()) is not None and at <= now_ms]
        if (error := self._directory.broken) is not None:
            raise error
        outputs = self._decided([output for step in due for output in step.advance()])
        if time.monotonic() >= self._sync_at_s:
            self._sync()
        return outputs

    def rest_s(self) -> float | None:
        """How long nothing has to be done unless something comes; None for ever."""
        due_ms = [at for step in self._steps.values() if (at := step.due_ms()) is not None]
        rests_s = [(at - time.time_ns() / 1_000_000) / 1_000 for at in due_ms]
        if self._sync_at_s < float("inf"):
            rests_s.append(self._sync_at_s - time.monotonic())
        return max(0.0, min(rests_s)) if rests_s else None

    def pass_over(self, position: Position) -> None:
        """Has all of a log up to a position count as read: what comes next stands behind it."""
        self._directory.pass_over(position)

    def end(self) -> list[Delivered | Done]:
        """What comes out at the end of the input; all that is applied survives a power cut."""
        outputs = self._decided([output for step in self._steps.values() for output in step.end()])
        if self._sync_s is not None:
            self._directory.sync()
        return outputs

    def serve(self, calls: Calls) -> None:
        """Applies and answers what callers put, until they end it."""
        calls.begin(self.begin(calls.topics))
        with suppress(StopIteration):
            while True:
                calls.wake.clear()
                read: list[Record | Completion] = [*calls.take(), *self._finished()]
                calls.deliver(self.run(read) if read else [])
                calls.deliver(self.turn())
                if not read:
                    calls.wake.wait(self.rest_s())
        calls.deliver(self.end())

    def _finished(self) -> list[Completion]:
        return [] if self._models is None else self._models.runtime.completions.pop_all()

    def _decided(self, outputs: Iterable[Output]) -> list[Delivered | Done]:
        return [*decided(self._decisions, self._observe, outputs)]

    def _sync(self) -> None:
        is_covered = self._directory.begin_syncs()
        self._sync_at_s = float("inf") if is_covered else time.monotonic() + (self._sync_s or 0.0)
