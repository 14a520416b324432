"""Recipes of dataflows, and their execution on the calling thread. Bytewax (`on_bytewax.py`) gives the same results."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, Protocol


class RecipeSource(Protocol):
    def open(self) -> None:
        """Prepare for `next_batch`. Called on the thread that reads the source."""

    def next_batch(self) -> list[Any]:
        """Return the next values, after a short wait if there are none. Raise StopIteration at the end."""

    def close(self) -> None: ...


class RecipeSink(Protocol):
    def write_batch(self, items: list[Any]) -> None: ...

    def close(self) -> None: ...


class KeyedLogic(Protocol):
    """The state of one key. Each method returns outputs; `on_batch` also returns whether the state can be dropped."""

    def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]: ...

    def on_notify(self) -> Iterable[Any]:
        """Called once `due_ms` is reached."""

    def on_eof(self) -> Iterable[Any]:
        """Called once at the end of the input."""

    def due_ms(self) -> int | None:
        """Return the time of the next `on_notify` in epoch milliseconds. Only the other methods change it."""


class BatchStep(NamedTuple):
    """A step without state: a function of a batch."""

    name: str
    function: Callable[[list[Any]], Iterable[Any]]


class KeyedStep(NamedTuple):
    """A step with one state per key. It takes and returns pairs of key and value."""

    name: str
    new_logic: Callable[[], KeyedLogic]


class Recipe(NamedTuple):
    """A dataflow: each value of the source passes through all steps in order, and the sink writes the results."""

    name: str
    source: RecipeSource
    steps: Sequence[BatchStep | KeyedStep]
    sink: RecipeSink


def run_loop(recipe: Recipe) -> None:
    with closing(RecipeLoop(recipe)) as loop:
        while loop.step():
            pass


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RecipeLoop:
    """A recipe under execution on one thread. One `step` moves one batch from the source to the sink."""

    def __init__(self, recipe: Recipe, clock_ms: Callable[[], int] = now_ms) -> None:
        self._source, self._sink = recipe.source, recipe.sink
        self._source.open()
        self._steps = [
            _KeyedStates(step, clock_ms).process if isinstance(step, KeyedStep) else partial(_process, step)
            for step in recipe.steps
        ]

    def step(self) -> bool:
        """Process one batch and all due notifications. Return False once the source has ended."""
        values: list[Any] = []
        has_ended = False
        try:
            values = self._source.next_batch()
        except StopIteration:
            has_ended = True
        for step in self._steps:
            values = step(values, has_ended)
        if values:
            self._sink.write_batch(values)
        return not has_ended

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._sink.close()


def _process(step: BatchStep, values: list[Any], _: bool) -> list[Any]:
    return [*step.function(values)] if values else values


class _KeyedStates:
    def __init__(self, step: KeyedStep, clock_ms: Callable[[], int]) -> None:
        self._new_logic, self._clock_ms = step.new_logic, clock_ms
        self._logics: dict[str, KeyedLogic] = {}
        self._due_ms: dict[str, int] = {}  # key → time of its next notification

    def process(self, values: list[tuple[str, Any]], has_ended: bool) -> list[Any]:
        outputs: list[Any] = []
        values_of: dict[str, list[Any]] = defaultdict(list)
        for key, value in values:
            values_of[key].append(value)
        for key, key_values in values_of.items():
            if (logic := self._logics.get(key)) is None:
                logic = self._logics[key] = self._new_logic()
            key_outputs, can_drop = logic.on_batch(key_values)
            outputs += [(key, output) for output in key_outputs]
            if can_drop:
                del self._logics[key]
            self._schedule(key)
        now_ms = self._clock_ms() if self._due_ms else 0
        for key in [key for key, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            outputs += [(key, output) for output in self._logics[key].on_notify()]
            self._schedule(key)
        if has_ended:
            outputs += [(key, output) for key, logic in self._logics.items() for output in logic.on_eof()]
        return outputs

    def _schedule(self, key: str) -> None:
        logic = self._logics.get(key)
        if logic is None or (due_ms := logic.due_ms()) is None:
            self._due_ms.pop(key, None)
        else:
            self._due_ms[key] = due_ms
