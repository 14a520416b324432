"""Metrics of the flows against Kafka; docs/reference/metrics lists them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.connection import Connection, Watch
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
from recallflow.flows.record_spans import Journeys
from recallflow.flows.router import REASONS, OwningPartitions
from recallflow.llm import Spent
from recallflow.operators.authorise import JUDGED_BY, Authoriser
from recallflow.operators.enrichment.claims import REFUSALS
from recallflow.operators.enrichment.failures import LACKS, PARTIAL_DEGRADE, RELATIONSHIPS
from recallflow.operators.enrichment.requests import TASKS
from recallflow.outputs import DeadLetter, Derived, Enriched, EnrichmentOutput, Receipted
from recallflow.ranges import ranges_of
from recallflow.state.directory import StateDirectory

KINDS = {Enriched: "result", Derived: "event", Receipted: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
CODES = {PARTIAL_DEGRADE, *(lack.code for lack in LACKS.values())}


@dataclass(frozen=True)
class Running:
    """The parts of a flow that its metrics are read from."""

    source: OwnedSource
    directory: StateDirectory
    tally: OutputCounter
    deployment: Membership
    watch: Watch
    connection: Connection
    homes: OwningPartitions
    authoriser: Authoriser
    table: ControlTable
    journeys: Journeys
    counts: Mapping[str, int]  # partitions of each topic
    stamped: frozenset[str]  # topics whose records carry the time of the log
    checkpoints: Checkpoints | None = None


class Metrics(Collector):
    """Reads the numbers of a flow when somebody asks for them. There are few before `watch`."""

    def __init__(self, serve_while_catching_up: bool = False) -> None:
        self._serve_while_catching_up = serve_while_catching_up
        self._running: Running | None = None
        self._meters: Sequence[Meter] = ()
        self.registry = registry_of(self)

    def watch(self, running: Running, meters: Sequence[Meter] = ()) -> None:
        """`meters`: of models whose calls cost."""
        self._running, self._meters = running, meters

    def obstacle(self) -> str:
        """Why nobody should ask yet, or any more; empty where everything is there."""
        running = self._running
        if running is None:
            return "starting"
        if obstacle := obstacle_of(running.source, running.connection, running.deployment):
            return obstacle
        behind = running.source.catch_up.describe()
        return f"catching up, {behind}" if behind and not self._serve_while_catching_up else ""

    def collect(self) -> Iterator[Metric]:
        yield from presence(self.obstacle())
        if self._running is not None:
            yield from output_metrics(self._running.tally)
            yield from input_metrics(self._running.source)
            yield from self._running.journeys.stages.collect()
            added = self._running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("waiting_queries", "Queries set aside in this run", self._running.tally.waiting)
            yield gauge("connected", "Whether the brokers can be reached", int(self._running.connection.connected))
            yield gauge(
                "catching_up_records",
                "Records to go until the start or the last outage is made up for",
                self._running.source.catch_up.to_go() or 0,
            )
            yield counter(
                "misplaced_records",
                "Records in another partition than their owner's, which were sent on to it",
                "reason",
                self._running.homes.counts,
                REASONS,
            )
            yield counter(
                "late_decisions",
                "Decisions that came after records that they are about",
                "kind",
                self._running.authoriser.late,
                JUDGED_BY,
            )
            yield left_out_metric(self._running.table)
            results = {} if self._running.checkpoints is None else self._running.checkpoints.results
            yield counter("checkpoints", "Checkpoints of partitions by their result", "result", results, RESULTS)
            yield from state_metrics(self._running.directory)
            yield from model_metrics(self._meters)


def obstacle_of(source: OwnedSource, connection: Connection, deployment: Membership) -> str:
    """Why a flow does not work yet, or any more; empty where it does."""
    if not source.ready():
        return "stopping" if source.stopping.is_set() else "starting"
    if not connection.connected:
        return "Kafka is away"
    if not deployment.joined:
        return "not a member of the deployment yet"
    opening = deployment.expected - source.partitions()
    return f"partitions {ranges_of(opening)} are being opened" if opening else ""


def left_out_metric(table: ControlTable) -> Metric:
    return counter("control_events_left_out", "Control events that do not count", "reason", table.left_out, LEFT_OUT)


def input_metrics(source: OwnedSource) -> Iterator[Metric]:
    """What was read, and what waits to be."""
    yield counter("records", "Records taken from the input topics", "topic", source.progress.given, source.topics)
    yield gauge("in_flight_records", "Records taken that are not through", source.progress.in_flight())
    readers = source.readers()
    queued = Counter(dict.fromkeys(source.topics, 0))
    lag = GaugeMetricFamily("recallflow_consumer_lag_records", "Records behind the end", labels=["topic", "partition"])
    for reader in readers:
        for (topic, partition), records in reader.lag().items():
            lag.add_metric([topic, str(partition)], records)
        for (topic, _), lane in reader.lanes.items():
            queued[topic] += lane.held()
    yield lag
    waiting = GaugeMetricFamily("recallflow_queued_records", "Records read and not taken yet", labels=["topic"])
    for topic, records in queued.items():
        waiting.add_metric([topic], records)
    yield waiting
    retried = sum(reader.retried for reader in readers)
    yield CounterMetricFamily("recallflow_retried_reads", "Reads that Kafka failed and that were tried again", retried)
    snapshot_s = source.progress.oldest_snapshot_s()
    yield gauge("snapshot_timestamp_seconds", "When the partition that is the furthest behind had its mark", snapshot_s)


class EnrichmentCounter:
    """What came of requests, counted on the dataflow's thread, and read on any."""

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
        """What this run cost, in words."""
        costs = (*self.asked, self.embedded_tokens)
        each = (round(1000 * cost / max(1, self.requests)) for cost in costs)
        words = "{:,} calls, {:,} prompt, {:,} completion and {:,} embedding tokens"
        return f"{self.requests:,} requests: {words.format(*costs)}; per 1,000 requests: {words.format(*each)}"


