"""The Grafana dashboard, from its panels in dashboard.toml: `python -m tools.dashboard > dashboard.json`."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PANELS = Path(__file__).with_name("dashboard.toml")
SELECT = 'job=~"$job", instance=~"$instance"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8}
YES_NO = {"0": {"text": "no", "color": "red", "index": 0}, "1": {"text": "yes", "color": "green", "index": 1}}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "recallflow",
        "title": "recallflow",
        "description": "A deployment of recallflow: run, enrich and serve. Remedies: docs/how-to/alerts.md.",
        "tags": ["recallflow"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "links": [],
        "annotations": {"list": [_alerts()]},
        "templating": {"list": [_data_source(), _variable("job", 'up{job=~"recallflow.*"}'),
                                _variable("instance", 'up{job=~"$job"}')]},
        "panels": list(_panels()),
    }  # fmt: skip


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "datasource": SOURCE,
        "expr": 'ALERTS{alertstate="firing", job=~"$job"}',
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _variable(name: str, series: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {name})", "refId": "variable"},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "hide": 0,
        "skipUrlSync": False,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, placed from left to right and from top to bottom."""
    number, x, y = 0, 0, 0
    for row in tomllib.loads(PANELS.read_text("utf-8"))["row"]:
        number += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in row["panel"]:
            number += 1
            width, height = panel.get("width", 8), HEIGHTS[panel.get("kind", "timeseries")]
            yield _panel(panel) | {"id": number, "gridPos": {"h": height, "w": width, "x": x, "y": y}}
            x += width
            if x == COLUMNS:
                x, y = 0, y + height


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    is_stat = panel.get("kind") == "stat"
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": expression.replace("$SELECT", SELECT),
            "legendFormat": legend,
            "instant" if is_stat else "range": True,
        }
        for at, (legend, expression) in enumerate(panel["targets"])
    ]
    return {
        "type": panel.get("kind", "timeseries"),
        "title": panel["title"],
        "description": panel["description"],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _stat(panel) if is_stat else _time_series(panel), "overrides": []},
        "options": _stat_options(panel) if is_stat else _time_series_options(),
        "targets": targets,
    }


def _stat(panel: dict[str, Any]) -> dict[str, Any]:
    colours = [("red", 0), ("green", 1)] if panel.get("yes_no") else panel["colours"]
    steps = [{"color": colour, "value": value if at else None} for at, (colour, value) in enumerate(colours)]
    field = {
        "unit": panel.get("unit", "short"),
        "color": {"mode": "thresholds"},
        "mappings": [{"type": "value", "options": YES_NO}] if panel.get("yes_no") else [],
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return field | ({"decimals": panel["decimals"]} if "decimals" in panel else {})


def _stat_options(panel: dict[str, Any]) -> dict[str, Any]:
    return {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "name" if panel.get("show_name") else "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }


def _time_series(panel: dict[str, Any]) -> dict[str, Any]:
    is_stacked = panel.get("stacked", False)
    return {
        "unit": panel.get("unit", "short"),
        "min": 0,
        "color": {"mode": "palette-classic"},
        "mappings": [],
        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}]},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if is_stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        },
    }


def _time_series_options() -> dict[str, Any]:
    return {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def text() -> str:
    """Return the dashboard as JSON."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
