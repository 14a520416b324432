"""Sending events to a topic in bulk, and a callback that says how far it got."""

from collections.abc import Callable

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import ask_configs
from recallflow.connectors.kafka.messages import Headers
from recallflow.connectors.kafka.outgoing import TRIMMINGS_BYTES, headers_bytes
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.sender import Sender
from recallflow.connectors.kafka.topic_reader import TopicReader

FLUSH_S = 60.0
LINGER_MS = 5  # bulk: fuller batches are worth a wait


class Publisher:
    """Sends records in order. `reached(n)` is called once the first n records given were all acknowledged."""

    def __init__(
        self, options: KafkaOptions, topic: str, reached: Callable[[int], None], credentials: Headers = ()
    ) -> None:
        """`credentials`: headers of each record. Raises SourceError where Kafka cannot be reached, refuses us, or has
        no such topic."""
        with TopicReader(options) as reader:
            reader.partitions([topic])
        self.most_bytes = ask_configs(options, [topic])[topic].most_bytes
        chosen = {"linger.ms": LINGER_MS}
        self._sender = Sender(options, {topic: self.most_bytes}, then="run the same command again", chosen=chosen)
        self._topic = topic
        self._credentials = credentials
        self._trimmings_bytes = TRIMMINGS_BYTES + headers_bytes(credentials)
        self._reached = reached
        self._given = 0
        self._acknowledged: set[int] = set()  # of those after the first that is not
        self._through = 0  # so many from the first on are acknowledged

    def fits(self, key: bytes, value: bytes) -> bool:
        """Whether the topic takes such a record."""
        return len(key) + len(value) + self._trimmings_bytes <= self.most_bytes

    def send(self, key: bytes, value: bytes) -> None:
        """Hands over one record that fits. Raises SinkError where a record was not delivered."""
        number = self._given
        self._given += 1
        self._sender.send(
            self._topic, value, key, headers=self._credentials, delivered=lambda _: self._acknowledge(number)
        )
        self._sender.poll()

    def pass_over(self) -> None:
        """Counts a record that is not sent."""
        self._given += 1
        self._acknowledge(self._given - 1)

    def _acknowledge(self, number: int) -> None:
        """Acknowledgements of different partitions come in any order."""
        self._acknowledged.add(number)
        before = self._through
        while self._through in self._acknowledged:
            self._acknowledged.remove(self._through)
            self._through += 1
        if self._through != before:
            self._reached(self._through)

    def flush(self) -> None:
        """Waits for every acknowledgement. Raises SinkError."""
        self._sender.flush(Patience(FLUSH_S))
