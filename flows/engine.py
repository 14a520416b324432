"""The main dataflow: one stream of tagged events up to the state, on any source and sink."""

from collections.abc import Callable

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.operators import KeyedStream

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.token_counters import load_tiktoken
from recallflow.embedder import Embedder
from recallflow.operators.apply import Rules
from recallflow.operators.authorise import authorise
from recallflow.operators.decode import decode
from recallflow.operators.events import Item, Tagged
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.operators.snapshot import partition_key
from recallflow.outputs import Output
from recallflow.records import Record
from recallflow.state.directory import StateDirectory

FLOW_ID = "recallflow"


def build(
    flow: Dataflow,
    source: Source[Record],
    directory: StateDirectory,
    embedder: Embedder,
    rules: Rules,
    *,
    decode: Callable[[Record], Tagged] = decode,
    behind: Callable[[], str] = lambda: "",
) -> KeyedStream[Output]:
    """decode → authorise → prepare → state partition; what comes out goes to whatever sink the caller has.

    Nothing may branch off and merge before the state, and nothing may be keyed finer: either would reorder events.

    `decode`: for a caller that looks at what comes in. `behind`: what answers do not know yet.
    """
    partitions = directory.fingerprint.partitions

    def keyed(item: Item) -> tuple[str, tuple[str, Item]]:
        key = partition_key(item, partitions)
        return key, (key, item)

    records = op.input("records", flow, source)
    events = op.map("decode", records, decode)
    allowed = op.map("authorise", events, authorise)
    items = op.flat_map_batch("prepare", allowed, lambda batch: prepare(embedder, batch))
    by_partition = op.map("key", items, keyed)
    logic = PartitionLogic.builder(
        directory, embedder, rules, fallback=load_embedder("hash"), exact_tokens=load_tiktoken, behind=behind
    )
    return op.stateful_batch("state", by_partition, logic)
