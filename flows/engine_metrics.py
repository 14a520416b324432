"""Metrics that every engine has, wherever its records come from; docs/operations.md lists them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from recallflow.errors import ErrorCode
from recallflow.events import DERIVED_TYPES
from recallflow.flows.machine_metrics import disk_metrics
from recallflow.flows.tally import Tally
from recallflow.operators.enrichment.requests import TASKS
from recallflow.parsing import EVENT_TYPES, QUERY_TYPES
from recallflow.quota_names import QUOTAS
from recallflow.responses import WARNINGS, Response
from recallflow.state.directory import StateDirectory

KINDS = ("response", "receipt", "request", "dead_letter", "verdict")
OTHER_MODEL, TOO_MANY = ("memory.embedding", "other_model"), ("memory", "too_many")
STATUSES = get_args(Response.model_fields["status"].annotation)


def state_metrics(directory: StateDirectory) -> Iterator[Metric]:
    """What is held, and what had no effect on it."""
    held = directory.counts
    yield _unfit(directory.unfit)
    yield gauge("owners", "Users whose memory is held", held.owners)
    yield gauge("memories", "Current memories held", held.memories)
    yield gauge("erasures_pending", "Erased users of whom files may still hold something", directory.uncleaned)
    yield gauge("hot_cache_bytes", "Bytes of owners in memory", directory.hot_bytes)
    yield gauge("hot_cache_limit_bytes", "Bytes of owners that may stay in memory", directory.hot_limit_bytes)
    yield from disk_metrics(directory.path)


def _unfit(counts: Mapping[tuple[str, str], int]) -> Metric:
    help_text = "Events without effect: what they were made from is gone or changed, or their user was erased"
    family = CounterMetricFamily("recallflow_unfit_events", help_text, labels=["type", "reason"])
    erased = {(kind, "erased") for kind in EVENT_TYPES - QUERY_TYPES - {"user.erase"}}
    outdated = {(kind, "outdated") for kind in DERIVED_TYPES}
    for labels in sorted(erased | outdated | {OTHER_MODEL, TOO_MANY} | {*counts}):
        family.add_metric(labels, counts.get(labels, 0))
    return family


def output_metrics(tally: Tally) -> Iterator[Metric]:
    """What came out."""
    yield counter("outputs", "Records handed to the output topics", "kind", tally.outputs, KINDS)
    yield counter("enrichment_tasks", "Tasks handed to the enrichment flow", "task", tally.requested, TASKS)
    yield counter("dead_letters", "Refused records", "code", tally.dead_letters, get_args(ErrorCode))
    yield counter("over_quota_records", "Records past a tenant's quota", "quota", tally.over_quota, QUOTAS)
    yield counter("responses", "Responses", "status", tally.responses, STATUSES)
    errors = tally.response_errors
    yield counter("response_errors", "Responses of the status error", "code", errors, get_args(ErrorCode))
    yield counter("response_warnings", "Warnings in responses", "code", tally.warnings, WARNINGS)
    processed = HistogramMetricFamily(
        "recallflow_response_processing_seconds", "Time the engine took for a response, without Kafka"
    )
    tally.processed.add_to(processed)
    yield processed


def counter(name: str, help_text: str, label: str, counts: Mapping[str, int], known: Iterable[str]) -> Metric:
    """One of a single label. `known`: values to show from the start, as a counter that first appears with a 1 has not
    grown for whoever watches."""
    family = CounterMetricFamily(f"recallflow_{name}", help_text, labels=[label])
    for value, count in sorted((dict.fromkeys(known, 0) | dict(counts)).items()):
        family.add_metric([value], count)
    return family


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One without a label."""
    return GaugeMetricFamily(f"recallflow_{name}", help_text, value)
