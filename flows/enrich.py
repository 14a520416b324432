"""The enrichment flow against Kafka: it sends requests to models, and publishes their results."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import orjson
from prometheus_client.core import Metric

from recallflow.connectors.kafka.hub import Remedies
from recallflow.connectors.llm.policy import Meter
from recallflow.control import ControlHistory, categories
from recallflow.errors import FieldProblem, InvalidRecord, UsageError
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import Stages, disk_metrics, model_metrics
from recallflow.flows.gc_policy import collect_due_garbage
from recallflow.flows.initial_progress import initial_enrichment_progress
from recallflow.flows.kafka_metrics import EnrichmentCounter, result_metrics
from recallflow.flows.member import FlowMetrics, GroupMember, KafkaFlow
from recallflow.flows.recipe import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import Router, routing
from recallflow.flows.runner import system_time_ms
from recallflow.llm import EmbeddingService, LanguageModel
from recallflow.operators.async_call import CallCompletion, Completions, Runtime
from recallflow.operators.enrichment.enrich import (
    Enricher,
    EnrichmentItem,
    PartitionEnrichment,
    PendingRequest,
    Thresholds,
    ToEnrich,
    enrich,
)
from recallflow.operators.enrichment.results import PositionedRequest
from recallflow.operators.events import key_of_partition
from recallflow.operators.guard import retry_once
from recallflow.outputs import Ack, DeadLetter, EnrichmentOutput, EventOutput, ReceiptOutput
from recallflow.owner import Owner
from recallflow.parsing import parse_as
from recallflow.records import Position, Record, Signal
from recallflow.responses import Receipt
from recallflow.state.description import DESCRIPTION

FLOW_ID = "enrichment"
READ = "read"

Route = Callable[[list[tuple[str, Any]]], Iterable[Any]]


def recipe(source: RecipeSource, reader: "RequestReader", enricher: Enricher, route: Route, sink: RecipeSink) -> Recipe:
    """Return the flow. It has no branches, because signals must stay in order with the records."""
    state = KeyedStep("enrich", lambda: PartitionEnrichment(enricher))
    return Recipe(FLOW_ID, source, [BatchStep(READ, reader), state, BatchStep("route", route)], sink)


@dataclass(frozen=True, eq=False)
class RequestReader:
    """The step that turns records into requests. Records that need no model become outputs directly."""

    request_topic: str  # the other topic holds results
    answered: Callable[[Position], bool]  # returns whether an earlier owner of the partition sent a request's output
    spans: RecordSpans  # which end when the outputs of their records are routed

    def __call__(self, read: Sequence[Record | CallCompletion | Signal]) -> Iterator[tuple[str, ToEnrich]]:
        collect_due_garbage()  # between batches, when few objects are alive
        self.spans.begin([one for one in read if isinstance(one, Record)], time.perf_counter())
        for one in read:
            if isinstance(one, Record):
                yield key_of_partition(one.position.partition), self._item(one)
            elif isinstance(one, CallCompletion):
                yield one.key, one
            else:
                yield key_of_partition(one.partition), one

    def _item(self, record: Record) -> EnrichmentItem:
        position = record.position
        done = Ack(position.source, (position.offset,))
        is_request = position.topic == self.request_topic
        if record.silent or (is_request and self.answered(position)):
            return (done,)
        try:
            if is_request:
                request = retry_once(READ, position, parse_as, EnrichmentRequest, record.value)
                return PendingRequest(PositionedRequest(position, request), record.append_ms, _key(request))
            return (*_sent(record, retry_once(READ, position, parse_as, EnrichmentResult, record.value)), done)
        except InvalidRecord as error:
            return DeadLetter(record, 0, error, READ), done


def _key(request: EnrichmentRequest) -> tuple[str | None, ...]:
    """Return the key of requests for one call: a language model reads one session, an embedding service one tenant."""
    if request.tasks == ["embed"]:
        return (request.tenant_id,)
    return (*request.owner, request.session_id)


def _sent(record: Record, result: EnrichmentResult) -> Iterator[EnrichmentOutput]:
    """Yield the events and failures of a result. Raise InvalidRecord for an event of another owner."""
    key = result.owner.record_key
    for number, event in enumerate(result.events):
        if tuple(event.get(name) for name in Owner._fields) != result.owner:
            problem = FieldProblem(f"events.{number}", "does not belong to the owner of the result")
            raise InvalidRecord("invalid_event", [problem])
        yield EventOutput(record.position, number, key, orjson.dumps(event))
    for number, failed in enumerate(result.failures, len(result.events)):
        receipt = Receipt(id=result.source, position=result.source, outcome="degraded", memory_id=result.memory_id)
        receipt = receipt.model_copy(update={"code": failed.code, "detail": failed.detail})
        yield ReceiptOutput(record.position, number, key, receipt.model_dump_json(exclude_none=True).encode())


LLM_SPENDING, EMBEDDING_SPENDING = "llm.spent", "embedding.spent"
OPEN_TO_CAPACITY = 4  # open requests per concurrent call
OPEN_MOST = 1_000  # open requests that the metadata of a committed offset can hold
REMEDIES = Remedies(
    "skip them (recallflow enrich --give-up-unanswered)",
    "start another --deployment, which continues with the remaining records",
    "accept repeated outputs (recallflow enrich --accept-repeats)",
)

_log = logging.getLogger(__name__)


class EnrichmentModels(NamedTuple):
    model: LanguageModel | None
    embeddings: EmbeddingService
    meters: Sequence[Meter]
    thresholds: Thresholds
    decisions: ControlHistory

    async def enrich(self, asked: Sequence[PositionedRequest], at_ms: int) -> Sequence[EnrichmentResult]:
        """Return one result per request, in order, by the tenant's categories at a time."""
        known = categories(self.decisions, asked[0].request.tenant_id, at_ms)
        described = {one.name: one.description for one in known}
        return await enrich(asked, self.model, self.embeddings, self.thresholds, described)


