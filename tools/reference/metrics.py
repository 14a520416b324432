"""Every metric with its labels, from the collectors themselves. Stand-ins take the place of a running flow: a metric's
name, kind, labels and help are the same whatever its numbers are."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from recallflow.connectors.http.middleware import Traffic
from recallflow.flows.engine_metrics import OutputCounter, Stages
from recallflow.flows.metrics import EnrichmentCounter, EnrichmentMetrics, Metrics
from recallflow.flows.topics import Topics
from recallflow.members.probing import member_families
from tools.reference import markdown
from tools.reference.markdown import code, table

TOLD = (
    "What `/metrics` of a process shows, beside those of the process itself (`process_…`). What to make of them is in "
    "[monitoring](../monitoring.md), with alerts and a dashboard; [operations](../operations.md#probes) explains each."
)
HEADS = ("metric", "type", "labels", "what")


def page() -> str:
    """The page on all of them."""
    return markdown.page(
        "Metrics",
        TOLD,
        f"## run\n\nWith `--processes` each has the label `member` as well.\n\n{_table(_of_run())}",
        f"## enrich\n\n{_table(_of_enrich())}",
        f"## serve\n\nWith `--state-dir` also what `run` says of answers and state.\n\n{_table(_of_serve())}",
    )


def _of_run() -> Iterator[Metric]:
    running = MagicMock(tally=OutputCounter("", {}), directory=MagicMock(path=Path(), unfit={}))
    running.journeys.stages = Stages(Topics().read())
    metrics = Metrics()
    metrics.watch(running)
    yield from metrics.collect()
    yield from member_families([])


def _of_enrich() -> Iterable[Metric]:
    running = MagicMock(tally=EnrichmentCounter(), state_dir=Path())
    running.journeys.stages = Stages((Topics().enrichment,))
    metrics = EnrichmentMetrics()
    metrics.watch(running)
    return metrics.collect()


def _of_serve() -> Iterable[Metric]:
    registry = CollectorRegistry()
    traffic = Traffic(registry)
    traffic.requests.labels("", "", "")  # without one there is no sample that says the labels
    traffic.seconds.labels("")
    return registry.collect()


def _table(metrics: Iterable[Metric]) -> str:
    rows = {one.name: (code(_name(one)), one.type, " ".join(map(code, _labels(one))), one.documentation)
            for one in metrics}  # fmt: skip
    return table(HEADS, [rows[name] for name in sorted(rows)])


def _name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels(metric: Metric) -> list[str]:
    """As the family declares them; else those of its samples."""
    if declared := getattr(metric, "_labelnames", ()):
        return list(declared)
    return [name for name in dict.fromkeys(name for one in metric.samples for name in one.labels) if name != "le"]
