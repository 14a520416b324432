"""The order of the steps up to the state, for whatever calls them: the dataflow (`engine.py`) or a loop (`direct.py`).

decode → prepare → state partition → decisions; what comes out goes to whoever has the other end.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.lines import Delivered
from recallflow.connectors.token_counters import load_tiktoken
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.flows.cycles import look_for_cycles
from recallflow.marks import Mark, Open, Signal
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion
from recallflow.operators.events import Batch, Item
from recallflow.operators.prepare import prepare
from recallflow.operators.rules import Rules
from recallflow.operators.snapshot import Snapshot, by_partition, key_of_partition
from recallflow.operators.step import StateStep
from recallflow.outputs import Audited, Done, Moved, Output, Requested, Verdict
from recallflow.records import Record
from recallflow.state.directory import StateDirectory

if TYPE_CHECKING:  # it loads OpenTelemetry, which an engine for callers does without
    from recallflow.flows.journeys import Journeys


BeforeApplied = Callable[[Sequence[Item]], list[Item]]
Read = Record | Completion | Signal
ToState = Batch | Completion | Signal


def preparer(
    embedder: Embedder,
    partition_of: Callable[[Item], int],
    decode: Callable[[Record], Item],
    ahead: BeforeApplied | None = None,
    journeys: "Journeys | None" = None,
) -> Callable[[Sequence[Read]], list[tuple[str, ToState]]]:
    """Makes of a batch what each state partition gets of it, under its key. `partition_of`: which one an item goes to.
    `ahead`: what is to be done with prepared items before they are applied. `journeys`: those of the records, which end
    where the caller hands outputs on."""

    def prepared(read: Sequence[Read]) -> list[tuple[str, ToState]]:
        look_for_cycles()  # hardly anything of the batch before is left
        began_s = time.perf_counter()
        finished = [(one.key, one) for one in read if isinstance(one, Completion)]
        first = next((place for place, one in enumerate(read) if isinstance(one, Record)), len(read))
        before, after = (
            [(key_of_partition(one.partition), one) for one in some if isinstance(one, Open | Mark)]
            for some in (read[:first], read[first:])
        )
        items = prepare(embedder, [decode(one) for one in read if isinstance(one, Record)])
        if ahead is not None:
            items = ahead(items)
        if journeys is not None:
            journeys.begin(items, began_s)
        return [*finished, *before, *by_partition(items, partition_of), *after]

    return prepared


def opener(
    directory: StateDirectory,
    embedder: Embedder,
    rules: Rules,
    models: Models | None = None,
    behind: Callable[[int], str] = lambda _: "",
) -> Callable[[Snapshot], StateStep]:
    """Opens state partitions. `models`: those asked about questions. `behind`: what a state partition's answers do not
    know yet."""
    fallback = load_embedder("hash")
    return StateStep.opener(
        directory, embedder, rules, fallback=fallback, exact_tokens=load_tiktoken, behind=behind, models=models
    )


def decided(
    decisions: History, observe: Callable[[Output], None], outputs: Iterable[Output]
) -> Iterator[Delivered | Done]:
    """What is handed over where no log stands behind the outputs. Verdicts hold at once, as there is none for them to
    come back through; requests are not wanted, as nobody would read them, nor is a record of who asked."""
    for output in outputs:
        observe(output)
        if isinstance(output, Verdict):
            decisions.add(output.at_ms, output.event)
        elif not isinstance(output, Requested | Audited | Moved):
            yield output
