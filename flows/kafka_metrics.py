"""Metrics of the flows on Kafka. docs/reference/metrics lists them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.cluster import BrokerConnection, Watch
from recallflow.connectors.kafka.control import LEFT_OUT, ControlTable
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.llm.policy import Meter
from recallflow.errors import ErrorCode
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.flows.engine_metrics import (
    OutputCounter,
    availability_metrics,
    counter,
    disk_metrics,
    gauge,
    model_metrics,
    output_metrics,
    queued_records,
    registry_of,
    state_metrics,
)
from recallflow.flows.partition_copies import RESULTS, Checkpoints
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import REASONS, OwningPartitions
from recallflow.llm import Spent
from recallflow.operators.authorise import JUDGED_BY, Authoriser
from recallflow.operators.enrichment.requests import TASKS
from recallflow.operators.enrichment.results import LACKS, PARTIAL_DEGRADE, REFUSALS, RELATIONSHIPS
from recallflow.outputs import DeadLetter, Derived, Enriched, EnrichmentOutput, Receipted
from recallflow.owner import ranges_of
from recallflow.state.directory import StateDirectory

KINDS = {Enriched: "result", Derived: "event", Receipted: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
CODES = {PARTIAL_DEGRADE, *(lack.code for lack in LACKS.values())}


class FlowParts(Protocol):
    """The parts of a member of a flow that metrics are read from."""

    source: OwnedSource
    membership: Membership
    watch: Watch
    connection: BrokerConnection
    table: ControlTable
    spans: RecordSpans


class MainFlowParts(FlowParts, Protocol):
    """The parts of a member of the main flow."""

    directory: StateDirectory
    output_counter: OutputCounter
    owning_partitions: OwningPartitions
    authoriser: Authoriser
    checkpoints: Checkpoints | None
    meters: Sequence[Meter]  # of paid models


class EnrichmentFlowParts(FlowParts, Protocol):
    """The parts of a member of the enrichment flow."""

    state_dir: Path
    enrichment_counter: "EnrichmentCounter"
    meters: Sequence[Meter]


P = TypeVar("P", bound=FlowParts)


class FlowMetrics(Collector, Generic[P]):
    """A collector that reads the metrics of a flow. Before `watch` there are only a few."""

    def __init__(self) -> None:
        self._running: P | None = None
        self.registry = registry_of(self)

    def watch(self, running: P) -> None:
        """Read the metrics of this member from now on."""
        self._running = running

    def obstacle(self) -> str:
        """Return the reason why the flow is not ready; empty if it is ready."""
        return "starting" if self._running is None else self._obstacle_of(self._running)

    def collect(self) -> Iterator[Metric]:
        yield from availability_metrics(self.obstacle())
        if (running := self._running) is not None:
            yield from input_metrics(running.source)
            yield from running.spans.stages.collect()
            added = running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("connected", "1 while the brokers can be reached", int(running.connection.connected))
            left_out = running.table.left_out
            yield counter("control_events_left_out", "Ignored control events", "reason", left_out, LEFT_OUT)
            yield from self._metrics_of(running)

    def _obstacle_of(self, running: P) -> str:
        source, membership = running.source, running.membership
        if not source.ready():
            return "stopping" if source.stopping.is_set() else "starting"
        if not running.connection.connected:
            return "Kafka is unavailable"
        if not membership.joined:
            return "not a member of the deployment yet"
        opening = membership.expected - source.partitions()
        return f"partitions {ranges_of(opening)} are being opened" if opening else ""

    def _metrics_of(self, running: P) -> Iterator[Metric]:
        """Yield the metrics that only this flow has."""
        raise NotImplementedError


class MainFlowMetrics(FlowMetrics[MainFlowParts]):
    def __init__(self, serve_while_catching_up: bool = False) -> None:
        super().__init__()
        self._serve_while_catching_up = serve_while_catching_up

    def _obstacle_of(self, running: MainFlowParts) -> str:
        if obstacle := super()._obstacle_of(running):
            return obstacle
        missing = running.source.catch_up.describe()
        return f"catching up, {missing}" if missing and not self._serve_while_catching_up else ""

    def _metrics_of(self, running: MainFlowParts) -> Iterator[Metric]:
        yield from output_metrics(running.output_counter)
        yield gauge("waiting_queries", "Parked queries of this run", running.output_counter.waiting)
        to_go = running.source.catch_up.to_go() or 0
        yield gauge("catching_up_records", "Records left to apply since the start or the last outage", to_go)
        misrouted = "Records outside of their owner's partition, which were forwarded to it"
        yield counter("misrouted_records", misrouted, "reason", running.owning_partitions.counts, REASONS)
        late = "Decisions that arrived after records they apply to"
        yield counter("late_decisions", late, "kind", running.authoriser.late, JUDGED_BY)
        results = {} if running.checkpoints is None else running.checkpoints.results
        yield counter("checkpoints", "Checkpoints of partitions by result", "result", results, RESULTS)
        yield from state_metrics(running.directory)
        yield from model_metrics(running.meters)


class EnrichmentMetrics(FlowMetrics[EnrichmentFlowParts]):
    def _metrics_of(self, running: EnrichmentFlowParts) -> Iterator[Metric]:
        yield from disk_metrics(running.state_dir)
        yield from _results(running.enrichment_counter)
        yield from model_metrics(running.meters)


def input_metrics(source: OwnedSource) -> Iterator[Metric]:
    yield counter("records", "Records read from the input topics", "topic", source.progress.given, source.topics)
    yield gauge("in_flight_records", "Records read and not completed", source.progress.in_flight())
    readers = source.readers()
    queued = Counter(dict.fromkeys(source.topics, 0))
    help_text = "Records between the reader and the end of the partition"
    lag = GaugeMetricFamily("recallflow_consumer_lag_records", help_text, labels=["topic", "partition"])
    for reader in readers:
        for (topic, partition), records in reader.lag().items():
            lag.add_metric([topic, str(partition)], records)
        for (topic, _), lane in reader.lanes.items():
            queued[topic] += lane.held()
    yield lag
    yield queued_records(queued)
    retried = sum(reader.retried for reader in readers)
    yield CounterMetricFamily("recallflow_retried_reads", "Failed reads that were retried", retried)
    help_text = "Time of the last barrier of the partition that is furthest behind"
    yield gauge("snapshot_timestamp_seconds", help_text, source.progress.oldest_snapshot_s())


class EnrichmentCounter:
    """Counts of enrichment results. The dataflow's thread writes them, and any thread reads them."""

    def __init__(self) -> None:
        self.requests = 0
        self.tasks: Counter[tuple[str, str]] = Counter()  # by task and outcome
        self.failures: Counter[str] = Counter()  # by code
        self.refused: Counter[str] = Counter()  # claims of models, by reason
        self.outputs: Counter[str] = Counter()  # by kind
        self.dead_letters: Counter[str] = Counter()  # by error code
        self.asked, self.embedded_tokens = Spent(), 0

    def answered(self, request: EnrichmentRequest, result: EnrichmentResult) -> None:
        self.requests += 1
        failed = {failure.task for failure in result.failures}
        self.tasks.update((task, OUTCOMES[task in failed]) for task in request.tasks)
        self.failures.update(failure.code for failure in result.failures)
        self.failures[PARTIAL_DEGRADE] += len(failed & RELATIONSHIPS)
        self.refused.update(result.refused)
        self.asked = self.asked.plus(Spent(result.calls, result.prompt_tokens, result.completion_tokens))
        self.embedded_tokens += result.embedding_tokens

    def observe(self, output: EnrichmentOutput) -> None:
        if (kind := KINDS.get(type(output))) is not None:
            self.outputs[kind] += 1
        if isinstance(output, DeadLetter):
            self.dead_letters[output.error.code] += 1

    def describe(self) -> str:
        costs = (*self.asked, self.embedded_tokens)
        each = (round(1000 * cost / max(1, self.requests)) for cost in costs)
        words = "{:,} calls, {:,} prompt, {:,} completion and {:,} embedding tokens"
        return f"{self.requests:,} requests: {words.format(*costs)}; per 1,000 requests: {words.format(*each)}"


def _results(enrichment_counter: EnrichmentCounter) -> Iterator[Metric]:
    tasks = CounterMetricFamily("recallflow_enriched_tasks", "Completed tasks of requests", labels=["task", "outcome"])
    for task in TASKS:
        for outcome in OUTCOMES:
            tasks.add_metric([task, outcome], enrichment_counter.tasks[task, outcome])
    yield tasks
    yield counter("enrichment_failures", "Failed tasks by error code", "code", enrichment_counter.failures, CODES)
    yield counter("refused_claims", "Rejected claims of models", "reason", enrichment_counter.refused, REFUSALS)
    yield counter("outputs", "Records handed to the output topics", "kind", enrichment_counter.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", enrichment_counter.dead_letters, get_args(ErrorCode))
