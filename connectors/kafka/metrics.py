"""The metrics of a running flow, for Prometheus; docs/operations.md lists them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.source import KafkaSource, Progress
from recallflow.connectors.kafka.tally import BOUNDS_S, Tally
from recallflow.connectors.kafka.watch import Watch
from recallflow.state.directory import StateDirectory


@dataclass(frozen=True)
class Running:
    """The parts of a flow that its metrics are read from."""

    source: KafkaSource
    progress: Progress
    directory: StateDirectory
    tally: Tally
    held: Callable[[], bool]  # whether we may work for the deployment
    watch: Watch


class Metrics(Collector):
    """Reads the numbers of a flow when somebody asks for them. There are none before `watch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._running: Running | None = None

    def watch(self, running: Running) -> None:
        self._running = running

    def ready(self) -> bool:
        """Whether the flow takes records, and may answer."""
        running = self._running
        return running is not None and running.source.ready() and running.held()

    def collect(self) -> Iterator[Metric]:
        if self._running is not None:
            yield from _outputs(self._running.tally)
            yield from _inputs(self._running.source, self._running.progress)
            added = self._running.watch.added
            yield _counter("added_partitions", "Partitions added to topics since the start", "topic", added)
            yield _gauge("waiting_queries", "Queries set aside in this run", self._running.tally.waiting)
            yield _gauge("hot_cache_bytes", "Bytes of owners in memory", self._running.directory.hot_bytes)


def _outputs(tally: Tally) -> Iterator[Metric]:
    yield _counter("outputs", "Records handed to the output topics", "kind", tally.outputs)
    yield _counter("dead_letters", "Refused records", "code", tally.dead_letters)
    yield _counter("responses", "Responses", "status", tally.responses)
    yield _counter("response_warnings", "Warnings in responses", "code", tally.warnings)
    counts = list(accumulate(tally.processed))
    yield HistogramMetricFamily(
        "recallflow_response_processing_seconds",
        "Time the engine took for a response, without Kafka",
        buckets=[*zip(map(str, (*BOUNDS_S, "+Inf")), counts, strict=True)],
        sum_value=tally.processed_s,
    )


def _inputs(source: KafkaSource, progress: Progress) -> Iterator[Metric]:
    yield _counter("records", "Records taken from the input topics", "topic", progress.given)
    yield _gauge("in_flight_records", "Records taken that are not through", progress.in_flight())
    readers = source.readers()
    queued: Counter[str] = Counter()
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


def _counter(name: str, says: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"recallflow_{name}", says, labels=[label])
    for value, count in sorted([*counts.items()]):
        family.add_metric([value], count)
    return family


def _gauge(name: str, says: str, value: int) -> Metric:
    return GaugeMetricFamily(f"recallflow_{name}", says, value)
