"""Engines on the real broker that the tests of a session share. Each test has its own tenant or user."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster, free_ports
from benchmarks.kafka_flow import create, own_topics
from recallflow.control import Control
from recallflow.credentials import ApiKeyText
from tests.kafka.harness import GIVE_UP_S, OnTopics, watched
from tests.kafka.harness import produce as harness_produce
from tests.starts import COMMAND, fork_server
from tests.unit.senders import api_key

LONG_AGO_MS = 60_000
PARTITIONS = 3
SESSION_ABORT_S = 3_600.0  # an engine runs until all tests of a worker are done
READY = " ready after "


@dataclass
class Engine(OnTopics):
    metrics_port: int = 0
    key: ApiKeyText | None = None
    log: list[str] = field(default_factory=list)

    @property
    def flags(self) -> list[str]:
        return self.options()

    def produce(self, topic: str, key: str, *values: dict[str, Any] | bytes) -> None:
        harness_produce(self.broker, topic, *values, key=key)

    def decide(self, event: Control, at_ms: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        value = event.model_dump_json(exclude_none=True).encode()
        producer.produce(self.topics.control, value, event.record_key, timestamp=at_ms)
        assert producer.flush(GIVE_UP_S) == 0

    @contextmanager
    def running(self, state_dir: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[None]:
        """Run the engine, from when it is ready until the end of the block; it is killed then."""
        port = [] if not self.metrics_port else ["--metrics-port", str(self.metrics_port)]
        words = ["run", "--create", "--state-dir", str(state_dir), "--sync-ms", "50", *port, *self.flags, *flags]
        process = fork_server().start(COMMAND, words, environment, text=True)
        with watched(process, SESSION_ABORT_S):
            assert process.stderr is not None
            for line in process.stderr:
                self.log.append(line)
                if READY in line:
                    break
            assert process.poll() is None, self.log
            rest = threading.Thread(target=self.log.extend, args=(process.stderr,), daemon=True)
            rest.start()
            yield
            assert process.poll() is None, self.log
            process.kill()
            process.wait()
            rest.join()


@pytest.fixture(scope="session")
def engine(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return an engine that asks for no credentials. Use a tenant of your own for decisions."""
    made = Engine(broker, own_topics(), free_ports(None)[0])
    create(broker, made.topics, PARTITIONS)
    with made.running(tmp_path_factory.mktemp("engine") / "state"):
        yield made


@pytest.fixture(scope="session")
def guarded_engine(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return an engine with a reply topic, where each record needs a key; `key` is one of the tenant acme."""
    topics = replace(own_topics(), replies=(f"replies-{uuid.uuid4().hex[:12]}",))
    made = Engine(broker, topics, key=ApiKeyText.new())
    broker.create_topics(dict.fromkeys((topics.memory, topics.queries, *topics.outputs()), PARTITIONS))
    broker.create_topics({topics.control: 1}, {"message.timestamp.type": "CreateTime"})
    assert made.key is not None
    made.decide(api_key(made.key), time.time_ns() // 1_000_000 - LONG_AGO_MS)
    folder = tmp_path_factory.mktemp("guarded")
    config = folder / "recallflow.toml"
    config.write_text('[auth]\nmode = "required"\n')
    with made.running(folder / "state", "--config", str(config), "--reply-topic", *topics.replies):
        yield made


@pytest.fixture
def deserted(broker: Cluster) -> Engine:
    made = Engine(broker, own_topics())
    create(broker, made.topics, partitions=1)
    return made


@pytest.fixture(scope="module")
def deserted_topics(broker: Cluster) -> Engine:
    """Return topics of a module without an engine, those of the enrichment flow among them."""
    made = Engine(broker, own_topics())
    create(broker, made.topics, partitions=1)
    broker.create_topics({made.topics.enrichment: 1, made.topics.results: 1})
    return made


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex[:12]}"
