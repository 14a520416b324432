"""The steps of the enrichment flow.

    records ─ read ─┬─ requests ─ batches of a session ─ asked of models ─ results ─┬─ sink
                    └─ results ── events, receipts ─────────────────────────────────┘

What models said goes to the topic of results, and comes back from there: a language model does not answer the same
twice, and what is in a topic is the same however often it is read.
"""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource
from bytewax.operators import KeyedStream

from recallflow.enrichment import EnrichmentRequest, EnrichmentResult
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.flows.cycles import look_for_cycles
from recallflow.flows.enrich_metrics import EnrichmentTally
from recallflow.flows.journeys import Journeys
from recallflow.flows.model_settings import EnrichmentSettings
from recallflow.operators.async_call import Completed, Failed, Runtime
from recallflow.operators.async_call.batching import batched
from recallflow.operators.async_call.steps import async_call, async_input
from recallflow.operators.enrichment.results import Asked, unanswered
from recallflow.operators.guard import report, twice
from recallflow.outputs import DeadLetter, Derived, Done, Enriched, EnrichmentOutput, Receipted
from recallflow.owner import Owner
from recallflow.parsing import parse_request, parse_result
from recallflow.records import Position, Record
from recallflow.responses import Receipt

FLOW_ID = "enrichment"
READ, ASK = "read", "ask"


Enrich = Callable[[Sequence[Asked], int], Awaitable[Sequence[EnrichmentResult]]]
"""What asks the models, by what was decided at a time: one result for each request, in their order."""


class UnderWay:
    """A request that is being asked. A snapshot keeps its position and nothing of what it says, so that no file holds
    a user's text, not even after the user was erased: after a start the request is read again."""

    __slots__ = ("position", "record")

    def __init__(self, position: Position, record: Record | None = None) -> None:
        self.position, self.record = position, record

    def __reduce__(self) -> tuple[Any, ...]:
        return UnderWay, (self.position,)


Called = Completed[tuple[UnderWay, ...], Sequence[EnrichmentResult]] | Failed[tuple[UnderWay, ...]]


def build(
    flow: Dataflow,
    source: FixedPartitionedSource[Record, Any],
    runtime: Runtime,
    enrich: Enrich,
    settings: EnrichmentSettings,
    reader: "Reader",
    tally: EnrichmentTally,
    resumed: Mapping[Position, Record],
) -> KeyedStream[EnrichmentOutput]:
    """All steps up to the sink. `resumed`: the requests that were under way when the flow stopped, read again; one that
    is not among them is gone from its topic, and nothing comes of it."""

    def records_of(batch: tuple[UnderWay, ...]) -> list[Record]:
        found = (one.record or resumed.get(one.position) for one in batch)
        return [record for record in found if record is not None]

    async def ask(batch: tuple[UnderWay, ...]) -> Sequence[EnrichmentResult]:
        records = records_of(batch)
        if not records:
            return []
        asked = [_asked(record) for record in records]
        try:
            with reader.journeys.within(asked[0].position):
                results = await enrich(asked, records[-1].append_ms)
            _check_all_answered(asked, results)
        except Exception as error:
            report(ASK, asked[0].position, error)
            raise
        return results

    read = async_input("read", flow, source, runtime.completions)
    items = op.flat_map_batch("parsed", read.items, reader)
    requests = op.flat_map_batch("requests", items, _requests)
    batches = batched("batches", requests, settings.batch_size, settings.batch_wait_ms / 1000)
    called = async_call("ask", batches, read.finished, ask, runtime)
    answers = op.flat_map_batch("answers", called, partial(_answers, tally, records_of))
    outputs = op.flat_map_batch("outputs_read", items, _outputs)
    return op.merge("outputs", answers, outputs)


class Request(NamedTuple):
    """A request that is to be asked; requests of one `key` may be asked together."""

    record: Record
    key: str


class _Taken(NamedTuple):
    record: Record


Item = Request | tuple[EnrichmentOutput, ...]


class Reader:
    """Records → requests to be asked, and what comes of all others at once."""

    def __init__(self, request_topic: str, answered: Callable[[Position], bool], journeys: Journeys) -> None:
        """`answered`: whether a request has a result since before the state directory began. `journeys`: those of the
        records, which end where outputs are handed on."""
        self.journeys = journeys
        self._request_topic = request_topic
        self._answered = answered
        self._secret = secrets.token_bytes(32)  # with another process' one, keys of snapshots tell nothing

    def __call__(self, records: list[Record]) -> Iterator[Item]:
        look_for_cycles()  # hardly anything of the batch before is left
        self.journeys.begin(map(_Taken, records), time.perf_counter())
        for record in records:
            yield self._read(record)

    def _read(self, record: Record) -> Item:
        done = Done(record.position.source, (record.position.offset,))
        is_request = record.position.topic == self._request_topic
        if record.silent or (is_request and self._answered(record.position)):
            return (done,)
        try:
            if is_request:
                request = twice(READ, record.position, parse_request, record.value)
                return Request(record, self._key(request))
            return (*_sent(record, twice(READ, record.position, parse_result, record.value)), done)
        except InvalidRecord as error:
            return DeadLetter(record, 0, error, READ), done

    def _key(self, request: EnrichmentRequest) -> str:
        """Which requests may be asked together: messages of a session are read together; an embedding service reads
        whatever it is given. A hash, as snapshots stand under it."""
        embeds = request.tasks == ["embed"]
        together = [request.tenant_id] if embeds else [*request.owner, request.session_id]
        return hashlib.blake2b(orjson.dumps(together), key=self._secret, digest_size=16).hexdigest()


def _sent(record: Record, result: EnrichmentResult) -> Iterator[EnrichmentOutput]:
    """What a result has sent: its events, and a receipt for each task that failed. Raises InvalidRecord for an event
    that is somebody else's."""
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


def _requests(items: list[Item]) -> Iterator[tuple[str, UnderWay]]:
    return ((one.key, UnderWay(one.record.position, one.record)) for one in items if isinstance(one, Request))


def _outputs(items: list[Item]) -> Iterator[tuple[str, EnrichmentOutput]]:
    return (("", output) for item in items if not isinstance(item, Request) for output in item)


def _asked(record: Record) -> Asked:
    return Asked(record.position, parse_request(record.value))


def _check_all_answered(asked: Sequence[Asked], results: Sequence[EnrichmentResult]) -> None:
    if [result.request for result in results] != [str(one.position) for one in asked]:
        raise ValueError("not one result for each request")


def _encoded(result: EnrichmentResult) -> bytes:
    return result.model_dump_json(exclude_unset=True).encode()


def _answers(
    tally: EnrichmentTally, records_of: Callable[[tuple[UnderWay, ...]], list[Record]], batch: list[tuple[str, Called]]
) -> Iterator[tuple[str, EnrichmentOutput]]:
    for key, called in batch:
        asked = [_asked(record) for record in records_of(called.item)]
        if isinstance(called, Completed):
            results: Sequence[EnrichmentResult] = called.value
        else:
            results = [unanswered(one, f"{called.error.kind} in our own code") for one in asked]
        for one, result in zip(asked, results, strict=True):
            tally.answered(one.request, result)
            bare = unanswered(one, "its topic does not take a result so large")
            yield key, Enriched(one.position, 0, result.owner.record_key, _encoded(result), _encoded(bare))
        for position in (one.position for one in called.item):
            yield key, Done(position.source, (position.offset,))
