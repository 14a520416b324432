"""The broker of tests and benchmarks is a Kafka that keeps what it acknowledged."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, Producer, TopicPartition

from benchmarks.broker import BOOTSTRAP_VARIABLE, HOST, Broker, Cluster, connect_or_start, is_free

ANSWER_TIMEOUT_S = 30.0
EPOCH_MS = 1


def produce(broker: Cluster, topic: str, values: list[bytes]) -> list[Message]:
    """The delivery reports, all of them acknowledged."""
    acknowledged: list[Message] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(
            topic,
            value,
            key=b"ann",
            headers=[("source", b"memory.events:0:7"), ("empty", b"")],
            timestamp=EPOCH_MS,
            on_delivery=lambda error, message: acknowledged.append(message) if error is None else None,
        )
    assert producer.flush(ANSWER_TIMEOUT_S) == 0
    assert [message.value() for message in acknowledged] == values
    return acknowledged


def consume(broker: Cluster, topic: str, count: int) -> list[Message]:
    """The first messages of partition 0, from its beginning."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(count, timeout=ANSWER_TIMEOUT_S)
    finally:
        consumer.close()
    assert [message.error() for message in messages] == [None] * count
    return messages


def test_a_message_comes_back_with_key_headers_and_append_time(broker: Cluster, topics: Callable[[str], str]) -> None:
    topic = topics("round-trip")
    broker.create_topics({topic: 1})
    before_ms = time.time_ns() // 1_000_000
    produce(broker, topic, [b"hello"])
    after_ms = time.time_ns() // 1_000_000

    [message] = consume(broker, topic, 1)
    assert (message.key(), message.value(), message.offset()) == (b"ann", b"hello", 0)
    assert message.headers() == [("source", b"memory.events:0:7"), ("empty", b"")]
    kind, appended_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= appended_ms <= after_ms


def test_topics_have_their_partitions_and_settings(broker: Cluster, topics: Callable[[str], str]) -> None:
    broker.create_topics({topics("many"): 8, topics("one"): 1}, {"message.timestamp.type": "CreateTime"})
    produce(broker, topics("one"), [b"old"])
    [message] = consume(broker, topics("one"), 1)
    assert message.timestamp()[1] == EPOCH_MS


@pytest.mark.parametrize("hard", [False, True], ids=["stopped", "killed"])
def test_what_was_acknowledged_outlives_the_process(broker: Cluster, topics: Callable[[str], str], hard: bool) -> None:
    topic = topics("kept")
    broker.create_topics({topic: 1})
    values = [b"%d" % number for number in range(1_000)]
    produce(broker, topic, values)
    broker.stop(hard)
    away = is_free(int(broker.bootstrap_servers.rpartition(":")[2]))
    broker.start()
    assert away
    produce(broker, topic, [b"after"])
    assert [message.value() for message in consume(broker, topic, 1_001)] == [*values, b"after"]


def test_somebody_elses_kafka_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "kafka.example:9092")
    with connect_or_start() as cluster:
        assert cluster.bootstrap_servers == "kafka.example:9092"
        with pytest.raises(RuntimeError, match=r"kafka\.example:9092 cannot be stopped.*unset KAFKA_BOOTSTRAP_SERVERS"):
            cluster.stop(hard=True)
        with pytest.raises(RuntimeError, match="cannot be started"):
            cluster.start()


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"port {port} of {HOST} is taken"):
            Broker(port)


@pytest.mark.parametrize("missing", ["java", "mvn"])
def test_without_java_or_maven_both_ways_are_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if missing != "java":
        (tmp_path / "java").touch(mode=0o755)
    with pytest.raises(RuntimeError, match=f"`{missing}`.*KAFKA_BOOTSTRAP_SERVERS.*Java 17 and Maven"), Broker():
        pass
