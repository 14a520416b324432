"""Metrics of the flows on Kafka. docs/reference/metrics lists them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.connection import BrokerConnection, Watch
from recallflow.connectors.kafka.control import LEFT_OUT, ControlTable
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.llm import Meter
from recallflow.enrichment import EnrichmentRequest, EnrichmentResult
from recallflow.errors import ErrorCode
from recallflow.flows.checkpointing import RESULTS, Checkpoints
from recallflow.flows.engine_metrics import (
    OutputCounter,
    counter,
    disk_metrics,
    gauge,
    model_metrics,
    output_metrics,
    presence,
    registry_of,
    state_metrics,
)
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


@dataclass(frozen=True)
class MainFlowParts:
    """The parts of the main flow that its metrics are read from."""

    source: OwnedSource
    directory: StateDirectory
    output_counter: OutputCounter
    deployment: Membership
    watch: Watch
    connection: BrokerConnection
    owning_partitions: OwningPartitions
    authoriser: Authoriser
    table: ControlTable
    spans: RecordSpans
    counts: Mapping[str, int]  # topic → number of partitions
    stamped: frozenset[str]  # topics with the log's append times
    checkpoints: Checkpoints | None = None


class MainFlowMetrics(Collector):
    """A collector that reads the metrics of the main flow. Before `watch` there are only a few."""

    def __init__(self, serve_while_catching_up: bool = False) -> None:
        self._serve_while_catching_up = serve_while_catching_up
        self._running: MainFlowParts | None = None
        self._meters: Sequence[Meter] = ()
        self.registry = registry_of(self)

    def watch(self, running: MainFlowParts, meters: Sequence[Meter] = ()) -> None:
        """Read the metrics of these parts from now on. `meters` count the calls of paid models."""
        self._running, self._meters = running, meters

    def obstacle(self) -> str:
        """Return the reason why the engine is not ready; empty if it is ready."""
        running = self._running
        if running is None:
            return "starting"
        if obstacle := obstacle_of(running.source, running.connection, running.deployment):
            return obstacle
        missing = running.source.catch_up.describe()
        return f"catching up, {missing}" if missing and not self._serve_while_catching_up else ""

    def collect(self) -> Iterator[Metric]:
        yield from presence(self.obstacle())
        if self._running is not None:
            yield from output_metrics(self._running.output_counter)
            yield from input_metrics(self._running.source)
            yield from self._running.spans.stages.collect()
            added = self._running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("waiting_queries", "Parked queries of this run", self._running.output_counter.waiting)
            yield gauge("connected", "1 while the brokers can be reached", int(self._running.connection.connected))
            yield gauge(
                "catching_up_records",
                "Records left to apply since the start or the last outage",
                self._running.source.catch_up.to_go() or 0,
            )
            yield counter(
                "misrouted_records",
                "Records outside of their owner's partition, which were forwarded to it",
                "reason",
                self._running.owning_partitions.counts,
                REASONS,
            )
            yield counter(
                "late_decisions",
                "Decisions that arrived after records they apply to",
                "kind",
                self._running.authoriser.late,
                JUDGED_BY,
            )
            yield left_out_metric(self._running.table)
            results = {} if self._running.checkpoints is None else self._running.checkpoints.results
            yield counter("checkpoints", "Checkpoints of partitions by result", "result", results, RESULTS)
            yield from state_metrics(self._running.directory)
            yield from model_metrics(self._meters)


def obstacle_of(source: OwnedSource, connection: BrokerConnection, deployment: Membership) -> str:
    """Return the reason why a flow is not ready; empty if it is ready."""
    if not source.ready():
        return "stopping" if source.stopping.is_set() else "starting"
    if not connection.connected:
        return "Kafka is away"
    if not deployment.joined:
        return "not a member of the deployment yet"
    opening = deployment.expected - source.partitions()
    return f"partitions {ranges_of(opening)} are being opened" if opening else ""


def left_out_metric(table: ControlTable) -> Metric:
    return counter("control_events_left_out", "Ignored control events", "reason", table.left_out, LEFT_OUT)


def input_metrics(source: OwnedSource) -> Iterator[Metric]:
    """Yield the numbers of read and waiting records."""
    yield counter("records", "Records read from the input topics", "topic", source.progress.given, source.topics)
    yield gauge("in_flight_records", "Records read and not completed", source.progress.in_flight())
    readers = source.readers()
    queued = Counter(dict.fromkeys(source.topics, 0))
    lag = GaugeMetricFamily(
        "recallflow_consumer_lag_records",
        "Records between the reader and the end of the partition",
        labels=["topic", "partition"],
    )
    for reader in readers:
        for (topic, partition), records in reader.lag().items():
            lag.add_metric([topic, str(partition)], records)
        for (topic, _), lane in reader.lanes.items():
            queued[topic] += lane.held()
    yield lag
    waiting = GaugeMetricFamily(
        "recallflow_queued_records", "Records fetched and not yet in the dataflow", labels=["topic"]
    )
    for topic, records in queued.items():
        waiting.add_metric([topic], records)
    yield waiting
    retried = sum(reader.retried for reader in readers)
    yield CounterMetricFamily("recallflow_retried_reads", "Failed reads that were retried", retried)
    snapshot_s = source.progress.oldest_snapshot_s()
    yield gauge(
        "snapshot_timestamp_seconds", "Time of the last barrier of the partition that is furthest behind", snapshot_s
    )


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
        """Return the cost of this run as text."""
        costs = (*self.asked, self.embedded_tokens)
        each = (round(1000 * cost / max(1, self.requests)) for cost in costs)
        words = "{:,} calls, {:,} prompt, {:,} completion and {:,} embedding tokens"
        return f"{self.requests:,} requests: {words.format(*costs)}; per 1,000 requests: {words.format(*each)}"


@dataclass(frozen=True)
class EnrichmentFlowParts:
    """The parts of the enrichment flow that its metrics are read from."""

    state_dir: Path
    source: OwnedSource
    enrichment_counter: EnrichmentCounter
    deployment: Membership
    watch: Watch
    connection: BrokerConnection
    meters: Sequence[Meter]
    table: ControlTable
    spans: RecordSpans


class EnrichmentMetrics(Collector):
    """A collector that reads the metrics of the enrichment flow. Before `watch` there are only a few."""

    def __init__(self) -> None:
        self._running: EnrichmentFlowParts | None = None
        self.registry = registry_of(self)

    def watch(self, running: EnrichmentFlowParts) -> None:
        self._running = running

    def obstacle(self) -> str:
        """Return the reason why requests are not answered; empty if they are."""
        running = self._running
        if running is None:
            return "starting"
        return obstacle_of(running.source, running.connection, running.deployment)

    def collect(self) -> Iterator[Metric]:
        yield from presence(self.obstacle())
        if (running := self._running) is not None:
            yield from disk_metrics(running.state_dir)
            yield from input_metrics(running.source)
            yield from running.spans.stages.collect()
            yield from _results(running.enrichment_counter)
            yield from model_metrics(running.meters)
            yield left_out_metric(running.table)
            added = running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("connected", "1 while the brokers can be reached", int(running.connection.connected))


def _results(enrichment_counter: EnrichmentCounter) -> Iterator[Metric]:
    tasks = CounterMetricFamily("recallflow_enriched_tasks", "Completed tasks of requests", labels=["task", "outcome"])
    for task in TASKS:
        for outcome in OUTCOMES:
            tasks.add_metric([task, outcome], enrichment_counter.tasks[task, outcome])
    yield tasks
    yield counter("enrichment_failures", "Failed tasks by missing result", "code", enrichment_counter.failures, CODES)
    yield counter("refused_claims", "Rejected claims of models", "reason", enrichment_counter.refused, REFUSALS)
    yield counter("outputs", "Records handed to the output topics", "kind", enrichment_counter.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", enrichment_counter.dead_letters, get_args(ErrorCode))