@dataclass(frozen=True)
class EnrichmentRunning:
    """The parts of a flow that its metrics are read from."""

    state_dir: Path
    source: OwnedSource
    tally: EnrichmentCounter
    deployment: Membership
    watch: Watch
    connection: Connection
    meters: Sequence[Meter]
    table: ControlTable
    journeys: Journeys


class EnrichmentMetrics(Collector):
    """Reads the numbers of a flow when somebody asks for them. There are few before `watch`."""

    def __init__(self) -> None:
        self._running: EnrichmentRunning | None = None
        self.registry = registry_of(self)

    def watch(self, running: EnrichmentRunning) -> None:
        self._running = running

    def obstacle(self) -> str:
        """Why requests are not answered; empty where they are."""
        running = self._running
        if running is None:
            return "starting"
        return obstacle_of(running.source, running.connection, running.deployment)

    def collect(self) -> Iterator[Metric]:
        yield from presence(self.obstacle())
        if (running := self._running) is not None:
            yield from disk_metrics(running.state_dir)
            yield from input_metrics(running.source)
            yield from running.journeys.stages.collect()
            yield from _results(running.tally)
            yield from model_metrics(running.meters)
            yield left_out_metric(running.table)
            added = running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("connected", "Whether the brokers can be reached", int(running.connection.connected))


def _results(tally: EnrichmentCounter) -> Iterator[Metric]:
    tasks = CounterMetricFamily("recallflow_enriched_tasks", "Tasks of requests", labels=["task", "outcome"])
    for task in TASKS:
        for outcome in OUTCOMES:
            tasks.add_metric([task, outcome], tally.tasks[task, outcome])
    yield tasks
    yield counter("enrichment_failures", "Tasks that failed, by what is missing", "code", tally.failures, CODES)
    yield counter("refused_claims", "What models said and is not kept", "reason", tally.refused, REFUSALS)
    yield counter("outputs", "Records handed to the output topics", "kind", tally.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", tally.dead_letters, get_args(ErrorCode))
