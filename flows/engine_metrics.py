"""Metrics of every engine, with or without Kafka. docs/reference/metrics lists them."""

import shutil
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from recallflow.connectors.llm.policy import Meter
from recallflow.connectors.local_inputs import LocalCalls
from recallflow.distribution import __version__
from recallflow.errors import ErrorCode, ModelFailure, OverQuota
from recallflow.events import DERIVED_TYPES
from recallflow.limits import QUOTAS
from recallflow.operators.authorise import VERDICT_KINDS, Authoriser
from recallflow.operators.enrichment.results import MISSING_RESULTS
from recallflow.outputs import Ack, Answer, AuditEntry, DeadLetter, Output, ReceiptOutput, Reroute, TaskRequest, Verdict
from recallflow.parsing import EVENT_TYPES, QUERY_TYPES
from recallflow.records import Position
from recallflow.responses import WARNINGS, Response
from recallflow.service import Service
from recallflow.state.directory import StateDirectory

# Upper bounds in seconds: a query takes milliseconds, and a record after an outage may wait for hours.
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LONG_BOUNDS_S = (*BOUNDS_S, 10.0, 30.0, 60.0, 600.0, 3_600.0)
Stage = Literal["queue", "prepare", "state", "wait", "deliver", "total"]
NO_TRACE = 0
OUTPUT_KINDS = ("response", "receipt", "request", "dead_letter", "verdict")  # with a count from the start
KIND_OF: dict[type, str] = {
    Answer: "response", ReceiptOutput: "receipt", TaskRequest: "request", DeadLetter: "dead_letter", Verdict: "verdict",
    AuditEntry: "audit", Reroute: "moved",
}  # fmt: skip
L = TypeVar("L", str, tuple[str, str])  # the value of a label, or the values of two
STATUSES = get_args(Response.model_fields["status"].annotation)


def registry_of(collector: Collector) -> CollectorRegistry:
    """Return a registry of the metrics of a flow and of its process (`process_…`)."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def availability_metrics(obstacle: str) -> Iterator[Metric]:
    yield gauge("ready", "1 while /readyz reports readiness", not obstacle)
    yield labelled_gauge("build_info", "Always 1; the version is its label", "version", {__version__: 1})


def disk_metrics(state_dir: Path) -> Iterator[Metric]:
    disk = shutil.disk_usage(state_dir)
    yield gauge("disk_free_bytes", "Free on the disk of the state directory", disk.free)
    yield gauge("disk_size_bytes", "Size of the disk of the state directory", disk.total)


def model_metrics(meters: Iterable[Meter]) -> Iterator[Metric]:
    calls = _family("calls", "Call attempts, failed ones included", "tenant", "task")
    tokens = _family("tokens", "Tokens used by calls", "tenant", "task", "kind")
    failures = _family("failures", "Calls that failed after all attempts", "code")
    is_open = dict[str, float]()
    for meter in meters:
        is_open[meter.model] = meter.breaker_open
        for (tenant, task), spent in sorted(dict(meter.spent).items()):
            calls.add_metric([meter.model, tenant, task], spent.calls)
            tokens.add_metric([meter.model, tenant, task, "prompt"], spent.prompt_tokens)
            tokens.add_metric([meter.model, tenant, task, "completion"], spent.completion_tokens)
        failed = Counter(dict.fromkeys(get_args(ModelFailure), 0))
        for (_, code), count in dict(meter.failures).items():
            failed[code] += count
        for code, count in sorted(failed.items()):
            failures.add_metric([meter.model, code], count)
    yield from (calls, tokens, failures)
    yield labelled_gauge("model_left_alone", "1 while the circuit breaker of the model is open", "model", is_open)


def _family(name: str, help_text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"recallflow_model_{name}", help_text, labels=["model", *labels])


class Histogram:
    """A histogram without a lock, which one thread writes and any thread reads. An observation takes 1 µs; that of
    prometheus_client, with a lock, takes 3."""

    __slots__ = ("_bounds_s", "_counts", "_exemplars", "_sum_s")

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)  # one per bound, and one for larger values
        self._sum_s = 0.0
        self._exemplars: dict[int, Exemplar] = {}  # the last observation of each bucket with a trace

    def observe(self, value_s: float, trace_id: int = NO_TRACE) -> None:
        bucket = bisect_left(self._bounds_s, value_s)
        self._counts[bucket] += 1
        self._sum_s += value_s
        if trace_id != NO_TRACE:
            self._exemplars[bucket] = Exemplar({"trace_id": f"{trace_id:032x}"}, value_s, time.time())

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        bounds = (*map(str, self._bounds_s), "+Inf")
        buckets = [
            (bound, count, exemplar) if (exemplar := self._exemplars.get(bucket)) else (bound, count)
            for bucket, (bound, count) in enumerate(zip(bounds, accumulate(self._counts), strict=True))
        ]
        family.add_metric(labels, buckets, self._sum_s)


class Stages:
    """Durations of records by stage and topic.

    `queue`: from the append of a record until the flow reads it. `prepare`: decoding, authorisation and analysis of its
    batch. `state`: from the end of `prepare` until the last output of the record is routed; `wait`: the same for a
    parked query. `deliver`: from the routing of an output until its append. `total`: from the append of the record to
    that of the output. The log's clock stamps appends; the local clock measures the rest."""

    def __init__(self, topics: Iterable[str]) -> None:
        keys = [(stage, topic) for stage in get_args(Stage) for topic in topics]
        self._histograms = {key: Histogram(LONG_BOUNDS_S) for key in keys}

    def observe(self, stage: Stage, topic: str, value_s: float, trace_id: int = NO_TRACE) -> None:
        """Count one duration. Clock skew can make it negative; then it counts as zero."""
        self._histograms[stage, topic].observe(max(0.0, value_s), trace_id)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "recallflow_stage_seconds", "Time that records take in each stage", labels=["stage", "topic"]
        )
        for labels, histogram in self._histograms.items():
            histogram.add_to(family, labels)
        yield family


