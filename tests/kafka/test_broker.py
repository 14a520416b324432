"""The broker of tests and benchmarks keeps what it acknowledged."""

import time
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, Producer, TopicPartition

from benchmarks.broker import Broker, Cluster, is_free

ANSWER_TIMEOUT_S = 30.0
EPOCH_MS = 1


def produce(broker: Cluster, topic: str, values: list[bytes]) -> None:
    acknowledged: list[bytes | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(
            topic,
            value,
            key=b"ann",
            headers=[("source", b"memory.events:0:7"), ("empty", b"")],
            timestamp=EPOCH_MS,
            on_delivery=lambda error, message: acknowledged.append(message.value()) if error is None else None,
        )
    assert producer.flush(ANSWER_TIMEOUT_S) == 0
    assert acknowledged == values


def consume(broker: Cluster, topic: str, count: int) -> list[Message]:
    """Return the first messages of partition 0."""
    with closing(Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(count, timeout=ANSWER_TIMEOUT_S)
    assert [message.error() for message in messages] == [None] * count
    return messages


def test_acknowledged_messages_survive_a_kill(own_broker: Broker) -> None:
    own_broker.create_topics({"kept": 1, "others": 8})
    own_broker.create_topics({"old": 1}, {"message.timestamp.type": "CreateTime"})
    before_ms = time.time_ns() // 1_000_000
    values = [b"%d" % number for number in range(1_000)]
    produce(own_broker, "kept", values)
    produce(own_broker, "old", [b"old"])
    after_ms = time.time_ns() // 1_000_000
    own_broker.stop(hard=True)
    away = is_free(int(own_broker.bootstrap_servers.rpartition(":")[2]))
    own_broker.start()
    assert away
    produce(own_broker, "kept", [b"after"])
    messages = consume(own_broker, "kept", 1_001)
    assert [message.value() for message in messages] == [*values, b"after"]
    assert (messages[0].key(), messages[0].offset()) == (b"ann", 0)
    assert messages[0].headers() == [("source", b"memory.events:0:7"), ("empty", b"")]
    kind, appended_ms = messages[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= appended_ms <= after_ms
    assert consume(own_broker, "old", 1)[0].timestamp()[1] == EPOCH_MS
