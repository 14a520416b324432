"""The metrics of an engine for callers in its own process; docs/operations.md lists them."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.calls import Calls
from recallflow.flows.engine_metrics import counter, gauge, output_metrics, state_metrics
from recallflow.flows.machine_metrics import presence
from recallflow.flows.tally import Tally
from recallflow.operators.authorise import JUDGED_BY, Authoriser
from recallflow.state.directory import StateDirectory


class LocalMetrics(Collector):
    """Reads the numbers when somebody asks for them: under the names that an engine on Kafka gives them."""

    def __init__(self, calls: Calls, directory: StateDirectory, authoriser: Authoriser) -> None:
        self.tally = Tally(calls.queries, {})
        self._calls = calls
        self._directory = directory
        self._authoriser = authoriser

    def collect(self) -> Iterator[Metric]:
        calls = self._calls
        yield from presence(calls.obstacle)
        yield from output_metrics(self.tally)
        yield counter("records", "Records taken from the input topics", "topic", calls.given, calls.topics)
        yield gauge("in_flight_records", "Records taken that are not through", calls.in_flight)
        waiting = GaugeMetricFamily("recallflow_queued_records", "Records read and not taken yet", labels=["topic"])
        for topic, records in calls.queued().items():
            waiting.add_metric([topic], records)
        yield waiting
        yield gauge("waiting_queries", "Queries set aside in this run", self.tally.waiting)
        yield counter(
            "late_decisions", "Decisions that came after records that they are about", "kind", self._authoriser.late,
            JUDGED_BY,
        )  # fmt: skip
        yield from state_metrics(self._directory)
