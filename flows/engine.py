"""The main dataflow: one stream of tagged events up to the state, on any source and sink."""

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.outputs import Sink

from recallflow.embedder import Embedder
from recallflow.flows.settings import Settings
from recallflow.operators.authorise import authorise
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.partition import PartitionLogic, partition_key
from recallflow.operators.prepare import prepare
from recallflow.outputs import Output
from recallflow.records import Record
from recallflow.state.directory import StateDirectory

FLOW_ID = "recallflow"


def build(
    source: Source[Record],
    sink: Sink[tuple[str, Output]],
    directory: StateDirectory,
    embedder: Embedder,
    settings: Settings,
) -> Dataflow:
    """decode → authorise → prepare → state partition → output.

    Nothing may branch off and merge before the state, and nothing may be keyed finer: either would reorder events.
    """

    def keyed(item: Item) -> tuple[str, tuple[str, Item]]:
        key = partition_key(item, settings.partitions)
        return key, (key, item)

    flow = Dataflow(FLOW_ID)
    records = op.input("records", flow, source)
    events = op.map("decode", records, decode)
    allowed = op.map("authorise", events, authorise)
    items = op.flat_map_batch("prepare", allowed, lambda batch: prepare(embedder, batch))
    by_partition = op.map("key", items, keyed)
    outputs = op.stateful_batch(
        "state", by_partition, PartitionLogic.builder(directory, embedder, settings.rules(embedder))
    )
    op.output("outputs", outputs, sink)
    return flow
