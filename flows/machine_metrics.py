"""What a flow says of its process and of the disk under its state, for Prometheus; docs/operations.md lists it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.version import __version__


def registry_of(collector: Collector) -> CollectorRegistry:
    """What is asked for a flow's metrics, with those of its process (`process_…`)."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def presence(obstacle: str) -> Iterator[Metric]:
    """Yield the metrics that a flow has from its first moment on."""
    yield GaugeMetricFamily("recallflow_ready", "Whether /readyz says so", not obstacle)
    build = GaugeMetricFamily("recallflow_build_info", "Always 1; the version is its label", labels=["version"])
    build.add_metric([__version__], 1)
    yield build


def disk_metrics(state_dir: Path) -> Iterator[Metric]:
    """Yield the room on the disk of a state directory."""
    disk = shutil.disk_usage(state_dir)
    yield GaugeMetricFamily("recallflow_disk_free_bytes", "Free on the disk of the state directory", disk.free)
    yield GaugeMetricFamily("recallflow_disk_size_bytes", "Size of the disk of the state directory", disk.total)
