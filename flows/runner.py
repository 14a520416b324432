"""Execution of recipes: on Bytewax if it is installed (`on_bytewax.py`), and otherwise on the calling thread (`Loop`).
Both give the same results."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from recallflow.flows.gc_policy import engine_process
from recallflow.flows.recipe import BatchStep, KeyedLogic, KeyedStep, Recipe

_log = logging.getLogger(__name__)


def run(recipe: Recipe) -> None:
    """Execute a recipe until its source ends, on Bytewax if it is installed. Raise the error that stopped it."""
    with engine_process():
        try:
            from recallflow.flows.on_bytewax import run_on_bytewax
        except ImportError as error:
            if (error.name or "bytewax").partition(".")[0] != "bytewax":
                raise
            if not isinstance(error, ModuleNotFoundError):
                _log.warning("Bytewax is installed but cannot be loaded (%s): running without it", error)
            run_loop(recipe)
        else:
            run_on_bytewax(recipe)


def run_loop(recipe: Recipe) -> None:
    loop = Loop(recipe)
    try:
        while loop.step():
            pass
    finally:
        loop.close()


def system_time_ms() -> int:
    return time.time_ns() // 1_000_000


class Loop:
    """A recipe under execution on one thread. One `step` moves one batch from the source to the sink."""

    def __init__(self, recipe: Recipe, now_ms: Callable[[], int] = system_time_ms) -> None:
        self._source, self._sink = recipe.source, recipe.sink
        self._source.open()
        self._steps = [
            _KeyedStates(step, now_ms).process if isinstance(step, KeyedStep) else partial(_process, step)
            for step in recipe.steps
        ]

    def step(self) -> bool:
        """Process one batch and all due notifications. Return False once the source has ended."""
        values: list[Any] = []
        goes_on = True
        try:
            values = self._source.next_batch()
        except StopIteration:
            goes_on = False
        for step in self._steps:
            values = step(values, not goes_on)
        if values:
            self._sink.write_batch(values)
        return goes_on

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._sink.close()


def _process(step: BatchStep, values: list[Any], _: bool) -> list[Any]:
    return [*step.function(values)] if values else values


class _KeyedStates:
    def __init__(self, step: KeyedStep, now_ms: Callable[[], int]) -> None:
        self._new_logic, self._now_ms = step.new_logic, now_ms
        self._logics: dict[str, KeyedLogic] = {}
        self._due_ms: dict[str, int] = {}  # key → time of its next notification

    def process(self, values: list[tuple[str, Any]], ends: bool) -> list[Any]:
        outputs: list[Any] = []
        by_key: dict[str, list[Any]] = defaultdict(list)
        for key, value in values:
            by_key[key].append(value)
        for key, given in by_key.items():
            if (logic := self._logics.get(key)) is None:
                logic = self._logics[key] = self._new_logic()
            made, is_over = logic.on_batch(given)
            outputs += [(key, one) for one in made]
            if is_over:
                del self._logics[key]
            self._schedule(key)
        now_ms = self._now_ms() if self._due_ms else 0
        for key in [key for key, at_ms in self._due_ms.items() if at_ms <= now_ms]:
            outputs += [(key, one) for one in self._logics[key].on_notify()]
            self._schedule(key)
        if ends:
            outputs += [(key, one) for key, logic in self._logics.items() for one in logic.on_eof()]
        return outputs

    def _schedule(self, key: str) -> None:
        logic = self._logics.get(key)
        at_ms = None if logic is None else logic.due_ms()
        if at_ms is None:
            self._due_ms.pop(key, None)
        else:
            self._due_ms[key] = at_ms
