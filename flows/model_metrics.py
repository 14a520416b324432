"""The metrics of models behind an API, for Prometheus; docs/operations.md lists them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from recallflow.connectors.llm import Meter
from recallflow.errors import ModelFailure


def model_metrics(meters: Iterable[Meter]) -> Iterator[Metric]:
    """What was asked of models, what it cost whom, and what came of it."""
    calls = _family("calls", "Attempts of calls, those that failed included", "tenant", "task")
    tokens = _family("tokens", "Tokens that calls cost", "tenant", "task", "kind")
    failures = _family("failures", "Calls that gave nothing in the end", "code")
    left_alone = GaugeMetricFamily(
        "recallflow_model_left_alone", "Whether it is not asked for a while", labels=["model"]
    )
    for meter in meters:
        left_alone.add_metric([meter.model], meter.left_alone)
        for (tenant, task), spent in sorted(meter.spent().items()):
            calls.add_metric([meter.model, tenant, task], spent.calls)
            tokens.add_metric([meter.model, tenant, task, "prompt"], spent.prompt_tokens)
            tokens.add_metric([meter.model, tenant, task, "completion"], spent.completion_tokens)
        failed = Counter(dict.fromkeys(get_args(ModelFailure), 0))
        for (_, code), count in meter.failures().items():
            failed[code] += count
        for code, count in sorted(failed.items()):
            failures.add_metric([meter.model, code], count)
    yield from (calls, tokens, failures, left_alone)


def _family(name: str, help_text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"recallflow_model_{name}", help_text, labels=["model", *labels])
