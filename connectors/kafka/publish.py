"""Sending events to a topic in bulk: checked deliveries, and a callback that says how far it got."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import tell_outage
from recallflow.connectors.kafka.configs import ask_configs, producer_bounds
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.outgoing import TRIMMINGS_BYTES
from recallflow.errors import SinkError

FLUSH_S = 60.0
FULL_QUEUE_WAIT_S = 0.1
LINGER_MS = 5  # bulk: fuller batches are worth a wait


class Publisher:
    """Sends records in order. `reached(n)` tells that the first n records given were all acknowledged."""

    def __init__(self, options: KafkaOptions, topic: str, reached: Callable[[int], None]) -> None:
        """Raises SourceError where Kafka cannot be reached, refuses us, or has no such topic."""
        with Metadata.open(options) as metadata:
            metadata.partitions([topic])
        self.most_bytes = ask_configs(options, [topic])[topic].most_bytes
        chosen = {"linger.ms": LINGER_MS, "error_cb": tell_outage}
        self._producer = Producer(options.producer() | producer_bounds({topic: self.most_bytes}) | chosen)
        self._topic = topic
        self._reached = reached
        self._error: KafkaError | None = None
        self._given = 0
        self._acknowledged: set[int] = set()
        self._settled = 0

    def fits(self, key: bytes, value: bytes) -> bool:
        """Whether the topic takes such a record."""
        return len(key) + len(value) + TRIMMINGS_BYTES <= self.most_bytes

    def send(self, key: bytes, value: bytes) -> None:
        """Hands over one record that fits. Raises SinkError for one that was not delivered."""
        number = self._given
        self._given += 1

        def report(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                self._error = error
            else:
                self._settle(number)

        while True:
            self._check()
            try:
                self._producer.produce(self._topic, value=value, key=key, on_delivery=report)
            except BufferError:
                self._producer.poll(FULL_QUEUE_WAIT_S)
            else:
                self._producer.poll(0)
                return

    def pass_over(self) -> None:
        """Counts a record that is not sent."""
        self._given += 1
        self._settle(self._given - 1)

    def _settle(self, number: int) -> None:
        """Settles a record; acknowledgements of different partitions come in any order."""
        self._acknowledged.add(number)
        before = self._settled
        while self._settled in self._acknowledged:
            self._acknowledged.remove(self._settled)
            self._settled += 1
        if self._settled != before:
            self._reached(self._settled)

    def close(self) -> None:
        """Waits for every acknowledgement. Raises SinkError."""
        left = self._producer.flush(FLUSH_S)
        self._check()
        if left:
            raise SinkError(f"{left} records were not acknowledged within {FLUSH_S:.0f} s; run the same command again")

    def _check(self) -> None:
        if self._error is not None:
            raise SinkError(f"a record was not delivered: {self._error.str()}; run the same command again")
