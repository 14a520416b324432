"""Kafka as far as our consumers ask it, in this process: topics that tests append to, and consumers of them."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, TopicPartition

from recallflow.connectors.kafka.messages import Outgoing

GIVE_UP_S = 30.0


def message(
    topic: str, partition: int, offset: int, value: bytes | None = b"", key: bytes | None = None,
    append_ms: int = 0, *, logged: bool = True, headers: Sequence[tuple[str, bytes | None]] = (),
) -> Any:  # fmt: skip
    time = TIMESTAMP_LOG_APPEND_TIME if logged else TIMESTAMP_CREATE_TIME, append_ms
    return Message(topic, partition, offset, key, value, headers=[*headers] or None, timestamp=time)


@dataclass
class Log:
    """One partition. It may begin above 0, and end behind its last record."""

    messages: list[Any] = field(default_factory=list)
    low: int = 0
    end: int = 0


@dataclass
class Listed:
    partitions: dict[int, None]
    error: None = None


class FakeKafka:
    def __init__(self, **partitions: int) -> None:
        self.topics = {topic: [Log() for _ in range(count)] for topic, count in partitions.items()}
        self.consumers: list[FakeConsumer] = []
        self.changed = threading.Condition()

    def consumer(self, options: Mapping[str, object]) -> "FakeConsumer":
        self.consumers.append(FakeConsumer(self, options))
        return self.consumers[-1]

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None, **more: Any) -> Any:
        with self.changed:
            log = self.topics[topic][partition]
            made = message(topic, partition, more.pop("at", log.end), value, key, **more)
            log.messages.append(made)
            log.end = made.offset() + 1
            self.changed.notify_all()
        return made

    def append_output(self, topic: str, partition: int, source: str, at_ms: int = 500) -> None:
        """Append an output of the record at a position."""
        headers = tuple((name, value or b"") for name, value in Outgoing(source, 0, None, None).all_headers)
        self.append(topic, partition, b"{}", append_ms=at_ms, headers=headers)

    def grow(self, topic: str, partitions: int) -> None:
        self.topics[topic] += [Log() for _ in range(partitions - len(self.topics[topic]))]

    def fail(self, topic: str, partition: int, code: int) -> None:
        with self.changed:
            log = self.topics[topic][partition]
            log.messages.append(Message(topic, partition, log.end, error=KafkaError(code)))
            self.changed.notify_all()

    def end(self, topic: str, partition: int) -> int:
        return self.topics[topic][partition].end

    def await_(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        with self.changed:
            while not true():
                assert time.monotonic() < deadline_s
                self.changed.wait(0.01)


class FakeConsumer:
    """Reads partition after partition to its end, as a broker's answers come."""

    def __init__(self, kafka: FakeKafka, options: Mapping[str, object]) -> None:
        self.options = options
        self.closed = False
        self.looked_up: list[str] = []
        self.most = 1_000_000  # so many come at once
        self.given: dict[tuple[str, int], int] | None = None  # the place in each log, once something is assigned
        self.paused: set[tuple[str, int]] = set()  # also after a partition was removed, as in librdkafka
        self._kafka = kafka
        self._ended: dict[tuple[str, int], int] = {}

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:  # noqa: ARG002 - as librdkafka has it
        if topic is not None:
            self.looked_up.append(topic)
        topics = {topic: Listed(dict.fromkeys(range(len(logs)))) for topic, logs in self._kafka.topics.items()}
        return type("Metadata", (), {"topics": topics})

    def get_watermark_offsets(self, part: TopicPartition, **_: object) -> tuple[int, int]:
        log = self._kafka.topics[part.topic][part.partition]
        return log.low, log.end

    def offsets_for_times(self, parts: Sequence[TopicPartition], **_: object) -> list[TopicPartition]:
        """In place of an offset, each part has a time; -1 comes back for none so late."""
        found = []
        for part in parts:
            messages = self._kafka.topics[part.topic][part.partition].messages
            at = next((message.offset() for message in messages if message.timestamp()[1] >= part.offset), -1)
            found.append(TopicPartition(part.topic, part.partition, at))
        return found

    def assign(self, parts: Sequence[TopicPartition]) -> None:
        self.given, self._ended = {}, {}
        self.incremental_assign(parts)

    def incremental_assign(self, parts: Sequence[TopicPartition]) -> None:
        with self._kafka.changed:
            self.given = self.given or {}
            for part in parts:
                assert (part.topic, part.partition) not in self.given  # librdkafka refuses it
                messages = self._kafka.topics[part.topic][part.partition].messages
                self.given[part.topic, part.partition] = sum(message.offset() < part.offset for message in messages)

    def incremental_unassign(self, parts: Sequence[TopicPartition]) -> None:
        with self._kafka.changed:
            for part in parts:
                (self.given or {}).pop((part.topic, part.partition))
                self._ended.pop((part.topic, part.partition), None)

    def pause(self, parts: Sequence[TopicPartition]) -> None:
        self.paused |= {(part.topic, part.partition) for part in parts}

    def resume(self, parts: Sequence[TopicPartition]) -> None:
        self.paused -= {(part.topic, part.partition) for part in parts}

    def poll(self, timeout: float) -> Any:
        with self._kafka.changed:
            message = self._next()
            if message is None:
                self._kafka.changed.notify_all()
                self._kafka.changed.wait(min(timeout, 0.01))
            return message

    def consume(self, count: int, timeout: float) -> list[Message]:  # noqa: ARG002
        with self._kafka.changed:
            found: list[Message] = []
            while len(found) < min(count, self.most) and (message := self._next()) is not None:
                found.append(message)
            return found

    def close(self) -> None:
        self.closed = True

    def _next(self) -> Any:
        given = self.given or {}
        for part, place in given.items():
            if part in self.paused:
                continue
            log = self._kafka.topics[part[0]][part[1]]
            if place < len(log.messages):
                given[part] += 1
                return log.messages[place]
            if self.options.get("enable.partition.eof") and self._ended.get(part) != log.end:
                self._ended[part] = log.end
                return Message(*part, log.end, error=KafkaError(KafkaError._PARTITION_EOF))
        return None
