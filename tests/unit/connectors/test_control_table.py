"""The control table, reading a partition to its end, and probes."""

import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry, Counter

from recallflow import process
from recallflow.connectors import probes as probes_module
from recallflow.connectors.kafka.admin import TopicDescription
from recallflow.connectors.kafka.control import AHEAD_MS, ControlTable
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.probes import MAX_CONNECTIONS, Probes
from recallflow.control import Rollout
from recallflow.credentials import sign
from recallflow.errors import SourceError, UsageError
from recallflow.kafka_options import KafkaOptions
from tests.unit.connectors.fake_consumer import FakeKafka

TOPIC = "control"
Follow = Callable[..., ControlTable]


def rollout(mode: str, tenant: str = "acme") -> bytes:
    return orjson.dumps({"type": "graph.rollout", "tenant_id": tenant, "name": "graph", "mode": mode})


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka(**{TOPIC: 2})


@pytest.fixture
def follow(kafka: FakeKafka) -> Iterator[Follow]:
    made: list[ControlTable] = []

    def begin(secret: str | None = None) -> ControlTable:
        made.append(ControlTable(KafkaOptions("nowhere:1"), TOPIC, kafka.consumer, secret=secret))
        return made[-1]

    yield begin
    for table in made:
        table.close()


def mode(table: ControlTable, at_ms: int = 1_000, tenant: str = "acme") -> str | None:
    found = table.history.as_of(tenant, "graph.rollout", "graph", at_ms)
    return found.mode if isinstance(found, Rollout) else None


def test_compaction_leaves_gaps_and_an_end_behind_the_last_record(kafka: FakeKafka, follow: Follow) -> None:
    kafka.append(TOPIC, 0, rollout("canary"), append_ms=10, at=7)
    kafka.topics[TOPIC][0].low = 4
    kafka.topics[TOPIC][0].end = 12  # what stood there was replaced by what stands in the other partition
    kafka.append(TOPIC, 1, rollout("off"), append_ms=30, at=40)
    table = follow()
    assert (mode(table, 10), mode(table, 30)) == ("canary", "off")


def test_every_partition_is_read_to_its_end(kafka: FakeKafka, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlTable, "_run", lambda _: None)  # nothing comes after it was given out
    kafka.grow(TOPIC, 3)
    for partition, at in enumerate("abc"):
        for number in range(3):
            kafka.append(TOPIC, partition, rollout(("off", "shadow", "canary")[number], at), append_ms=number)
    table = follow()  # partition 0 comes first, and its end before anything of 1 and 2
    table_mode = [mode(table, 10, tenant) for tenant in "abc"]
    assert table_mode == ["canary"] * 3