@dataclass(eq=False)
class OutputCounter:
    """Counts of outputs. The worker thread writes them, and any thread reads them."""

    query_topic: str
    outputs_from: Mapping[str, int]  # `topic:partition` → first offset whose outputs this run sends
    done_before: Mapping[str, Container[int]] = field(default_factory=dict)  # later offsets that are done already
    trace_id: Callable[[Position], int] = lambda _: NO_TRACE  # returns the trace of the record at a position

    def __post_init__(self) -> None:
        self.outputs = Counter[str]()
        self.dead_letters = Counter[str]()  # by error code
        self.over_quota = Counter[str]()  # by the name of the quota
        self.requested = Counter[str]()  # of the enrichment flow, by task
        self.responses = Counter[str]()  # by status
        self.response_errors = Counter[str]()  # by error code
        self.warnings = Counter[str]()  # by code
        self.processed = Histogram()  # responses, by the time that the engine took
        self.waiting = 0  # parked queries of this run

    def observe(self, output: Output) -> None:
        match output:
            case Ack():
                if output.source.startswith(f"{self.query_topic}:"):
                    self.waiting += sum(self._is_new(output.source, offset) for offset in output.offsets)
                return
            case Answer(response=response):
                self.responses[response.status] += 1
                if response.error is not None:
                    self.response_errors[response.error.code] += 1
                for warning in response.warnings:
                    self.warnings[warning.code] += 1
                if response.processing_time_ms is not None:
                    self.processed.observe(response.processing_time_ms / 1000, self.trace_id(output.position))
            case DeadLetter():
                self.dead_letters[output.error.code] += 1
                if isinstance(output.error, OverQuota):
                    self.over_quota[output.error.quota] += 1
            case TaskRequest():
                self.requested.update(output.tasks)
        self.outputs[KIND_OF[type(output)]] += 1
        is_first = output.number == 0 and output.position.topic == self.query_topic
        if is_first and self._is_new(output.position.source, output.position.offset):
            self.waiting -= 1

    def _is_new(self, source: str, offset: int) -> bool:
        """Return whether this run was the first to read a query. Queries parked in an earlier run are not counted."""
        return offset >= self.outputs_from.get(source, 0) and offset not in self.done_before.get(source, ())


