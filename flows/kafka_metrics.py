"""Metrics of the flows on Kafka. docs/reference/metrics lists them."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.control import LEFT_OUT
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.errors import ErrorCode
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.flows.engine_metrics import (
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
from recallflow.flows.partition_copies import RESULTS
from recallflow.flows.router import REASONS
from recallflow.llm import Spent
from recallflow.operators.authorise import JUDGED_BY
from recallflow.operators.enrichment.results import MISSING_RESULTS, PARTIAL_DEGRADE, REFUSAL_REASONS, RELATIONSHIPS
from recallflow.outputs import DeadLetter, Derived, Enriched, EnrichmentOutput, Receipted
from recallflow.owner import ranges_of

if TYPE_CHECKING:
    from recallflow.flows.enrich import EnrichmentMember
    from recallflow.flows.kafka import MainFlowMember
    from recallflow.flows.member import GroupMember

KINDS = {Enriched: "result", Derived: "event", Receipted: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
CODES = {PARTIAL_DEGRADE, *(one.code for one in MISSING_RESULTS.values())}


M = TypeVar("M", bound="GroupMember")


class FlowMetrics(Collector, Generic[M]):
    """A collector of the metrics of a flow's current member. Before `attach` there are only a few."""

    def __init__(self) -> None:
        self._member: M | None = None
        self.registry = registry_of(self)

    def attach(self, member: M) -> None:
        self._member = member

    def obstacle(self) -> str:
        """Return why the flow is not ready; empty if it is."""
        return "starting" if self._member is None else self._obstacle_of(self._member)

    def collect(self) -> Iterator[Metric]:
        yield from availability_metrics(self.obstacle())
        if (member := self._member) is not None:
            yield from input_metrics(member.source)
            yield from member.spans.stages.collect()
            added = member.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("connected", "1 while the brokers can be reached", int(member.connection.connected))
            left_out = member.table.left_out
            yield counter("control_events_left_out", "Ignored control events", "reason", left_out, LEFT_OUT)
            yield from self._metrics_of(member)

    def _obstacle_of(self, member: M) -> str:
        source, membership = member.source, member.membership
        if not source.ready():
            return "stopping" if source.stopping.is_set() else "starting"
        if not member.connection.connected:
            return "Kafka is unavailable"
        if membership.member_id is None:
            return "not a member of the deployment yet"
        opening = membership.expected - source.partitions()
        return f"partitions {ranges_of(opening)} are being opened" if opening else ""

    def _metrics_of(self, member: M) -> Iterator[Metric]:
        """Yield the metrics that only this flow has."""
        raise NotImplementedError


class MainFlowMetrics(FlowMetrics["MainFlowMember"]):
    def __init__(self, serve_while_catching_up: bool = False) -> None:
        super().__init__()
        self._serve_while_catching_up = serve_while_catching_up

    def _obstacle_of(self, member: "MainFlowMember") -> str:
        if obstacle := super()._obstacle_of(member):
            return obstacle
        missing = member.source.catch_up.describe()
        return f"catching up, {missing}" if missing and not self._serve_while_catching_up else ""

    def _metrics_of(self, member: "MainFlowMember") -> Iterator[Metric]:
        yield from output_metrics(member.output_counter)
        yield gauge("waiting_queries", "Parked queries of this run", member.output_counter.waiting)
        to_go = member.source.catch_up.remaining() or 0
        yield gauge("catching_up_records", "Records left to apply since the start or the last outage", to_go)
        misrouted = "Records outside of their owner's partition, which were forwarded to it"
        yield counter("misrouted_records", misrouted, "reason", member.owning_partitions.counts, REASONS)
        late = "Decisions that arrived after records they apply to"
        yield counter("late_decisions", late, "kind", member.authoriser.late, JUDGED_BY)
        results = {} if member.checkpoints is None else member.checkpoints.results
        yield counter("checkpoints", "Checkpoints of partitions by result", "result", results, RESULTS)
        yield from state_metrics(member.directory)
        yield from model_metrics(member.meters)


class EnrichmentMetrics(FlowMetrics["EnrichmentMember"]):
    def _metrics_of(self, member: "EnrichmentMember") -> Iterator[Metric]:
        yield from disk_metrics(member.state_dir)
        yield from _results(member.enrichment_counter)
        yield from model_metrics(member.meters)


def input_metrics(source: OwnedSource) -> Iterator[Metric]:
    yield counter("records", "Records read from the input topics", "topic", source.progress.emitted, source.topics)
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
    yield gauge("snapshot_timestamp_seconds", help_text, source.oldest_barrier_s())


class EnrichmentCounter:
    """Counts of enrichment results. The dataflow's thread writes them, and any thread reads them."""

    def __init__(self) -> None:
        self.requests = 0
        self.tasks: Counter[tuple[str, str]] = Counter()  # by task and outcome
        self.failures: Counter[str] = Counter()  # by code
        self.refused: Counter[str] = Counter()  # claims of models, by reason
        self.outputs: Counter[str] = Counter()  # by kind
        self.dead_letters: Counter[str] = Counter()  # by error code
        self.spent, self.embedded_tokens = Spent(), 0

    def count_result(self, request: EnrichmentRequest, result: EnrichmentResult) -> None:
        self.requests += 1
        failed = {failure.task for failure in result.failures}
        self.tasks.update((task, OUTCOMES[task in failed]) for task in request.tasks)
        self.failures.update(failure.code for failure in result.failures)
        self.failures[PARTIAL_DEGRADE] += len(failed & RELATIONSHIPS)
        self.refused.update(result.refused)
        self.spent = self.spent.plus(Spent(result.calls, result.prompt_tokens, result.completion_tokens))
        self.embedded_tokens += result.embedding_tokens

    def observe(self, output: EnrichmentOutput) -> None:
        if (kind := KINDS.get(type(output))) is not None:
            self.outputs[kind] += 1
        if isinstance(output, DeadLetter):
            self.dead_letters[output.error.code] += 1

    def describe(self) -> str:
        costs = (*self.spent, self.embedded_tokens)
        each = (round(1000 * cost / max(1, self.requests)) for cost in costs)
        words = "{:,} calls, {:,} prompt, {:,} completion and {:,} embedding tokens"
        return f"{self.requests:,} requests: {words.format(*costs)}; per 1,000 requests: {words.format(*each)}"


def _results(counts: EnrichmentCounter) -> Iterator[Metric]:
    tasks = CounterMetricFamily("recallflow_enriched_tasks", "Completed tasks of requests", labels=["task", "outcome"])
    for task in MISSING_RESULTS:
        for outcome in OUTCOMES:
            tasks.add_metric([task, outcome], counts.tasks[task, outcome])
    yield tasks
    yield counter("enrichment_failures", "Failed enrichment tasks by error code", "code", counts.failures, CODES)
    yield counter("refused_claims", "Rejected claims of models", "reason", counts.refused, REFUSAL_REASONS)
    yield counter("outputs", "Records handed to the output topics", "kind", counts.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", counts.dead_letters, get_args(ErrorCode))
