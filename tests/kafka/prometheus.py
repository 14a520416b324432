"""A real Prometheus for tests: it scrapes what it is told to, under the rules of docs/monitoring. Its time runs sixty
times as fast: every duration in its configuration and in the rules is a sixtieth (15 s → 250 ms, 10 m → 10 s)."""

import contextlib
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml

from benchmarks.broker import HOST, free_ports

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
SPEED = 60
GIVE_UP_S = 90.0
LOOK_S = 0.1
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])\b|^(\d+)([smhd])$")


def faster(text: str) -> str:
    """Durations of an expression, or a duration by itself, as a sixtieth."""

    def shortened(match: "re.Match[str]") -> str:
        number, unit = (one for one in match.groups() if one)
        return f"{int(number) * _UNITS_S[unit] * 1000 // SPEED}ms"

    return _DURATION.sub(shortened, text)


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://{HOST}:{port}"

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expr)["result"]
        return found

    def firing(self) -> dict[str, dict[str, Any]]:
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"]: one for one in alerts if one["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    def _get(self, path: str, **asked: str) -> Any:
        address = f"{self._url}{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return orjson.loads(answer.read())["data"]


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """`targets`: job → the port of its process on this machine."""
    port = free_ports(None)[0]
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {name: faster(value) for name, value in config["global"].items()}
    config["global"]["scrape_timeout"] = config["global"]["scrape_interval"]
    for scraped in config["scrape_configs"]:
        scraped["static_configs"] = [{"targets": [f"{HOST}:{targets[scraped['job_name']]}"]}]
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    for rule in [rule for group in rules["groups"] for rule in group["rules"]]:
        rule |= {name: faster(rule[name]) for name in ("expr", "for") if name in rule}
    for name, content in (("prometheus.yml", config), ("alerts.yml", rules)):
        (folder / name).write_text(yaml.safe_dump(content))
    words = ["--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "data"]
    words += ["--web.listen-address", f"{HOST}:{port}", "--log.level", "warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *map(str, words)], stdin=subprocess.DEVNULL, stderr=log)
    server = Prometheus(port)
    try:
        until(lambda: process.poll() is not None or server.ready())
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], bool], what: Callable[[], object] = lambda: None) -> None:
    """Return once a condition is true; fail at the deadline, and show `what`."""
    deadline_s = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < deadline_s, what()
        time.sleep(LOOK_S)
