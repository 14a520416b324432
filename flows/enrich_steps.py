"""The steps of the enrichment flow.

    input → read → enrich → route → output

Answers of models go to the topic of results, and events come from there: a language model does not answer the same
twice, and a record of a topic is the same each time it is read.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from recallflow.enrichment import EnrichmentRequest, EnrichmentResult
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.flows.gc_policy import collect_due_garbage
from recallflow.flows.record_spans import Journeys
from recallflow.flows.runner import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource
from recallflow.marks import Signal
from recallflow.operators.async_call import Completion
from recallflow.operators.enrichment.results import Asked
from recallflow.operators.enrichment.step import Enricher, EnrichmentItem, PartitionEnrichment, Request, ToEnrich
from recallflow.operators.guard import twice
from recallflow.operators.routing import key_of_partition
from recallflow.outputs import DeadLetter, Derived, Done, EnrichmentOutput, Receipted
from recallflow.owner import Owner
from recallflow.parsing import parse_request, parse_result
from recallflow.records import Position, Record
from recallflow.responses import Receipt

FLOW_ID = "enrichment"
READ = "read"

Route = Callable[[list[tuple[str, Any]]], Iterable[Any]]


def recipe(source: RecipeSource, reader: "Reader", enricher: Enricher, route: Route, sink: RecipeSink) -> Recipe:
    """Return the flow. Nothing may branch off, because signals take the way of the records."""
    steps: list[BatchStep | KeyedStep] = [
        BatchStep(READ, reader),
        KeyedStep("enrich", lambda: PartitionEnrichment(enricher)),
        BatchStep("route", route),
    ]
    return Recipe(FLOW_ID, source, steps, sink)


class _Read(NamedTuple):
    record: Record


class Reader:
    """The step from records to requests, and to outputs of records that need no model."""

    def __init__(self, request_topic: str, answered: Callable[[Position], bool], journeys: Journeys) -> None:
        """`answered`: whether an earlier owner of the partition sent the output of a request. `journeys`: those of the
        records, which end where outputs are handed on."""
        self._request_topic, self._answered, self._journeys = request_topic, answered, journeys

    def __call__(self, read: Sequence[Record | Completion | Signal]) -> Iterator[tuple[str, ToEnrich]]:
        collect_due_garbage()  # hardly anything of the batch before is left
        self._journeys.begin([_Read(one) for one in read if isinstance(one, Record)], time.perf_counter())
        for one in read:
            if isinstance(one, Record):
                yield key_of_partition(one.position.partition), self._item(one)
            elif isinstance(one, Completion):
                yield one.key, one
            else:
                yield key_of_partition(one.partition), one

    def _item(self, record: Record) -> EnrichmentItem:
        position = record.position
        done = Done(position.source, (position.offset,))
        is_request = position.topic == self._request_topic
        if record.silent or (is_request and self._answered(position)):
            return (done,)
        try:
            if is_request:
                request = twice(READ, position, parse_request, record.value)
                return Request(Asked(position, request), record.append_ms, _key(request))
            return (*_sent(record, twice(READ, position, parse_result, record.value)), done)
        except InvalidRecord as error:
            return DeadLetter(record, 0, error, READ), done


def _key(request: EnrichmentRequest) -> tuple[str | None, ...]:
    """Return the key of requests that may be asked together: messages of a session are read together, and an embedding
    service reads any texts of a tenant."""
    if request.tasks == ["embed"]:
        return (request.tenant_id,)
    return (*request.owner, request.session_id)


def _sent(record: Record, result: EnrichmentResult) -> Iterator[EnrichmentOutput]:
    """Yield the events of a result, and a receipt for each task that failed. Raise InvalidRecord for an event of
    another owner."""
    key = result.owner.record_key
    for number, event in enumerate(result.events):
        if tuple(event.get(name) for name in Owner._fields) != result.owner:
            raise InvalidRecord("invalid_event", [FieldProblem(f"events.{number}", "is not the result's own user's")])
        yield Derived(record.position, number, key, orjson.dumps(event))
    for number, failed in enumerate(result.failures, len(result.events)):
        receipt = Receipt(
            id=result.source,
            position=result.source,
            outcome="degraded",
            memory_id=result.memory_id,
            code=failed.code,
            detail=failed.detail,
        )
        yield Receipted(record.position, number, key, receipt.model_dump_json(exclude_none=True).encode())