@contextlib.contextmanager
def open_models(config: Config, runtime: Runtime, decisions: ControlHistory) -> Iterator[EnrichmentModels]:
    """Open the models on the event loop of async calls. The state directory keeps each tenant's spending of the day."""
    folder, chosen = config.named_state_dir(), config.enrichment
    thresholds = Thresholds(chosen.relationship_confidence, chosen.semantic_confidence)
    with ExitStack() as stack:
        model, meters = None, []
        opened = config.llm.load_model("enrichment", decisions, folder / LLM_SPENDING)
        if opened is not None:
            stack.callback(lambda: runtime.run(opened.close()))
            model = opened
            meters.append(opened.meter)
        service = config.embedding.load_service("enrichment", decisions, folder / EMBEDDING_SPENDING)
        stack.callback(lambda: runtime.run(service.close()))
        meters.append(service.meter)
        yield EnrichmentModels(model, service, meters, thresholds, decisions)


class EnrichmentMember(GroupMember):
    remedies = REMEDIES

    def __init__(self, config: Config, stack: ExitStack, stopping: threading.Event) -> None:
        # The source reads results in order, as the main flow reads memories. It reads requests in any order, as
        # queries.
        inputs = (config.topics.results, config.topics.enrichment)
        super().__init__(config, stack, stopping, inputs, config.topics.enrichment)
        self.enrichment_counter, self.spans = EnrichmentCounter(), RecordSpans(Stages(inputs))
        decisions = ControlHistory()
        self.runtime = stack.enter_context(Runtime(Completions(), config.llm.capacity, timeout_s=None))
        self._open_table(decisions)
        self.models = stack.enter_context(open_models(config, self.runtime, decisions))
        self.meters = self.models.meters
        self._follow_topics(self.topics.enrichment_read_for(), self.topics.enrichment_written())
        in_flight_max = min(OPEN_TO_CAPACITY * config.llm.capacity, OPEN_MOST)
        self._open_source(self.runtime.completions, queries_in_flight_max=in_flight_max)
        initial = partial(initial_enrichment_progress, self.options, self.topics, self.ends, self.name)
        self._join_group(None, initial, by_tenants=False)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        with super().joined():
            yield
        _log.info("%s", self.enrichment_counter.describe())

    def recipe(self) -> Recipe:
        settings, spans = self.config.enrichment, self.spans
        batches, answered = (settings.batch_size, settings.batch_wait_ms), self.enrichment_counter.count_result
        enricher = Enricher(self.runtime, self.models.enrich, *batches, spans.within, answered, system_time_ms)
        router = Router(self.topics, self.counts, self.most_bytes, self.config.auth, spans.headers)

        def is_answered(position: Position) -> bool:
            return self.sent.claim((str(position).encode(), b"0"))

        reader = RequestReader(self.topics.enrichment, is_answered, spans)
        route = routing(router, self.source, self.enrichment_counter.observe, spans)
        return recipe(self.source, reader, enricher, route, self.sink)


class EnrichmentMetrics(FlowMetrics[EnrichmentMember]):
    def _metrics_of(self, member: EnrichmentMember) -> Iterator[Metric]:
        yield from disk_metrics(member.state_dir)
        yield from result_metrics(member.enrichment_counter)
        yield from model_metrics(member.meters)


class EnrichFlow(KafkaFlow[EnrichmentMember]):
    def __init__(self, config: Config) -> None:
        """Raise UsageError without a state directory, or without a language model for tasks that need one."""
        if config.llm.model is None and (tasks := config.enrichment.llm_tasks()):
            raise UsageError(f"llm.model is not set, and {', '.join(tasks)} asks a language model: give --llm NAME")
        super().__init__(config, EnrichmentMetrics())

    def _prepare(self) -> None:
        if (self._state_dir / DESCRIPTION).exists():
            raise UsageError(f"{self._state_dir} holds memories: give the enrichment flow another --state-dir")
        if self._config.llm.model is None:
            _log.warning("llm.model is not set: requests for a language model are answered as failed")

    def _open_member(self, stack: ExitStack) -> EnrichmentMember:
        return EnrichmentMember(self._config, stack, self._stopping)