def test_invalid_control_event_is_logged_and_left_out(
    kafka: FakeKafka, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for value in (b"no JSON", b"{}", None, rollout("shadow")):
        kafka.append(TOPIC, 0, value, append_ms=10)
    assert mode(follow()) == "shadow"
    assert [message.split()[0] for message in caplog.messages] == ["control:0:0", "control:0:1", "control:0:2"]


def test_an_error_for_good_is_the_flows(kafka: FakeKafka, follow: Follow) -> None:
    table = follow()
    kafka.fail(TOPIC, 1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    kafka.await_(lambda: table.failure() is not None)
    assert "control:1: cannot be read" in str(table.failure())


def test_without_its_end_there_is_no_table(kafka: FakeKafka) -> None:
    kafka.fail(TOPIC, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SourceError, match="control:0: cannot be read"):
        ControlTable(KafkaOptions("nowhere:1"), TOPIC, kafka.consumer)
    assert [consumer.closed for consumer in kafka.consumers] == [True]


def test_added_partitions_are_followed(kafka: FakeKafka, follow: Follow) -> None:
    table = follow()
    kafka.grow(TOPIC, 4)
    for partition, tenant in ((2, "acme"), (3, "zenith")):
        kafka.append(TOPIC, partition, rollout("canary", tenant), append_ms=10)
    for _ in range(2):
        table.grow({TOPIC: TopicDescription("id", 4)})
    kafka.await_(lambda: mode(table) == "canary" and mode(table, tenant="zenith") == "canary")


SECRET, OTHER = "s" * 32, "o" * 32


def decide(
    kafka: FakeKafka, mode: str, said_ms: int | None, append_ms: int, secret: str | None = SECRET, **more: Any
) -> None:
    fields = {"type": "graph.rollout", "tenant_id": "acme", "name": "graph", "mode": mode, "timestamp": said_ms}
    key, value = b"acme/graph.rollout/graph", orjson.dumps(fields)
    kafka.append(
        TOPIC, 0, value, more.get("key", key), headers=sign(secret, more.get("signed_key", key), value),
        append_ms=append_ms,
    )  # fmt: skip


def test_only_signed_decisions_count(kafka: FakeKafka, follow: Follow, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    decide(kafka, "shadow", 10, 10)
    decide(kafka, "canary", 20, 20, secret=None)
    decide(kafka, "canary", 20, 20, secret=OTHER)
    decide(kafka, "canary", 20, 20, key=b"zenith/graph.rollout/graph")
    decide(kafka, "canary", 20, 20, key=b"zenith/graph.rollout/graph", signed_key=b"zenith/graph.rollout/graph")
    table = follow(SECRET)
    assert (mode(table), table.left_out) == ("shadow", {"not_signed": 4})
    assert [message.split()[0] for message in caplog.messages] == [f"control:0:{offset}" for offset in (1, 2, 3, 4)]
    assert SECRET not in caplog.text


def test_a_signed_decision_says_when_it_was_made(kafka: FakeKafka, follow: Follow) -> None:
    decide(kafka, "shadow", 1_000_000_000_000, 1_000_000_000_000)
    decide(kafka, "canary", None, 1_000_000_001_000)
    decide(kafka, "canary", 1_000_000_002_000 + AHEAD_MS + 1, 1_000_000_002_000)
    table = follow(SECRET)
    assert (mode(table, 1_000_000_003_000), table.left_out) == ("shadow", {"wrong_time": 2})
    decide(kafka, "off", 1_000_000_004_000 + AHEAD_MS, 1_000_000_004_000)  # a clock may be ahead
    kafka.await_(lambda: mode(table, 1_000_000_005_000) == "off")


def test_replayed_decision_is_left_out(kafka: FakeKafka, follow: Follow) -> None:
    decide(kafka, "canary", 10, 10)
    decide(kafka, "off", 20, 20)
    decide(kafka, "canary", 10, 30)
    table = follow(SECRET)
    assert ([mode(table, at_ms) for at_ms in (10, 20, 30)], table.left_out) == (
        ["canary", "off", "off"], {"replayed": 1},
    )  # fmt: skip


def test_without_a_secret_signatures_are_not_looked_at(kafka: FakeKafka, follow: Follow) -> None:
    decide(kafka, "shadow", 20, 10, secret=OTHER)
    decide(kafka, "canary", 10, 20)
    table = follow()
    assert (mode(table), table.left_out) == ("canary", {})


@pytest.fixture
def letters_kafka() -> FakeKafka:
    return FakeKafka(letters=2)


@pytest.fixture
def letters_reader(letters_kafka: FakeKafka) -> Iterator[TopicReader]:
    with TopicReader(KafkaOptions("nowhere:1"), new_consumer=letters_kafka.consumer) as made:
        yield made


def test_reported_end_ends_the_partition(letters_kafka: FakeKafka, letters_reader: TopicReader) -> None:
    for value, at in ((b"a", 3), (b"b", 9)):
        letters_kafka.append("letters", 1, value, at=at)
    letters_kafka.topics["letters"][1].end = 12  # a marker of a transaction stands behind the last record
    assert [message.value() for message in letters_reader.read_to_end("letters", 1, 0)] == [b"a", b"b"]
    assert letters_reader.ends == {1: 12}
    assert [message.value() for message in letters_reader.read_to_end("letters", 1, 4)] == [b"b"]


def test_first_read_looks_its_topic_up(letters_kafka: FakeKafka, letters_reader: TopicReader) -> None:
    for _ in range(2):
        assert [*letters_reader.read_to_end("letters", 0, 0)] == []
    letters_reader.add("letters", 1, 0)
    assert letters_kafka.consumers[0].looked_up == ["letters"]


def test_an_error_that_passes_is_read_over(letters_kafka: FakeKafka, letters_reader: TopicReader) -> None:
    letters_kafka.fail("letters", 0, KafkaError._TRANSPORT)
    letters_kafka.append("letters", 0, b"after")
    assert [message.value() for message in letters_reader.read_to_end("letters", 0, 0)] == [b"after"]


def test_silent_brokers_end_a_stopped_reader(letters_kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.0)
    stopping = threading.Event()
    stopping.set()
    letters_reader = TopicReader(KafkaOptions("nowhere:1"), new_consumer=letters_kafka.consumer, stopping=stopping)
    letters_kafka.append("letters", 0, b"a")
    letters_kafka.consumers[0].options = {}  # it reports no end
    records = letters_reader.read_to_end("letters", 0, 0)
    assert next(records).value() == b"a"
    with pytest.raises(SourceError, match="letters:0: could not be read to its end within 0 s"):
        next(records)


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
    reason = "catching up, 7 memory records remain"
    with Probes(HOST, 0, Broken(), lambda: reason) as probes:
        assert ask(probes.port, "/livez") == (200, "alive\n")
        assert ask(probes.port, "/readyz") == (503, "not ready: catching up, 7 memory records remain\n")
        reason = ""
        assert (ask(probes.port, "/readyz?verbose=1"), ask(probes.port, "/elsewhere")[0]) == ((200, "ready\n"), 404)


def test_idle_connections_do_not_keep_probes_from_answering() -> None:
    with Probes(HOST, 0, Broken(), str) as probes, ExitStack() as stack:
        before = threading.active_count()
        idle = [stack.enter_context(socket.create_connection((HOST, probes.port))) for _ in range(100)]
        assert [ask(probes.port, "/livez")[0] for _ in range(10)] == [200] * 10
        assert idle[0].recv(1) == b""  # the oldest makes room
        assert threading.active_count() <= before + 2 * MAX_CONNECTIONS


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
    "nothing": ("", PLAIN), "anything": ("*/*", PLAIN), "openmetrics": ("application/openmetrics-text", OPENMETRICS),
    "openmetrics as well as text": ("text/plain, application/openmetrics-text", OPENMETRICS),
    "openmetrics rather than text": ("text/plain;q=0.3, application/openmetrics-text;q=0.6", OPENMETRICS),
    "text rather than openmetrics": ("application/openmetrics-text;q=0.3, text/plain;q=0.6", PLAIN),
    "no openmetrics": ("application/openmetrics-text;q=0, text/plain", PLAIN),
    "no openmetrics, in other letters": ("application/openmetrics-text; version=1.0.0; Q=0.0", PLAIN),
    "a quality that is none": ("application/openmetrics-text;q=much, */*", PLAIN),
    "prometheus": (PROMETHEUS, OPENMETRICS),
}  # fmt: skip


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
    with Probes(HOST, probes.port, CollectorRegistry(), str):
        pass


def test_a_socket_that_is_listened_at_already_is_served() -> None:
    with socket.create_server((HOST, 0)) as ours:
        port, passed = ours.getsockname()[1], ours.dup().detach()
        with Probes(f"fd://{passed}", 0, CollectorRegistry(), str) as probes:
            assert (probes.port, ask(port, "/readyz")) == (port, (200, "ready\n"))
        with Probes(f"fd://{ours.dup().detach()}", 0, CollectorRegistry(), lambda: "again"):
            assert ask(port, "/readyz") == (503, "not ready: again\n")


@pytest.mark.parametrize("host", ["fd://x", "fd://9999", "fd://-1"])
def test_invalid_address_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot serve metrics at {host}"):
        Probes(host, 0, CollectorRegistry(), str)
