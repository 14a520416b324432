"""Execution of recipes on Bytewax. Only this module uses Bytewax's classes."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.run import cli_main
from threadpoolctl import threadpool_limits

from recallflow.errors import RecallflowError
from recallflow.flows.gc_policy import ONE_THREAD
from recallflow.flows.runner import KeyedStep, Recipe, RecipeSink, RecipeSource

_NO_DELAY = datetime.fromtimestamp(0, UTC)  # `next_batch` of the source waits for input, so Bytewax need not
_EPOCH = timedelta(days=1)  # epochs have no snapshots here


def run_on_bytewax(recipe: Recipe) -> None:
    """Execute a recipe in one worker. Raise the error that stopped it, without Bytewax's wrapping."""
    try:
        cli_main(dataflow(recipe), workers_per_process=1, epoch_interval=_EPOCH)
    except Exception as error:  # noqa: BLE001 - the most specific one is raised again
        cause = find_cause(error)
        raise cause from (error if cause is error else cause.__cause__)


def dataflow(recipe: Recipe) -> Dataflow:
    flow = Dataflow(recipe.name)
    stream: Any = op.input("input", flow, _Source(recipe.source))
    for step in recipe.steps:
        if isinstance(step, KeyedStep):
            stream = op.stateful_batch(step.name, stream, partial(_Logic, step))
        else:
            stream = op.flat_map_batch(step.name, stream, step.function)
    op.output("output", stream, _Sink(recipe.sink))
    return flow


def find_cause(error: BaseException) -> BaseException:
    """Return the wrapped error of recallflow, or else the innermost error."""
    while error.__cause__ is not None and not isinstance(error, RecallflowError):
        error = error.__cause__
    return error


class _Source(DynamicSource[Any], StatelessSourcePartition[Any]):
    """The source, which is also its only partition in Bytewax."""

    def __init__(self, source: RecipeSource) -> None:
        self._source = source

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "_Source":  # noqa: ARG002
        threadpool_limits(ONE_THREAD)  # OpenMP limits apply to the calling thread, here the worker's
        self._source.open()
        return self

    def next_batch(self) -> list[Any]:
        return self._source.next_batch()

    def next_awake(self) -> datetime:
        return _NO_DELAY

    def close(self) -> None:
        self._source.close()


class _Logic(StatefulBatchLogic[Any, Any, None]):
    def __init__(self, step: KeyedStep, _: None) -> None:  # the second argument is a snapshot to resume from
        self._logic = step.new_logic()

    def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]:
        return self._logic.on_batch(values)

    def on_notify(self) -> tuple[Iterable[Any], bool]:
        return self._logic.on_notify(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Any], bool]:
        return self._logic.on_eof(), StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        due_ms = self._logic.due_ms()
        return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)

    def snapshot(self) -> None:
        return None


class _Sink(DynamicSink[Any], StatelessSinkPartition[Any]):
    """The sink, which is also its only partition in Bytewax."""

    def __init__(self, sink: RecipeSink) -> None:
        self._sink = sink

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "_Sink":  # noqa: ARG002
        return self

    def write_batch(self, items: list[Any]) -> None:
        self._sink.write_batch(items)

    def close(self) -> None:
        self._sink.close()
