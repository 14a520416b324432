"""The steps that a dataflow is built with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, cast

from bytewax import operators as op
from bytewax.dataflow import Dataflow, Stream, operator
from bytewax.inputs import FixedPartitionedSource
from bytewax.operators import KeyedStream

from recallflow.operators.async_call.completions import Completion, Completions, numbers
from recallflow.operators.async_call.logic import AsyncCallLogic
from recallflow.operators.async_call.results import Result, V, W
from recallflow.operators.async_call.runtime import Runtime
from recallflow.operators.async_call.source import WithCompletions, X


@dataclass(frozen=True)
class InputOut(Generic[X]):
    """Streams returned from `async_input`."""

    items: Stream[X]
    finished: Stream[Completion]


@operator
def async_input(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    flow: Dataflow,
    source: FixedPartitionedSource[X, Any],
    completions: Completions,
) -> InputOut[X]:
    """Introduce a source's items into a dataflow, and beside them the completions of async calls.

    :arg step_id: Unique ID.

    :arg flow: Dataflow.

    :arg source: To read items from.

    :arg completions: Of the runtimes that `async_call` steps of this dataflow use.

    :returns: A stream of items, and one of completions for `async_call`.
    """
    read = op.input("input", flow, WithCompletions(source, completions))
    branch = op.branch("branch", read, lambda emitted: isinstance(emitted, Completion))
    return InputOut(cast(Stream[X], branch.falses), cast(Stream[Completion], branch.trues))


@operator
def async_call(
    step_id: str,  # noqa: ARG001 Bytewax makes it the scope of the steps within
    up: KeyedStream[V],
    finished: Stream[Completion],
    fn: Callable[[V], Awaitable[W]],
    runtime: Runtime,
) -> KeyedStream[Result[V, W]]:
    """Call an async function once per item, without blocking the worker.

    Items that have no result yet are part of the snapshot, and are called again on resume. So a call happens at least
    once, and a result comes out exactly as often as its item went in. Where the input ends, what has no result yet
    stays in the snapshot.

    :arg step_id: Unique ID.

    :arg up: Keyed stream. Items must be pickle-able, and are kept by reference: do not change them.

    :arg finished: What the source emitted out of `runtime.completions`. Several steps can share the stream.

    :arg fn: To call on the process's loop thread. It must not block, and must let itself be cancelled: that is how a
        timeout ends it.

    :arg runtime: With the capacity and the timeout.

    :returns: Keyed stream of `Completed(item, value)` and `Failed(item, error)`, as calls finish.
    """
    step = next(numbers)

    def with_key(batch: list[tuple[str, V]]) -> list[tuple[str, tuple[str, V] | Completion]]:
        return [(key, (key, item)) for key, item in batch]

    def of_this_step(batch: list[Completion]) -> list[tuple[str, tuple[str, V] | Completion]]:
        return [(completion.key, completion) for completion in batch if completion.step == step]

    inputs: KeyedStream[tuple[str, V] | Completion] = op.merge(
        "inputs",
        op.flat_map_batch("items", up, with_key),
        op.flat_map_batch("finished", finished, of_this_step),
    )
    return op.stateful_batch("call", inputs, lambda resumed: AsyncCallLogic(step, fn, runtime, resumed))
