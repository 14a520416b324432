"""The main dataflow as a recipe: input → decode → authorise → prepare → state → route → output.

Nothing branches off before the state, and nothing is keyed finer than a state partition: either would reorder events.
`runner.py` executes the recipe.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recallflow.embedder import Embedder
from recallflow.flows.gc_policy import collect_due_garbage
from recallflow.flows.record_spans import Journeys
from recallflow.flows.runner import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource
from recallflow.marks import Mark, Open, Signal
from recallflow.operators.async_call import Completion
from recallflow.operators.events import Batch, Item
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.operators.routing import by_partition, key_of_partition, partition_read
from recallflow.operators.step import StateStep
from recallflow.outputs import Marked, Output
from recallflow.records import Record

FLOW_ID = "recallflow"

Read = Record | Completion | Signal
ToState = Batch | Completion | Signal


@dataclass
class MainFlow:
    decode_record: Callable[[Record], Item]
    authorise_item: Callable[[Item], Item]
    embedder: Embedder
    open_state: Callable[[int], StateStep]
    route_outputs: Callable[[list[tuple[str, Output | Marked]]], Iterable[object]]
    journeys: Journeys
    began_s: float = 0.0  # of the batch that is being prepared

    def recipe(self, source: RecipeSource, sink: RecipeSink) -> Recipe:
        steps: list[BatchStep | KeyedStep] = [
            BatchStep("decode", self.decode),
            BatchStep("authorise", self.authorise),
            BatchStep("prepare", self.prepare),
            KeyedStep("state", lambda: PartitionLogic(self.open_state)),
            BatchStep("route", self.route_outputs),
        ]
        return Recipe(FLOW_ID, source, steps, sink)

    def decode(self, batch: list[Read]) -> list[Item | Completion | Signal]:
        """Parse records, and find those in another partition than their owner's."""
        collect_due_garbage()  # hardly anything of the batch before is left
        self.began_s = time.perf_counter()
        return [self.decode_record(one) if isinstance(one, Record) else one for one in batch]

    def authorise(self, batch: list[Item | Completion | Signal]) -> list[Item | Completion | Signal]:
        """Refuse items whose sender lacks the right, or is over a quota."""
        return [one if isinstance(one, Completion | Open | Mark) else self.authorise_item(one) for one in batch]

    def prepare(self, batch: list[Item | Completion | Signal]) -> list[tuple[str, ToState]]:
        """Analyse and embed texts, and return one batch of items per state partition. Signals keep their place: before
        the batch's items, or after."""
        finished: list[tuple[str, ToState]] = []
        before: list[tuple[str, ToState]] = []
        after: list[tuple[str, ToState]] = []
        items: list[Item] = []
        for one in batch:
            if isinstance(one, Completion):
                finished.append((one.key, one))
            elif isinstance(one, Open | Mark):
                (after if items else before).append((key_of_partition(one.partition), one))
            else:
                items.append(one)
        prepared = prepare(self.embedder, items)
        self.journeys.begin(prepared, self.began_s)
        return [*finished, *before, *by_partition(prepared, partition_read), *after]
