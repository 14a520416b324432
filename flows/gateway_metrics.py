"""The metrics of a gateway before Kafka, beside what it counts of requests; docs/operations.md lists them."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from recallflow.flows.machine_metrics import presence
from recallflow.service import Service


class GatewayMetrics(Collector):
    """Reads the numbers when somebody asks for them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from presence(self._service.obstacle())
