"""What the enrichment flow says of itself: to Prometheus, and in its log when it ends."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from recallflow.connectors.kafka.connection import Connection
from recallflow.connectors.kafka.deployment import Deployment
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.connectors.kafka.watch import Watch
from recallflow.flows.enrich_models import EnrichmentModels
from recallflow.outputs import EnrichmentOutput


class EnrichTally:
    """What came out, counted."""

    def __init__(self) -> None:
        self.outputs: Counter[str] = Counter()

    def observe(self, output: EnrichmentOutput) -> None:
        """Counts one output."""

    def describe(self) -> str:
        """What this run cost, in words."""
        return ""


@dataclass(frozen=True)
class EnrichRunning:
    """The parts of a flow that its metrics are read from."""

    source: KafkaSource
    tally: EnrichTally
    deployment: Deployment
    watch: Watch
    connection: Connection
    models: EnrichmentModels


class EnrichMetrics(Collector):
    """Reads the numbers of a flow when somebody asks for them. There are none before `watch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._running: EnrichRunning | None = None

    def watch(self, running: EnrichRunning) -> None:
        self._running = running

    def obstacle(self) -> str:
        """Why requests are not answered; empty where they are."""
        running = self._running
        if running is None or not running.source.ready():
            return "stopping" if running is not None and running.source.stopping.is_set() else "starting"
        if not running.connection.connected:
            return "Kafka is away"
        return "" if running.deployment.held else "the deployment is not held"

    def collect(self) -> Iterator[Metric]:
        yield from ()
