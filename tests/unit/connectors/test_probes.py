"""Probes and metrics of a process."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Counter

from recallflow.connectors import probes as probes_module
from recallflow.connectors.probes import CONNECTIONS_MOST, Probes
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


def test_idle_connections_do_not_keep_probes_from_answering() -> None:
    with Probes(HOST, 0, Broken(), str) as probes, ExitStack() as stack:
        before = threading.active_count()
        idle = [stack.enter_context(socket.create_connection((HOST, probes.port))) for _ in range(100)]
        assert [ask(probes.port, "/livez")[0] for _ in range(10)] == [200] * 10
        assert idle[0].recv(1) == b""  # the oldest makes room
        assert threading.active_count() <= before + 2 * CONNECTIONS_MOST


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nhost: h"], ids=len)
def test_connection_without_a_request_is_closed_in_time(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(probes_module, "CONNECTION_S", 0.05)
    with Probes(HOST, 0, Broken(), str) as probes, socket.create_connection((HOST, probes.port)) as slow:
        slow.sendall(sent)
        while slow.recv(65_536):
            pass


def test_metrics_are_prometheus_text() -> None:
    registry = CollectorRegistry()
    Counter("walnuts", "Walnuts", registry=registry).inc(3)
    with Probes(HOST, 0, registry, str) as probes:
        status, text = ask(probes.port, "/metrics")
    assert (status, "walnuts_total 3.0" in text) == (200, True)


OPENMETRICS, PLAIN = "application/openmetrics-text; version=1.0.0", "text/plain; version=0.0.4"
# As Prometheus 3 sends it.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ACCEPTED = {
    "nothing": ("", PLAIN),
    "anything": ("*/*", PLAIN),
    "openmetrics": ("application/openmetrics-text", OPENMETRICS),
    "openmetrics as well as text": ("text/plain, application/openmetrics-text", OPENMETRICS),
    "openmetrics rather than text": ("text/plain;q=0.3, application/openmetrics-text;q=0.6", OPENMETRICS),
    "text rather than openmetrics": ("application/openmetrics-text;q=0.3, text/plain;q=0.6", PLAIN),
    "no openmetrics": ("application/openmetrics-text;q=0, text/plain", PLAIN),
    "no openmetrics, in other letters": ("application/openmetrics-text; version=1.0.0; Q=0.0", PLAIN),
    "a quality that is none": ("application/openmetrics-text;q=much, */*", PLAIN),
    "prometheus": (PROMETHEUS, OPENMETRICS),
}


@pytest.mark.parametrize(("accept", "given"), ACCEPTED.values(), ids=ACCEPTED)
def test_metrics_format_follows_the_accept_header(accept: str, given: str) -> None:
    with Probes(HOST, 0, CollectorRegistry(), str) as probes:
        asked = urllib.request.Request(f"http://{HOST}:{probes.port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith(given)


def test_the_port_is_free_once_it_is_closed() -> None:
    with (
        Probes(HOST, 0, CollectorRegistry(), str) as probes,
        pytest.raises(UsageError, match=f"cannot serve metrics at {HOST}:{probes.port}: .*give another"),
    ):
        Probes(HOST, probes.port, CollectorRegistry(), str)
    Probes(HOST, probes.port, CollectorRegistry(), str).close()


def test_a_socket_that_is_listened_at_already_is_served() -> None:
    with socket.create_server((HOST, 0)) as ours:
        port, passed = ours.getsockname()[1], ours.dup().detach()
        with Probes(f"fd://{passed}", 0, CollectorRegistry(), str) as probes:
            assert probes.port == port
            assert ask(port, "/readyz") == (200, "ready\n")
        with Probes(f"fd://{ours.dup().detach()}", 0, CollectorRegistry(), lambda: "again"):
            assert ask(port, "/readyz") == (503, "not ready: again\n")


@pytest.mark.parametrize("host", ["fd://x", "fd://9999", "fd://-1"])
def test_invalid_address_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot serve metrics at {host}"):
        Probes(host, 0, CollectorRegistry(), str)
