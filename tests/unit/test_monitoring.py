"""The alert rules and the dashboard of docs/monitoring, without an engine; with one: tests/kafka/test_monitoring.py."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboard import dashboard
from tools.reference import metrics

DOCS = Path(__file__).parents[2] / "docs"
MONITORING = DOCS / "monitoring"


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def listed() -> set[str]:
    return set(re.findall(r"^\| `(recallflow_\w+)", metrics.page(), re.MULTILINE))


def named(text: str) -> set[str]:
    """Metrics that an expression looks at, a histogram's by its own name."""
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"\brecallflow_\w+", text)}


@pytest.mark.examples
@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "words", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"]
)
def test_promtool_finds_nothing_wrong(words: str) -> None:
    done = subprocess.run(["promtool", *words.split()], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    samples = [sample for test in tests for case in test["promql_expr_test"] for sample in case["exp_samples"]]
    fired = [re.findall(r'alertname="(\w+)"', sample["labels"])[0] for sample in samples]
    assert sorted(fired) == sorted(alerts())


def test_normal_series_cover_all_alerts() -> None:
    normal = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"][0]
    given = {series["series"].partition("{")[0].removesuffix("_bucket") for series in normal["input_series"]}
    assert {name for rule in alerts().values() for name in named(rule["expr"])} <= given


def test_expressions_look_at_metrics_that_there_are() -> None:
    exprs = [target["expr"] for panel in panels() for target in panel["targets"]]
    exprs += [rule["expr"] for rule in alerts().values()]
    assert {name for expr in exprs for name in named(expr)} <= listed()


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name in named(target["expr"])}
    assert listed() - shown == set()


def test_grafana_reads_the_dashboard_as_it_is() -> None:
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert [*lost(dashboard(), read)] == []


def lost(written: Any, read: Any, path: str = "") -> list[str]:
    if isinstance(written, dict) and isinstance(read, dict):
        return [one for key, value in written.items() for one in lost(value, read.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [one for at, (a, b) in enumerate(zip(written, read, strict=True)) for one in lost(a, b, f"{path}[{at}]")]
    return [] if written == read else [f"{path}: {written} → {read}"]


def test_every_expression_uses_the_dashboard_variables() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for panel in panels():
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for selector in re.findall(r"\b(?:recallflow|process)_\w+(\{.*?\})", target["expr"]):
                assert selector.startswith('{job=~"$job", instance=~"$instance"'), panel["title"]
            assert len(re.findall(r"\b(?:recallflow|process)_\w+\{", target["expr"])) == len(
                re.findall(r"\b(?:recallflow|process)_\w+", target["expr"])
            ), panel["title"]
