"""Metrics of the flows on Kafka. docs/reference/metrics lists them."""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.errors import ErrorCode
from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.flows.engine_metrics import (
    counter,
    gauge,
    queued_records,
)
from recallflow.llm import Cost
from recallflow.operators.enrichment.results import MISSING_RESULTS, PARTIAL_DEGRADE, REFUSAL_REASONS, RELATIONSHIPS
from recallflow.outputs import DeadLetter, EnrichmentOutput, EventOutput, ReceiptOutput, ResultOutput

KINDS = {ResultOutput: "result", EventOutput: "event", ReceiptOutput: "receipt", DeadLetter: "dead_letter"}
OUTCOMES = ("done", "failed")
CODES = {PARTIAL_DEGRADE, *(one.code for one in MISSING_RESULTS.values())}


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
            queued[topic] += len(lane.queue)
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
        self.spent, self.embedded_tokens = Cost(), 0

    def count_result(self, request: EnrichmentRequest, result: EnrichmentResult) -> None:
        self.requests += 1
        failed = {failure.task for failure in result.failures}
        self.tasks.update((task, OUTCOMES[task in failed]) for task in request.tasks)
        self.failures.update(failure.code for failure in result.failures)
        self.failures[PARTIAL_DEGRADE] += len(failed & RELATIONSHIPS)
        self.refused.update(result.refused)
        self.spent = self.spent.plus(Cost(result.calls, result.prompt_tokens, result.completion_tokens))
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


def result_metrics(counts: EnrichmentCounter) -> Iterator[Metric]:
    known = product(MISSING_RESULTS, OUTCOMES)
    yield counter("enriched_tasks", "Completed tasks of requests", "task outcome", counts.tasks, known)
    yield counter("enrichment_failures", "Failed enrichment tasks by error code", "code", counts.failures, CODES)
    yield counter("refused_claims", "Rejected claims of models", "reason", counts.refused, REFUSAL_REASONS)
    yield counter("outputs", "Records handed to the output topics", "kind", counts.outputs, KINDS.values())
    yield counter("dead_letters", "Refused records", "code", counts.dead_letters, get_args(ErrorCode))
