"""What came out: every record of the output topics, by which record it answers."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from benchmarks.crash.layout import GIVE_UP_S, OUTPUT_PARTITIONS
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.flows.topics import Topics
from recallflow.records import Position, Record

POLL_S = 0.02
AT_ONCE = {"fetch.wait.max.ms": 10}  # at the end of a topic the broker would hold a fetch back for half a second


class Key(NamedTuple):
    """An output's identity: the topic it is on, the record it comes from, its number among that record's outputs."""

    topic: str
    source: str
    number: int


class Found(NamedTuple):
    """An output as it stands in a topic, or should."""

    part: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


class Watcher:
    """Reads the output topics as they grow."""

    def __init__(self, servers: str, topics: Topics) -> None:
        self._options = KafkaOptions(servers)
        self._consumer = Consumer(self._options.consumer() | AT_ONCE)
        parts = [TopicPartition(t, n, OFFSET_BEGINNING) for t in topics.outputs() for n in range(OUTPUT_PARTITIONS)]
        self._consumer.assign(parts)
        self._topics = topics
        self.outputs: dict[Key, list[Found]] = defaultdict(list)
        self.count = 0
        self.answered: set[str] = set()

    def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Reads on until something holds. Whether it came to hold in time."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                return False
            self._take(self._consumer.consume(1_000, POLL_S))
        return True

    def drain(self) -> None:
        """Reads all there is."""
        with TopicReader(self._options) as reader:
            total = sum(end for _, end in reader.spans(self._topics.outputs()).values())
        if not self.until(lambda: self.count >= total, GIVE_UP_S):
            raise RuntimeError(f"only {self.count} of {total} outputs could be read")

    def close(self) -> None:
        self._consumer.close()

    def _take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if (error := message.error()) is not None:
                if not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise RuntimeError(f"cannot read the outputs: {error}")
                continue
            headers = tuple(message.headers())
            named = dict(headers)
            key = Key(message.topic(), named[SOURCE_HEADER].decode(), int(named[NUMBER_HEADER]))
            part = f"{message.topic()}:{message.partition()}"
            self.outputs[key].append(Found(part, message.key(), message.value(), headers))
            self.count += 1
            if message.topic() == self._topics.responses:
                self.answered.add(orjson.loads(message.value())["query_id"])


def read_topic(servers: str, topic: str, partitions: int) -> list[Record]:
    """All records of a topic, as the source gives them."""
    options = KafkaOptions(servers).consumer() | AT_ONCE | {"enable.partition.eof": True}
    records: list[Record] = []
    with closing(Consumer(options)) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        ended = 0
        while ended < partitions:
            for message in consumer.consume(1_000, POLL_S):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
    return sorted(records, key=lambda record: record.position)


def _record(message: Any) -> Record:
    position = Position(message.topic(), message.partition(), message.offset())
    headers = tuple(message.headers() or ())
    return Record(position, message.value() or b"", message.timestamp()[1], message.key(), headers=headers)
