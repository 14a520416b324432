"""The main dataflow: one stream of tagged events up to the state, on any source and sink."""

import time
from collections.abc import Callable, Sequence

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.operators import KeyedStream
from threadpoolctl import threadpool_limits

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.token_counters import load_tiktoken
from recallflow.embedder import Embedder
from recallflow.flows.cycles import look_for_cycles
from recallflow.flows.journeys import Journeys
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion
from recallflow.operators.decode import decode
from recallflow.operators.events import Batch, Item
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.operators.rules import Rules
from recallflow.operators.snapshot import Snapshot, by_partition
from recallflow.outputs import Output
from recallflow.records import Record
from recallflow.state.directory import StateDirectory

# A log and lines have each a flow of their own in the recovery store: the places of one, its queries that wait and its
# outputs are nothing that the other could go on with.
FLOW_ID = "recallflow"
LINES_FLOW_ID = "lines"
# For each worker's arithmetic. Threads of OpenBLAS, of OpenMP (FAISS) and of onnxruntime wait for each other busily:
# with two cores, a message took 18 ms with MiniLM, of which the model needs 5.
ONE_THREAD = 1


def build(
    flow: Dataflow,
    source: Source[Record] | Source[Record | Completion],
    directory: StateDirectory,
    embedder: Embedder,
    rules: Rules,
    *,
    decode: Callable[[Record], Item] = decode,
    behind: Callable[[], str] = lambda: "",
    models: Models | None = None,
    ahead: Callable[[Sequence[Item]], list[Item]] | None = None,
    journeys: Journeys | None = None,
) -> KeyedStream[Output]:
    """decode → prepare → state partition; what comes out goes to whatever sink the caller has.

    Nothing may branch off and merge before the state, and nothing may be keyed finer: either would reorder events.

    `decode`: for a caller that looks at what comes in. `behind`: what answers do not know yet. `models`: those
    asked about questions; where the input does not end, `source` emits their completions among the records. `ahead`:
    what is to be done with prepared items before they are applied. `journeys`: those of the records, which end where
    the caller hands outputs on.
    """

    def prepared(read: list[Record | Completion]) -> list[tuple[str, Batch | Completion]]:
        look_for_cycles()  # hardly anything of the batch before is left
        began_s = time.perf_counter()
        finished = [one for one in read if isinstance(one, Completion)]
        events = [decode(one) for one in read if not isinstance(one, Completion)]
        items = prepare(embedder, events)
        if ahead is not None:
            items = ahead(items)
        if journeys is not None:
            journeys.begin(items, began_s)
        batches = by_partition(items, directory.fingerprint.partitions)
        return [*((one.key, one) for one in finished), *batches]

    batches = op.flat_map_batch("prepare", op.input("records", flow, source), prepared)
    logic = PartitionLogic.builder(
        directory,
        embedder,
        rules,
        fallback=load_embedder("hash"),
        exact_tokens=load_tiktoken,
        behind=behind,
        models=models,
    )

    def in_one_thread(resumed: Snapshot | None) -> PartitionLogic:
        threadpool_limits(ONE_THREAD)  # OpenMP's hold for the thread that sets them, and this is a worker's
        return logic(resumed)

    return op.stateful_batch("state", batches, in_one_thread)
