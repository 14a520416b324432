"""The enrichment flow against Kafka: it sends requests to models, and publishes their results."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

import orjson
from prometheus_client.core import Metric

from recallflow.connectors.kafka.input_scheduler import Remedies
from recallflow.control import ControlHistory, categories
from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord, UsageError
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import Stages, counter, disk_metrics, model_metrics
from recallflow.flows.gc_policy import collect_due_garbage
from recallflow.flows.initial_progress import initial_enrichment_progress
from recallflow.flows.member import GroupMember, KafkaFlow
from recallflow.flows.models import EMBEDDING_SPENDING
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import Router, routing
from recallflow.flows.runner import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource, now_ms
from recallflow.llm import Cost
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
from recallflow.operators.enrichment.results import (
    MISSING_RESULTS,
    PARTIAL_DEGRADE,
    REFUSAL_REASONS,
    RELATIONSHIPS,
    PositionedRequest,
)
from recallflow.operators.events import key_of_partition
from recallflow.operators.guard import retry_once
from recallflow.outputs import Ack, DeadLetter, EnrichmentOutput, EventOutput, ReceiptOutput, ResultOutput
from recallflow.owner import Owner
from recallflow.parsing import parse_as
from recallflow.records import Position, Record, Signal
from recallflow.responses import Receipt
from recallflow.state.description import DESCRIPTION

FLOW_ID = "enrichment"
READ = "read"
OUTPUT_KINDS = {ResultOutput: "result", EventOutput: "event", ReceiptOutput: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
LLM_SPENDING = "llm.spent"  # file with each tenant's spending of the day
OPEN_PER_CALL = 4  # open requests per concurrent call
OPEN_MAX = 1_000  # open requests that the metadata of a committed offset can hold
REMEDIES = Remedies(
    "skip them (recallflow enrich --give-up-unanswered)",
    "start another --deployment, which continues with the remaining records",
    "accept repeated outputs (recallflow enrich --accept-repeats)",
)

_log = logging.getLogger(__name__)

Route = Callable[[list[tuple[str, Any]]], Iterable[Any]]


def recipe(source: RecipeSource, reader: "RequestReader", enricher: Enricher, route: Route, sink: RecipeSink) -> Recipe:
    """Return the recipe of the flow. It is one sequence of steps, in which signals stay in order with the records."""
    state = KeyedStep("enrich", lambda: PartitionEnrichment(enricher))
    return Recipe(FLOW_ID, source, [BatchStep(READ, reader), state, BatchStep("route", route)], sink)


@dataclass(frozen=True, eq=False)
class RequestReader:
    """The step that parses records of both topics. Requests go on to the models; results become outputs directly."""

    request_topic: str  # the other input topic holds results
    is_answered: Callable[[Position], bool]  # returns whether an earlier owner of the partition sent a request's output
    spans: RecordSpans  # begins the spans of records

    def __call__(self, read: Sequence[Record | CallCompletion | Signal]) -> Iterator[tuple[str, ToEnrich]]:
        collect_due_garbage()  # between batches, when few objects are alive
        self.spans.begin([one for one in read if isinstance(one, Record)], time.perf_counter())
        for one in read:
            if isinstance(one, Record):
                yield key_of_partition(one.position.partition), self._parse(one)
            elif isinstance(one, CallCompletion):
                yield one.key, one
            else:
                yield key_of_partition(one.partition), one

    def _parse(self, record: Record) -> EnrichmentItem:
        position = record.position
        done = Ack(position.source, (position.offset,))
        is_request = position.topic == self.request_topic
        if record.silent or (is_request and self.is_answered(position)):
            return (done,)
        try:
            if is_request:
                request = retry_once(READ, position, parse_as, EnrichmentRequest, record.value)
                # Shared by the requests of one call: an embedding service reads one tenant, a model one session.
                key = (request.tenant_id,) if request.tasks == ["embed"] else (*request.owner, request.session_id)
                return PendingRequest(PositionedRequest(position, request), record.append_ms, key)
            result = retry_once(READ, position, parse_as, EnrichmentResult, record.value)
            return (*_outputs_of(record, result), done)
        except InvalidRecord as error:
            return DeadLetter(record, 0, error, READ), done


def _outputs_of(record: Record, result: EnrichmentResult) -> Iterator[EnrichmentOutput]:
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


class EnrichmentCounter:
    """Counts of enrichment results. The dataflow's thread writes them, and any thread reads them."""

    def __init__(self) -> None:
        self.requests = 0
        self.tasks: Counter[tuple[str, str]] = Counter()  # by task and outcome
        self.failures: Counter[str] = Counter()  # by code
        self.refused: Counter[str] = Counter()  # claims of models, by reason
        self.outputs: Counter[str] = Counter()  # by kind
        self.dead_letters: Counter[str] = Counter()  # by error code
        self.spent, self.embedded_tokens = Cost(), 0

    def count_result(self, request: EnrichmentRequest, result: EnrichmentResult) -> None:
        self.requests += 1
        failed = {failure.task for failure in result.failures}
        self.tasks.update((task, OUTCOMES[task in failed]) for task in request.tasks)
        self.failures.update(failure.code for failure in result.failures)
        self.failures[PARTIAL_DEGRADE] += len(failed & RELATIONSHIPS)
        self.refused.update(result.refused)
        self.spent = self.spent.plus(Cost(result.calls, result.prompt_tokens, result.completion_tokens))
        self.embedded_tokens += result.embedding_tokens

    def observe(self, output: EnrichmentOutput) -> None:
        if (kind := OUTPUT_KINDS.get(type(output))) is not None:
            self.outputs[kind] += 1
        if isinstance(output, DeadLetter):
            self.dead_letters[output.error.code] += 1

    def describe(self) -> str:
        costs = (*self.spent, self.embedded_tokens)
        per_1_000 = (round(1000 * cost / max(1, self.requests)) for cost in costs)
        words = "{:,} calls, {:,} prompt, {:,} completion and {:,} embedding tokens"
        return f"{self.requests:,} requests: {words.format(*costs)}; per 1,000 requests: {words.format(*per_1_000)}"