def state_metrics(directory: StateDirectory) -> Iterator[Metric]:
    help_text = "Events without effect: their source is gone or changed, or their user was erased"
    known = {(event_type, "erased") for event_type in EVENT_TYPES - QUERY_TYPES - {"user.erase"}}
    known |= {(event_type, "outdated") for event_type in DERIVED_TYPES}
    known |= {("memory.embedding", "other_model"), ("memory", "too_many")}
    yield counter("unfit_events", help_text, "type reason", directory.unfit, known)
    yield gauge("owners", "Users whose memory is held", directory.counts.owners)
    yield gauge("memories", "Current memories held", directory.counts.memories)
    yield gauge("erasures_pending", "Erased users whose data may still be in files", directory.uncleaned_owners)
    yield gauge("hot_cache_bytes", "Bytes of owners in memory", directory.hot_bytes)
    yield gauge("hot_cache_limit_bytes", "Limit of the bytes of owners in memory", directory.hot_limit_bytes)
    yield from disk_metrics(directory.path)


def output_metrics(output_counter: OutputCounter, authoriser: Authoriser) -> Iterator[Metric]:
    yield counter("outputs", "Records handed to the output topics", "kind", output_counter.outputs, OUTPUT_KINDS)
    requested = output_counter.requested
    yield counter("enrichment_tasks", "Tasks handed to the enrichment flow", "task", requested, MISSING_RESULTS)
    yield counter("dead_letters", "Refused records", "code", output_counter.dead_letters, get_args(ErrorCode))
    yield counter("over_quota_records", "Records over a tenant's quota", "quota", output_counter.over_quota, QUOTAS)
    yield counter("responses", "Responses", "status", output_counter.responses, STATUSES)
    errors = output_counter.response_errors
    yield counter("response_errors", "Responses with the status error", "code", errors, get_args(ErrorCode))
    yield counter("response_warnings", "Warnings in responses", "code", output_counter.warnings, WARNINGS)
    processed = HistogramMetricFamily(
        "recallflow_response_processing_seconds", "Time of the engine for a response, without Kafka"
    )
    output_counter.processed.add_to(processed)
    yield processed
    yield gauge("waiting_queries", "Parked queries of this run", output_counter.waiting)
    help_text = "Decisions that arrived after records they apply to"
    yield counter("late_decisions", help_text, "kind", authoriser.late, VERDICT_KINDS)


def counter(name: str, help_text: str, labels: str, counts: Mapping[L, int], known: Iterable[L]) -> CounterMetricFamily:
    """Return a counter with labels. `known` labels start at 0: otherwise a rate would miss the first increment."""
    family = CounterMetricFamily(f"recallflow_{name}", help_text, labels=labels.split())
    for values, count in sorted((dict.fromkeys(known, 0) | dict(counts)).items()):
        family.add_metric([values] if isinstance(values, str) else values, count)
    return family


def queued_records(by_topic: Mapping[str, int]) -> Metric:
    return labelled_gauge("queued_records", "Records fetched and not yet in the dataflow", "topic", by_topic)


def labelled_gauge(name: str, help_text: str, labels: str, values: Mapping[L, float]) -> Metric:
    family = GaugeMetricFamily(f"recallflow_{name}", help_text, labels=labels.split())
    for label, value in values.items():
        family.add_metric([label] if isinstance(label, str) else label, value)
    return family


def gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"recallflow_{name}", help_text, value)


class LocalMetrics(Collector):
    """A collector that reads the metrics of an in-process engine, under the names of an engine on Kafka."""

    def __init__(self, calls: LocalCalls, directory: StateDirectory, authoriser: Authoriser) -> None:
        self.output_counter = OutputCounter(calls.queries, {})
        self._calls, self._directory, self._authoriser = calls, directory, authoriser

    def collect(self) -> Iterator[Metric]:
        calls = self._calls
        yield from availability_metrics(calls.obstacle)
        yield from output_metrics(self.output_counter, self._authoriser)
        yield counter("records", "Records read from the input topics", "topic", calls.taken_counts, calls.topics)
        yield gauge("in_flight_records", "Records read and not completed", calls.in_flight)
        yield queued_records(calls.queued())
        yield from state_metrics(self._directory)


class GatewayMetrics(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from availability_metrics(self._service.obstacle())
