"""The main dataflow: one stream of tagged events up to the state, on any source and sink."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.operators import KeyedStream, StatefulBatchLogic
from threadpoolctl import threadpool_limits

from recallflow.embedder import Embedder
from recallflow.flows.cycles import ONE_THREAD
from recallflow.flows.journeys import Journeys
from recallflow.flows.order import BeforeApplied, Read, opener, preparer
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.rules import Rules
from recallflow.operators.snapshot import Snapshot, partition_hashed
from recallflow.outputs import Marked, Output
from recallflow.records import Record
from recallflow.state.directory import StateDirectory


def build(
    flow: Dataflow,
    source: Source[Record] | Source[Record | Completion] | Source[Read],
    directory: StateDirectory,
    embedder: Embedder,
    rules: Rules,
    *,
    decode: Callable[[Record], Item] = decode,
    partition_of: Callable[[Item], int] | None = None,
    behind: Callable[[int], str] = lambda _: "",
    models: Models | None = None,
    ahead: BeforeApplied | None = None,
    journeys: Journeys | None = None,
) -> KeyedStream[Output | Marked]:
    """decode → prepare → state partition; what comes out goes to whatever sink the caller has.

    Nothing may branch off and merge before the state, and nothing may be keyed finer: either would reorder events.

    `decode`: for a caller that looks at what comes in. `partition_of`: which state partition an item goes to, that of
    its owner where nothing else is said. `behind`: what a state partition's answers do not know yet. `models`: those
    asked about questions; where the input does not end, `source` emits their completions among the records. `ahead`:
    what is to be done with prepared items before they are applied. `journeys`: those of the records, which end where
    the caller hands outputs on.
    """

    hashed = partial(partition_hashed, partitions=directory.fingerprint.partitions)
    prepared = preparer(embedder, partition_of or hashed, decode, ahead, journeys)
    batches = op.flat_map_batch("prepare", op.input("records", flow, source), prepared)
    open_step = opener(directory, embedder, rules, models, behind)

    def in_one_thread(resumed: Snapshot | None) -> _LineLogic:
        threadpool_limits(ONE_THREAD)  # OpenMP's hold for the thread that sets them, and this is a worker's
        return _LineLogic(PartitionLogic(open_step, resumed))

    return op.stateful_batch("state", batches, in_one_thread)


class _LineLogic(StatefulBatchLogic[Any, Any, Any]):
    """A partition whose snapshots Bytewax keeps."""

    def __init__(self, logic: PartitionLogic) -> None:
        self._logic = logic

    def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]:
        return self._logic.on_batch(values)

    def on_notify(self) -> tuple[Iterable[Any], bool]:
        return self._logic.on_notify(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Any], bool]:
        return self._logic.on_eof(), StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        due_ms = self._logic.due_ms()
        return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)

    def snapshot(self) -> Snapshot | None:
        return self._logic.snapshot()
