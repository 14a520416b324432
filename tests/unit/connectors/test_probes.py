"""What a supervisor and Prometheus ask a process."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from recallflow.connectors.probes import Probes
from recallflow.errors import UsageError

HOST = "127.0.0.1"


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Broken(CollectorRegistry):
    """Whoever collects from it fails."""

    def collect(self) -> Iterator[object]:  # type: ignore[override]
        raise AssertionError("was asked")


def test_readiness_follows_and_liveness_asks_nothing() -> None:
    reason = "catching up, 7 records of memory to go"
    with Probes(HOST, 0, Broken(), lambda: reason) as probes:
        assert ask(probes.port, "/livez") == (200, "alive\n")
        assert ask(probes.port, "/readyz") == (503, "not ready: catching up, 7 records of memory to go\n")
        reason = ""
        assert ask(probes.port, "/readyz?verbose=1") == (200, "ready\n")
        assert ask(probes.port, "/elsewhere")[0] == 404


def test_metrics_are_prometheus_text() -> None:
    registry = CollectorRegistry()
    Counter("walnuts", "Walnuts", registry=registry).inc(3)
    with Probes(HOST, 0, registry, str) as probes:
        status, text = ask(probes.port, "/metrics")
    assert (status, "walnuts_total 3.0" in text) == (200, True)


def test_the_port_is_free_once_it_is_closed() -> None:
    with (
        Probes(HOST, 0, CollectorRegistry(), str) as probes,
        pytest.raises(UsageError, match=f"cannot serve metrics at {HOST}:{probes.port}: .*give another"),
    ):
        Probes(HOST, probes.port, CollectorRegistry(), str)
    Probes(HOST, probes.port, CollectorRegistry(), str).close()
