"""The state step as Bytewax runs it: batches in, outputs out, a snapshot of each epoch, and a start from one."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Self

from bytewax.operators import StatefulBatchLogic

from recallflow.embedder import Embedder, TokenCounter
from recallflow.marks import Mark, Open, Signal
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion
from recallflow.operators.events import Batch
from recallflow.operators.rules import Rules
from recallflow.operators.snapshot import Snapshot
from recallflow.operators.step import Clocks, StateStep
from recallflow.outputs import Marked, Output
from recallflow.state.directory import StateDirectory


class PartitionLogic(StatefulBatchLogic[Batch | Completion | Signal, Output | Marked, Snapshot | None]):
    """One state partition's events in order. Bytewax does not say which partition it is: the step is opened with the
    snapshot, or when it is this process's turn, or else with the first batch."""

    def __init__(self, open_step: Callable[[Snapshot], StateStep], resumed: Snapshot | None) -> None:
        self._open_step = open_step
        self._step = None if resumed is None else open_step(resumed)

    @classmethod
    def builder(
        cls,
        directory: StateDirectory,
        embedder: Embedder,
        rules: Rules,
        clocks: Clocks | None = None,
        *,
        fallback: Embedder | None = None,
        exact_tokens: Callable[[], TokenCounter | None] = lambda: None,
        behind: Callable[[int], str] = lambda _: "",
        models: Models | None = None,
    ) -> Callable[[Snapshot | None], Self]:
        """What Bytewax's `stateful_batch` asks for. `fallback` and `exact_tokens`: see `Shared`. `behind` says what of
        the log a state partition's answers do not know yet, empty where they know all of it. `models`: those asked
        about questions, if there are any."""
        open_step = StateStep.opener(
            directory,
            embedder,
            rules,
            clocks,
            fallback=fallback,
            exact_tokens=exact_tokens,
            behind=behind,
            models=models,
        )
        return lambda resumed: cls(open_step, resumed)

    def on_batch(self, values: list[Batch | Completion | Signal]) -> tuple[Iterable[Output | Marked], bool]:
        outputs: list[Output | Marked] = []
        given: list[Batch | Completion] = []
        for value in values:
            if isinstance(value, Open | Mark):
                outputs += self._take(given)
                given = []
                outputs += self._obey(value)
            else:
                given.append(value)
        outputs += self._take(given)
        return outputs, StatefulBatchLogic.DISCARD if self._step is None else StatefulBatchLogic.RETAIN

    def _take(self, values: list[Batch | Completion]) -> list[Output]:
        if self._step is None:
            batches = [value for value in values if isinstance(value, Batch)]
            if not batches:  # at most completions of a step that was closed
                return []
            self._step = self._open_step(Snapshot.empty(batches[0].partition))
        return self._step.take(values) if values else []

    def _obey(self, signal: Signal) -> list[Marked]:
        if isinstance(signal, Open):
            self._step = self._open_step(Snapshot.empty(signal.partition))
            return []
        marked = self._opened.mark(signal)
        if signal.last:
            self._opened.close()
            self._step = None
        return [marked]

    def on_notify(self) -> tuple[Iterable[Output], bool]:
        return self._opened.advance(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Output], bool]:
        return [] if self._step is None else self._step.end(), StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        due_ms = None if self._step is None else self._step.due_ms()
        return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)

    def snapshot(self) -> Snapshot | None:
        return None if self._step is None else self._step.snapshot()

    @property
    def _opened(self) -> StateStep:
        if self._step is None:
            raise RuntimeError("Bytewax asks for what it gave no item to")
        return self._step
