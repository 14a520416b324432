"""Engines on the real broker that the tests of a session share. Each test has its own tenant or user."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from benchmarks.kafka_flow import create, own_topics
from recallflow.control import Control
from recallflow.credentials import ApiKeyText
from tests.kafka.harness import GIVE_UP_S, OnTopics
from tests.kafka.harness import produce as harness_produce
from tests.process import Process
from tests.unit.senders import api_key
from tools.broker import Cluster

LONG_AGO_MS = 60_000
PARTITIONS = 3
READY = " ready after "


@dataclass
class Engine(OnTopics):
    key: ApiKeyText | None = None

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
        where = ("--state-dir", str(state_dir), "--sync-ms", "50")
        log = state_dir.with_suffix(".log")
        with Process(log, "run", *where, *self.flags, *flags, environment=environment) as process:
            process.up()
            yield
            assert process.running(), process.said()


@pytest.fixture(scope="session")
def engine(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return an engine that asks for no credentials. Use a tenant of your own for decisions."""
    made = Engine(broker, own_topics())
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
