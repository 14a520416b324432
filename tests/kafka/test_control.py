"""The control table on a real broker."""

import time
from collections.abc import Callable

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.control import ControlTable
from recallflow.control import Rollout
from recallflow.errors import SourceError
from tests.kafka.harness import until

Names = Callable[[str], str]


def rollout(mode: str) -> bytes:
    return orjson.dumps({"type": "graph.rollout", "tenant_id": "acme", "name": "graph", "mode": mode})


def produce(broker: Cluster, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value=value, key=b"acme/graph.rollout/graph")
    assert producer.flush(10) == 0


def test_what_stands_in_the_topic_is_there_from_the_start_and_news_follow(broker: Cluster, topics: Names) -> None:
    topic = topics("control.events")
    broker.create_topics({topic: 1})
    produce(broker, topic, rollout("shadow"), b"no JSON", rollout("canary"))
    table = ControlTable(KafkaOptions(broker.bootstrap_servers), topic)
    try:
        now_ms = time.time_ns() // 1_000_000 + 60_000
        found = table.history.as_of("acme", "graph.rollout", "graph", now_ms)
        assert isinstance(found, Rollout)
        assert found.mode == "canary"
        produce(broker, topic, rollout("off"))
        until(lambda: getattr(table.history.as_of("acme", "graph.rollout", "graph", now_ms), "mode", "") == "off")
    finally:
        table.close()


def test_an_empty_topic_is_read_at_once(broker: Cluster, topics: Names) -> None:
    topic = topics("control.events")
    broker.create_topics({topic: 2})
    ControlTable(KafkaOptions(broker.bootstrap_servers), topic).close()


def test_a_missing_topic_is_named(broker: Cluster, topics: Names) -> None:
    with pytest.raises(SourceError, match="create it"):
        ControlTable(KafkaOptions(broker.bootstrap_servers), topics("nowhere"))
