"""What the enrichment flow says of itself: to Prometheus (docs/operations.md lists it), and in its log when it ends."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.connection import Connection, Watch
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.enrichment import EnrichmentRequest, EnrichmentResult
from recallflow.errors import ErrorCode
from recallflow.flows.engine_metrics import counter, gauge
from recallflow.flows.enrich_models import EnrichmentModels
from recallflow.flows.journeys import Journeys
from recallflow.flows.machine_metrics import disk_metrics, presence, registry_of
from recallflow.flows.metrics import input_metrics, left_out_metric, obstacle_of
from recallflow.flows.model_metrics import model_metrics
from recallflow.llm import Spent
from recallflow.operators.enrichment.claims import REFUSALS
from recallflow.operators.enrichment.failures import LACKS, PARTIAL_DEGRADE, RELATIONSHIPS
from recallflow.operators.enrichment.requests import TASKS
from recallflow.outputs import DeadLetter, Derived, Enriched, EnrichmentOutput, Receipted

KINDS = {Enriched: "result", Derived: "event", Receipted: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
CODES = {PARTIAL_DEGRADE, *(lack.code for lack in LACKS.values())}


class EnrichmentTally:
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
        """Counts one request with its result."""
        self.requests += 1
        failed = {failure.task for failure in result.failures}
        self.tasks.update((task, OUTCOMES[task in failed]) for task in request.tasks)
        self.failures.update(failure.code for failure in result.failures)
        self.failures[PARTIAL_DEGRADE] += len(failed & RELATIONSHIPS)
        self.refused.update(result.refused)
        self.asked = self.asked.plus(Spent(result.calls, result.prompt_tokens, result.completion_tokens))
        self.embedded_tokens += result.embedding_tokens

    def observe(self, output: EnrichmentOutput) -> None:
        """Counts one output."""
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
    tally: EnrichmentTally
    deployment: Membership
    watch: Watch
    connection: Connection
    models: EnrichmentModels
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
            yield from model_metrics(running.models.meters)
            yield left_out_metric(running.table)
            added = running.watch.added
            yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
            yield gauge("connected", "Whether the brokers can be reached", int(running.connection.connected))


def _results(tally: EnrichmentTally) -> Iterator[Metric]:
    tasks = CounterMetricFamily("recallflow_enriched_tasks", "Tasks of requests", labels=["task", "outcome"])
    for task in TASKS:
        for outcome in OUTCOMES:
            tasks.add_metric([task, outcome], tally.tasks[task, outcome])
    yield tasks
    yield counter("enrichment_failures", "Tasks that failed, by what is missing", "code", tally.failures, CODES)
    yield counter("refused_claims", "What models said and is not kept", "reason", tally.refused, REFUSALS)
    yield counter("outputs", "Records handed to the output topics", "kind", tally.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", tally.dead_letters, get_args(ErrorCode))
