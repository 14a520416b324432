"""The commands that speak to Kafka, against a real broker."""

import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.brokers.options import KafkaOptions
from recallflow.flows.topic_checks import check_control
from tests.kafka.harness import FLAGS, GIVE_UP_S, Command, Names, Start, flags, read_topic, until


@pytest.fixture
def at(broker: Cluster) -> list[str]:
    return ["--bootstrap-servers", broker.bootstrap_servers]


@pytest.fixture
def created(command: Command, at: list[str], topics: Names) -> None:
    """All topics of this test's own, made by the command."""
    done = command("topics", "create", "--partitions", 2, *at, *flags(topics), *enrichment(topics))
    assert done.returncode == 0, done.stderr


def enrichment(topics: Names) -> list[str]:
    return ["--enrichment-topic", topics("enrichment.requests"), "--result-topic", topics("enrichment.results")]


def values(broker: Cluster, topic: str) -> list[tuple[bytes, bytes]]:
    """Key and value of every record of a topic, in offset order of each partition."""
    return [(message.key() or b"", message.value() or b"") for message in read_topic(broker, topic)]


def produce(broker: Cluster, topic: str, *events: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for event in events:
        producer.produce(topic, orjson.dumps({"tenant_id": "acme", "user_id": "ann"} | event), b"acme/ann")
    assert producer.flush(GIVE_UP_S) == 0


# ── topics, replay, dlq ───────────────────────────────────────────────────────────────────────────────────────────


def test_topics_are_created_once(
    command: Command, broker: Cluster, at: list[str], topics: Names, caplog: pytest.LogCaptureFixture
) -> None:
    named = [*at, *flags(topics), *enrichment(topics)]
    first, again = command("topics", "create", *named), command("topics", "create", *named)
    assert (first.returncode, again.returncode) == (0, 0)
    names = {*flags(topics)[1::2], *enrichment(topics)[1::2]}
    assert set(first.stdout.splitlines()) == {f"{name}: created" for name in names}
    assert set(again.stdout.splitlines()) == {f"{name}: was there" for name in names}
    check_control(KafkaOptions(broker.bootstrap_servers), topics("control.events"))
    assert caplog.messages == []  # no decision is ever removed, and none can be backdated


@pytest.mark.usefixtures("created")
def test_a_log_is_sent_once_however_often_the_command_runs(
    command: Command, broker: Cluster, at: list[str], topics: Names, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    lines = [
        orjson.dumps({"type": "message", "tenant_id": "log", "user_id": f"u{n % 3}", "content": f"line {n}"})
        for n in range(20)
    ]
    log.write_bytes(b"\n".join([*lines[:10], b"{broken", *lines[10:]]) + b"\n")
    replay, topic = ["replay", log, *at, *flags(topics, "--memory-topic")], topics("memory.events")
    first, again = command(*replay), command(*replay)
    assert (first.returncode, again.returncode) == (1, 0), first.stderr  # one line was refused
    assert f"20 events sent to {topic}; 1 refused" in first.stdout
    assert f"0 events sent to {topic}, 21 before were there from an earlier run" in again.stdout
    sent = [(key, orjson.loads(value)) for key, value in values(broker, topic)]
    assert sorted(event["content"] for _, event in sent) == sorted(f"line {n}" for n in range(20))
    assert all(key == f"log/{event['user_id']}".encode() for key, event in sent)
    assert len({event["id"] for _, event in sent}) == 20  # what is sent again after a kill applies once
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.rejects.jsonl", "state-home"]
    elsewhere = command("replay", log, *at, "--memory-topic", topics("query.events"))
    assert f"20 events sent to {topics('query.events')}; 1 refused" in elsewhere.stdout
    (reject,) = map(orjson.loads, (tmp_path / "log.jsonl.rejects.jsonl").read_bytes().splitlines())
    assert (reject["line"], reject["record"]) == (11, "{broken")


def test_a_log_is_not_sent_where_there_is_no_topic(
    command: Command, at: list[str], topics: Names, tmp_path: Path
) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"type": "message", "tenant_id": "a", "user_id": "u", "content": "x"}\n')
    done = command("replay", tmp_path / "log.jsonl", *at, *flags(topics, "--memory-topic"))
    assert done.returncode == 1
    assert f"no topic {topics('memory.events')}: create it" in done.stderr


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and body of a probe; status 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def metrics(port: int) -> dict[tuple[str, str], float]:
    """Samples by their name and the values of their labels."""
    families = text_string_to_metric_families(ask(port, "/metrics")[1])
    samples = [sample for family in families for sample in family.samples]
    return {(one.name.removeprefix("recallflow_"), "/".join(one.labels.values())): one.value for one in samples}


def lags(found: dict[tuple[str, str], float]) -> list[float]:
    return [value for (name, _), value in found.items() if name == "consumer_lag_records"]


@pytest.mark.usefixtures("created")
def test_a_run_on_topics_of_ones_own_says_what_it_does(
    command: Command, start: Start, broker: Cluster, at: list[str], topics: Names, tmp_path: Path
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
    listed = command("dlq", "list", "--json", *at, *flags(topics, "--dead-letter-topic"))
    assert orjson.loads(listed.stdout)["error"]["code"] == "invalid_event"

    engine.send_signal(signal.SIGTERM)
    _, said = engine.communicate(timeout=30)
    assert engine.returncode == 0, said
    assert ask(port, "/livez")[0] == 0
    info = orjson.loads(command("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)
    assert (info["partitions"], info["episode_gap_minutes"]) == (2, 5.0)


@pytest.mark.usefixtures("created")
@pytest.mark.parametrize("flag", list(FLAGS))
def test_a_missing_topic_is_named(command: Command, at: list[str], topics: Names, tmp_path: Path, flag: str) -> None:
    done = command("run", *at, "--state-dir", tmp_path / "s", *flags(topics), flag, "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no topic nowhere: create it (recallflow topics create)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_broker_is_one_clear_line(command: Command, tmp_path: Path) -> None:
    done = command("run", "--bootstrap-servers", "127.0.0.1:1", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot reach Kafka at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
