"""What an engine says of itself while it does not know all yet: after a start, and when the brokers were away."""

import re
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.broker import HOST, Broker, Cluster, free_ports
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import create_topics

GIVE_UP_S = 240.0  # on a busy machine; nothing waits for it where all goes well
MANY = 3_000
FLAGS = ("memory", "query", "control", "response", "receipt", "dead-letter")
KEY = b"acme/ann"


class Engine:
    """Topics of one partition, an engine on them, and what it says."""

    def __init__(self, servers: str, folder: Path, start: Callable[..., Any]) -> None:
        suffix = uuid.uuid4().hex[:12]
        self.topics = {name: f"{name}-{suffix}" for name in FLAGS}
        create_topics(KafkaOptions(servers), dict.fromkeys(self.topics.values(), 1), {}, 1)
        self._servers, self._folder, self._start = servers, folder, start
        self._port = free_ports(None)[0]
        self._producer = Producer({"bootstrap.servers": servers})
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
        self._consumer.assign([TopicPartition(self.topics["response"], 0, 0)])

    def start(self, *options: str) -> None:
        named = [word for name, topic in self.topics.items() for word in (f"--{name}-topic", topic)]
        where = ["--bootstrap-servers", self._servers, "--state-dir", self._folder, "--metrics-port", self._port]
        self.process = self._start("run", *where, *named, "--epoch-ms", "100", *options)

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=GIVE_UP_S)
        return self.process.returncode, said

    def remember(self, numbers: range, producer: Producer | None = None) -> None:
        producer = producer or self._producer
        for number in numbers:
            event = {"type": "memory", "tenant_id": "acme", "user_id": "ann", "id": f"m{number}", "content": "a bike"}
            producer.produce(self.topics["memory"], orjson.dumps(event), KEY)
            producer.poll(0)
        assert producer.flush(GIVE_UP_S) == 0

    def ask(self, memory_id: str) -> None:
        event = {"type": "memory.get", "tenant_id": "acme", "user_id": "ann", "memory_id": memory_id}
        self._producer.produce(self.topics["query"], orjson.dumps(event), KEY)
        assert self._producer.flush(GIVE_UP_S) == 0

    def answer(self) -> Any:
        message = self._consumer.poll(GIVE_UP_S)
        assert message is not None
        assert message.error() is None
        return orjson.loads(message.value() or b"")

    def silent(self) -> bool:
        """Whether no further response is there."""
        return self._consumer.poll(1.0) is None

    def probe(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return 0, ""

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        while not true():
            assert time.monotonic() < deadline_s
            assert self.process.poll() is None, self.process.communicate()[1]

    def until_ready(self) -> set[str]:
        """Waits until it is ready; what it said meanwhile."""
        said: set[str] = set()

        def ready() -> bool:
            status, body = self.probe("/readyz")
            if status == 503:
                said.add(re.sub(r"\d[\d,]*", "N", body.strip()))
            return status == 200

        self.until(ready)
        return said

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def engine(broker: Cluster, tmp_path: Path, start: Callable[..., Any]) -> Iterator[Engine]:
    with closing(Engine(broker.bootstrap_servers, tmp_path / "s", start)) as made:
        yield made


def knows(answer: dict[str, Any]) -> bool:
    """Whether the memory was found; it says so truly, or that more is to come."""
    warned = [warning["code"] for warning in answer.get("warnings", [])] == ["catching_up"]
    if answer["status"] == "error":
        assert warned, answer
        return False
    assert answer["status"] == ("degraded" if warned else "ok"), answer
    return True


# What is in the way before anything is read: what these tests say nothing of.
JOINING = {
    "not ready: starting",
    "not ready: not a member of the deployment yet",
    "not ready: partitions N are being opened",
}


def test_no_answer_says_ok_and_knows_half(engine: Engine) -> None:
    engine.start()
    engine.until_ready()
    assert engine.stop()[0] == 0
    engine.remember(range(MANY))
    engine.ask(f"m{MANY - 1}")
    engine.ask("m0")
    engine.start()
    said = engine.until_ready()
    knows(engine.answer())
    knows(engine.answer())
    assert said - JOINING <= {
        "not ready: catching up, N records of memory to go",
        "not ready: catching up, how many records of memory are to go is not known yet",
    }
    assert any("catching up" in one for one in said)
    engine.ask(f"m{MANY - 1}")
    answer = engine.answer()
    assert (answer["status"], answer.get("warnings", [])) == ("ok", [])
    assert engine.silent()  # each was answered once
    code, log = engine.stop()
    assert code == 0, log
    assert re.search(rf"ready after [\d.]+ s: {MANY:,} records caught up", log), log


def test_it_may_be_told_to_serve_meanwhile(engine: Engine) -> None:
    engine.remember(range(MANY))
    engine.start("--serve-while-catching-up")
    assert engine.until_ready() <= JOINING
    metrics = engine.probe("/metrics")[1]
    assert "recallflow_connected 1.0" in metrics


def test_records_that_nobody_gets_keep_it_from_nothing(engine: Engine, broker: Cluster) -> None:
    """The log ends with an aborted transaction, and with the marker that says so."""
    engine.remember(range(3))
    transactional = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
    producer = Producer(transactional)
    producer.init_transactions(30)
    producer.begin_transaction()
    engine.remember(range(3, 8), producer)
    producer.abort_transaction(30)
    engine.start()
    engine.until_ready()
    lag = f'recallflow_consumer_lag_records{{partition="0",topic="{engine.topics["memory"]}"}} 0.0'
    engine.until(lambda: lag in engine.probe("/metrics")[1])  # it is as old as a second


def test_an_outage_is_seen_and_made_up_for(tmp_path: Path, start: Callable[..., Any]) -> None:
    with Broker() as broker, closing(Engine(broker.bootstrap_servers, tmp_path / "s", start)) as engine:
        engine.start()
        engine.until_ready()
        engine.remember(range(5))
        broker.stop(hard=True)
        engine.until(lambda: engine.probe("/readyz") == (503, "not ready: Kafka is away\n"))
        assert "recallflow_connected 0.0" in engine.probe("/metrics")[1]
        broker.start()
        engine.until_ready()
        engine.ask("m4")
        answer = engine.answer()
        assert (answer["status"], answer.get("warnings", [])) == ("ok", [])
        broker.stop(hard=True)
        engine.until(lambda: "recallflow_connected 0.0" in engine.probe("/metrics")[1])
        code, log = engine.stop()
        assert code in (0, 1), log
        assert len(log.splitlines()) < 25, log
        assert "Kafka is away" in log
        assert "Kafka is back after" in log
