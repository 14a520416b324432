"""What there is: topics, their partitions, and where each begins and ends. Asked again while the broker says to try
again, as it does for a topic that was made a moment ago."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import SourceError

GIVE_UP_S = 10.0
TRY_AGAIN_S = 0.1


class Metadata:
    """Questions to the brokers. Raises SourceError where they cannot be reached or a topic is missing."""

    def __init__(self, options: KafkaOptions, consumer: Any) -> None:
        self._options = options
        self._consumer = consumer

    @classmethod
    @contextmanager
    def open(cls, options: KafkaOptions) -> Iterator["Metadata"]:
        consumer = Consumer(options.consumer())
        try:
            yield cls(options, consumer)
        finally:
            consumer.close()

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """The partition numbers of each topic."""
        found = self._asked(lambda: self._consumer.list_topics(timeout=GIVE_UP_S)).topics
        if missing := [topic for topic in topics if topic not in found or found[topic].error is not None]:
            raise SourceError(f"no topic {' and no topic '.join(missing)}: create it (recallflow topics create)")
        return {topic: sorted(found[topic].partitions) for topic in topics}

    def span(self, topic: str, number: int) -> tuple[int, int]:
        """First offset and end of a partition."""
        part = TopicPartition(topic, number)
        span: tuple[int, int] = self._asked(lambda: self._consumer.get_watermark_offsets(part, timeout=GIVE_UP_S))
        return span

    def _asked(self, question: Callable[[], Any]) -> Any:
        give_up_s = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return question()
            except KafkaException as error:
                reason = error.args[0]
                passing = reason.retriable() or reason.code() == KafkaError._UNKNOWN_PARTITION  # as after its restart
                if not passing or time.monotonic() > give_up_s:
                    servers = self._options.bootstrap_servers
                    raise SourceError(f"cannot reach Kafka at {servers}: {reason.str()}") from error
            time.sleep(TRY_AGAIN_S)
