"""The state of one partition as a keyed step: batches in, outputs out."""

from collections.abc import Callable

from recallflow.operators.async_call import CallCompletion
from recallflow.operators.events import Batch
from recallflow.operators.step import StateStep
from recallflow.outputs import Marked, Output
from recallflow.records import Mark, Open, Signal


class PartitionLogic:
    """The events of one state partition in order. `Open`, or else the first batch, opens the step."""

    def __init__(self, open_step: Callable[[int], StateStep]) -> None:
        self._open_step = open_step
        self._step: StateStep | None = None

    def on_batch(self, values: list[Batch | CallCompletion | Signal]) -> tuple[list[Output | Marked], bool]:
        """Return outputs, and whether the partition is closed."""
        outputs: list[Output | Marked] = []
        given: list[Batch | CallCompletion] = []
        for value in values:
            if isinstance(value, Open | Mark):
                outputs += self._take(given)
                given = []
                outputs += self._obey(value)
            else:
                given.append(value)
        outputs += self._take(given)
        return outputs, self._step is None

    def _take(self, values: list[Batch | CallCompletion]) -> list[Output]:
        if self._step is None:
            batches = [value for value in values if isinstance(value, Batch)]
            if not batches:  # completions of a closed step
                return []
            self._step = self._open_step(batches[0].partition)
        return self._step.take(values) if values else []

    def _obey(self, signal: Signal) -> list[Marked]:
        if isinstance(signal, Open):
            self._step = self._open_step(signal.partition)
            return []
        marked = self._opened.mark(signal)
        if signal.last:
            self._opened.close()
            self._step = None
        return [marked]

    def on_notify(self) -> list[Output]:
        return self._opened.advance()

    def on_eof(self) -> list[Output]:
        return [] if self._step is None else self._step.end()

    def due_ms(self) -> int | None:
        """Return the time of the next `on_notify` in epoch milliseconds; 0 is at once."""
        return None if self._step is None else self._step.due_ms()

    @property
    def _opened(self) -> StateStep:
        if self._step is None:
            raise RuntimeError("the partition is not open")
        return self._step