class EnrichmentMember(GroupMember):
    remedies = REMEDIES

    def __init__(self, config: Config, stack: ExitStack, stopping: threading.Event) -> None:
        # The source reads results in order, as the main flow reads memories. It reads requests in any order, as
        # queries.
        inputs = (config.topics.results, config.topics.enrichment)
        super().__init__(config, stack, stopping, inputs, config.topics.enrichment)
        self.enrichment_counter, self.spans = EnrichmentCounter(), RecordSpans(Stages(inputs))
        self.runtime = stack.enter_context(Runtime(Completions(), config.llm.capacity, timeout_s=None))
        self._decisions = ControlHistory()
        self._open_table(self._decisions)
        self._model = config.llm.load_model("enrichment", self._decisions, self.state_dir / LLM_SPENDING)
        self._service = config.embedding.load_service(
            "enrichment", self._decisions, self.state_dir / EMBEDDING_SPENDING
        )
        models = [one for one in (self._model, self._service) if one is not None]
        self.meters = [model.meter for model in models]
        for model in models:  # on the event loop that uses them
            stack.callback(lambda close: self.runtime.run(close()), model.close)
        self._follow_topics(self.topics.enrichment_topics_by_flag(), self.topics.enrichment_output_topics())
        in_flight_max = min(OPEN_PER_CALL * config.llm.capacity, OPEN_MAX)
        self._open_source(self.runtime.completions, queries_in_flight_max=in_flight_max)
        initial = partial(initial_enrichment_progress, self.options, self.topics, self.ends, self.name)
        self._join_group(None, initial, round_robin_by_tenant=False)

    @contextmanager
    def joined(self) -> Iterator[None]:
        with super().joined():
            yield
        _log.info("%s", self.enrichment_counter.describe())

    def recipe(self) -> Recipe:
        settings, spans = self.config.enrichment, self.spans
        batch, on_result = (settings.batch_size, settings.batch_wait_ms), self.enrichment_counter.count_result
        enricher = Enricher(self.runtime, self._enrich, *batch, spans.within, on_result, now_ms)
        router = Router(self.topics, self.counts, self.max_bytes, self.config.auth, spans.headers)
        claim = self.earlier_outputs.claim
        reader = RequestReader(self.topics.enrichment, lambda position: claim((str(position).encode(), b"0")), spans)
        route = routing(router, self.source, self.enrichment_counter.observe, spans)
        return recipe(self.source, reader, enricher, route, self.sink)

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        counts, known = self.enrichment_counter, product(MISSING_RESULTS, OUTCOMES)
        yield from disk_metrics(self.state_dir)
        yield counter("enriched_tasks", "Completed tasks of requests", "task outcome", counts.tasks, known)
        codes = {PARTIAL_DEGRADE, *(code for code, _ in MISSING_RESULTS.values())}
        yield counter("enrichment_failures", "Failed enrichment tasks by error code", "code", counts.failures, codes)
        yield counter("refused_claims", "Rejected claims of models", "reason", counts.refused, REFUSAL_REASONS)
        yield counter("outputs", "Records handed to the output topics", "kind", counts.outputs, OUTPUT_KINDS.values())
        yield counter("dead_letters", "Refused records", "code", counts.dead_letters, get_args(ErrorCode))
        yield from model_metrics(self.meters)

    async def _enrich(self, requests: Sequence[PositionedRequest], at_ms: int) -> Sequence[EnrichmentResult]:
        """Return one result per request, in order. `at_ms` is the time of the tenant's categories."""
        found = categories(self._decisions, requests[0].request.tenant_id, at_ms)
        descriptions, settings = {category.name: category.description for category in found}, self.config.enrichment
        thresholds = Thresholds(settings.relationship_confidence, settings.semantic_confidence)
        return await enrich(requests, self._model, self._service, thresholds, descriptions)


class EnrichFlow(KafkaFlow):
    def __init__(self, config: Config) -> None:
        """Raise UsageError without a state directory, or without a language model for tasks that need one."""
        if config.llm.model is None and (tasks := config.enrichment.llm_tasks()):
            raise UsageError(f"llm.model is not set, and {', '.join(tasks)} needs a language model: give --llm NAME")
        super().__init__(config)

    def _prepare(self) -> None:
        if (self._state_dir / DESCRIPTION).exists():
            raise UsageError(f"{self._state_dir} holds memories: give the enrichment flow another --state-dir")
        if self._config.llm.model is None:
            _log.warning("llm.model is not set: requests for a language model are answered as failed")

    def _open_member(self, stack: ExitStack) -> EnrichmentMember:
        return EnrichmentMember(self._config, stack, self._stopping)
