"""The commands that write to Kafka, against a real broker."""

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import topic_reader
from recallflow.flows.topic_checks import check_control
from tests.kafka.harness import FLAGS, GIVE_UP_S, Names, Start, flags, produce, read_topic, until

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def at(broker: Cluster) -> list[str]:
    return ["--bootstrap-servers", broker.bootstrap_servers]


@pytest.fixture
def created(cli: Cli, at: list[str], topics: Names) -> list[str]:
    done = cli("topics", "create", "--partitions", 2, *at, *flags(topics), *enrichment(topics))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def enrichment(topics: Names) -> list[str]:
    return ["--enrichment-topic", topics("enrichment.requests"), "--result-topic", topics("enrichment.results")]


def values(broker: Cluster, topic: str) -> list[tuple[bytes, bytes]]:
    return [(message.key() or b"", message.value() or b"") for message in read_topic(broker, topic)]


def test_topics_are_created_once(
    cli: Cli, broker: Cluster, created: list[str], at: list[str], topics: Names, caplog: pytest.LogCaptureFixture
) -> None:
    named = [*flags(topics), *enrichment(topics)]
    names = {*named[1::2]}
    assert set(created) == {f"{name}: created" for name in names}
    again = cli("topics", "create", *at, *named)
    assert set(again.stdout.splitlines()) == {f"{name}: exists" for name in names}
    check_control(KafkaOptions(broker.bootstrap_servers), topics("control.events"))
    assert caplog.messages == []  # no decision is ever removed, and none can be backdated


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def metrics(port: int) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(ask(port, "/metrics")[1])
    samples = [sample for family in families for sample in family.samples]
    return {(one.name.removeprefix("recallflow_"), "/".join(one.labels.values())): one.value for one in samples}


def lags(found: dict[tuple[str, str], float]) -> list[float]:
    return [value for (name, _), value in found.items() if name == "consumer_lag_records"]


@pytest.mark.usefixtures("created")
def test_run_answers_counts_and_stops_on_sigterm(
    cli: Cli, start: Start, broker: Cluster, at: list[str], topics: Names, tmp_path: Path
) -> None:
    port = free_ports(None)[0]
    shape = ["--episode-gap-minutes", "5", "--epoch-ms", "50", "--cache-bytes", "64MiB"]
    where = ["--state-dir", tmp_path / "s", "--metrics-port", port]
    engine = start("run", *at, *flags(topics), *where, *shape)
    until(lambda: ask(port, "/livez")[0] == 200)
    until(lambda: ask(port, "/readyz")[0] == 200)

    memory = {"type": "message", "id": "m1", "content": "The bicycle is in the cellar.", "receipt": True}
    produce(broker, topics("memory.events"), memory, {"type": "message", "id": "m2"})
    until(lambda: metrics(port).get(("outputs_total", "dead_letter")) == 1)  # it is through: the query will see both
    produce(broker, topics("query.events"), {"type": "recall", "id": "q1", "query": "Where is the bicycle?"})
    until(lambda: metrics(port).get(("outputs_total", "response")) == 1)
    until(lambda: lags(metrics(port)) == [0] * 4)  # of two topics of two partitions
    found = metrics(port)
    assert found["records_total", topics("memory.events")] == 2
    assert found["records_total", topics("query.events")] == 1
    assert found["outputs_total", "receipt"] == 1
    assert found["dead_letters_total", "invalid_event"] == 1
    assert found["responses_total", "ok"] == found["response_processing_seconds_count", ""] == 1
    assert (found["in_flight_records", ""], found["waiting_queries", ""]) == (0, 0)
    assert found["hot_cache_bytes", ""] > 0

    ((_, response),) = values(broker, topics("recall.responses"))
    assert orjson.loads(response)["memories"][0]["id"] == "m1"
    listed = cli("dlq", "list", "--json", *at, *flags(topics, "--dead-letter-topic"))
    assert orjson.loads(listed.stdout)["error"]["code"] == "invalid_event"

    engine.send_signal(signal.SIGTERM)
    _, said = engine.communicate(timeout=30)
    assert engine.returncode == 0, said
    assert ask(port, "/livez")[0] == 0
    info = orjson.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)
    assert (info["partitions"], info["episode_gap_minutes"]) == (2, 5.0)


@pytest.mark.usefixtures("created")
def test_run_names_a_missing_topic_or_broker(
    cli: Cli, at: list[str], topics: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state-dir", str(tmp_path / "s")]
    for flag in FLAGS:
        done = cli("run", *at, *state, *flags(topics), flag, "nowhere")
        assert (done.returncode, done.stdout, "no topic nowhere" in done.stderr) == (1, "", True), done.stderr
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 0.1)
    done = cli("run", "--bootstrap-servers", "127.0.0.1:1", *state)
    assert (done.returncode, done.stdout, "127.0.0.1:1" in done.stderr) == (1, "", True), done.stderr


def test_demo_through_a_broker_equals_the_local_one(cli: Cli, at: list[str], broker: Cluster) -> None:
    def demo_topics() -> set[str]:
        found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=GIVE_UP_S).topics
        return {name for name in found if "demo" in name}

    def answers(*words: str) -> list[list[str]]:
        lines = cli("demo", "--json", *words).stdout.splitlines()
        return [[memory["id"] for memory in answer["memories"]] for answer in map(orjson.loads, lines)]

    before = demo_topics()
    assert answers("--kafka", *at) == answers() != []
    assert demo_topics() == before
