"""What there is: topics, their partitions, and where each begins and ends. Asked again while the broker says to try
again, as it does for a topic that was made a moment ago."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import Complaints, passes
from recallflow.errors import SourceError

GIVE_UP_S = 10.0
ASK_S = 2.0  # so often it is seen whether Kafka refuses us
TRY_AGAIN_S = 0.1

NewConsumer = Callable[..., Any]  # of a configuration: confluent_kafka.Consumer, whose stubs are vague


class Metadata:
    """Questions to the brokers. Raises SourceError where they cannot be reached, refuse us, or a topic is missing.
    `consumer` is there for reading what was found; `chosen` are further options of it. Gives up after
    `give_up_s`, or once `stopping` is set."""

    def __init__(
        self,
        options: KafkaOptions,
        chosen: Mapping[str, object] | None = None,
        give_up_s: float = GIVE_UP_S,
        new_consumer: NewConsumer = Consumer,
        stopping: threading.Event | None = None,
    ) -> None:
        self._options = options
        self._give_up_s = give_up_s
        self._stopping = stopping or threading.Event()
        self.complaints = Complaints()
        self.consumer: Any = new_consumer(options.consumer() | dict(chosen or {}) | {"error_cb": self.complaints})

    @classmethod
    @contextmanager
    def open(
        cls,
        options: KafkaOptions,
        chosen: Mapping[str, object] | None = None,
        give_up_s: float = GIVE_UP_S,
        new_consumer: NewConsumer = Consumer,
        stopping: threading.Event | None = None,
    ) -> Iterator["Metadata"]:
        metadata = cls(options, chosen, give_up_s, new_consumer, stopping)
        try:
            yield metadata
        finally:
            metadata.consumer.close()

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """The partition numbers of each topic."""
        found = self.asked(lambda: self._listed(topics))
        if missing := [topic for topic in topics if topic not in found or found[topic].error is not None]:
            raise SourceError(f"no topic {' and no topic '.join(missing)}: create it (recallflow topics create)")
        return {topic: sorted(found[topic].partitions) for topic in topics}

    def cluster_id(self) -> str:
        """What the cluster calls itself."""
        found: str = self.asked(lambda: self.consumer.list_topics(timeout=ASK_S).cluster_id)
        return found

    def _listed(self, topics: Sequence[str]) -> Any:
        found = self.consumer.list_topics(timeout=ASK_S).topics
        errors = [found[topic].error for topic in topics if topic in found]
        for error in errors:
            if error is not None and passes(error):
                raise KafkaException(error)
        return found

    def span(self, topic: str, number: int) -> tuple[int, int]:
        """First offset and end of a partition."""
        part = TopicPartition(topic, number)
        span: tuple[int, int] = self.asked(lambda: self.consumer.get_watermark_offsets(part, timeout=ASK_S))
        return span

    def asked(self, question: Callable[[], Any]) -> Any:
        """The answer to a question, asked again while it is worth it."""
        until_s = time.monotonic() + self._give_up_s
        while True:
            try:
                return question()
            except KafkaException as error:
                reason = error.args[0]
                self.consumer.poll(0)  # hands over complaints; nothing is assigned yet
                self.complaints.check()
                passing = (
                    passes(reason) or reason.code() == KafkaError._UNKNOWN_PARTITION
                )  # as after a broker's restart
                if not passing or time.monotonic() > until_s or self._stopping.is_set():
                    servers = self._options.bootstrap_servers
                    raise SourceError(f"cannot reach Kafka at {servers}: {reason.str()}") from error
            time.sleep(TRY_AGAIN_S)
