"""All metrics with their labels, from the collectors.

Mocks replace the running dataflow: name, type, labels and help of a metric do not depend on its values."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from recallflow.connectors.http.server import RequestMetrics
from recallflow.flows.engine_metrics import OutputCounter, Stages
from recallflow.flows.enrich import EnrichmentCounter, EnrichmentMember
from recallflow.flows.kafka import MainFlowMember
from recallflow.flows.member import FlowMetrics, GroupMember
from recallflow.flows.settings import TopicNames
from recallflow.members import member_families
from tools.reference import markdown
from tools.reference.markdown import code, table

INTRODUCTION = (
    "From this page you can look up every metric of `/metrics`, except those of the process (`process_…`). "
    "[Monitoring](../how-to/monitoring.md) has scrape settings, alerts and a dashboard."
)
HEADS = ("metric", "type", "labels", "meaning")


def page() -> str:
    """Return the page of all metrics."""
    return markdown.page(
        "Metrics",
        INTRODUCTION,
        f"## run\n\nWith `--processes`, each metric also has the label `member`.\n\n{_table(_of_run())}",
        f"## enrich\n\n{_table(_of_enrich())}",
        "## serve\n\nWith `--state-dir`, `serve` also has the metrics of `run` for responses and state.",
        _table(_of_serve()),
    )


def _of_run() -> Iterator[Metric]:
    running = MagicMock(output_counter=OutputCounter("", {}), directory=MagicMock(path=Path(), unfit={}))
    running.spans.stages = Stages(TopicNames().read_topics())
    yield from _metrics_of(MainFlowMember, running)
    yield from member_families([])


def _of_enrich() -> Iterable[Metric]:
    running = MagicMock(enrichment_counter=EnrichmentCounter(), state_dir=Path())
    running.spans.stages = Stages((TopicNames().enrichment,))
    return _metrics_of(EnrichmentMember, running)


def _metrics_of(member_type: type[GroupMember], running: MagicMock) -> Iterable[Metric]:
    running.__class__ = member_type  # type: ignore[assignment]  # for `super()`
    running.metrics = partial(member_type.metrics, running)
    metrics = FlowMetrics()
    metrics.member = running
    return metrics.collect()


def _of_serve() -> Iterable[Metric]:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    metrics.requests.labels("", "", "")  # creates the sample that has the labels
    metrics.seconds.labels("")
    return registry.collect()


def _table(metrics: Iterable[Metric]) -> str:
    rows = {one.name: (code(_name(one)), one.type, " ".join(map(code, _labels(one))), one.documentation)
            for one in metrics}  # fmt: skip
    return table(HEADS, [rows[name] for name in sorted(rows)])


def _name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels(metric: Metric) -> list[str]:
    """Return the declared labels, or else those of the samples."""
    if declared := getattr(metric, "_labelnames", ()):
        return list(declared)
    return [name for name in dict.fromkeys(name for one in metric.samples for name in one.labels) if name != "le"]
