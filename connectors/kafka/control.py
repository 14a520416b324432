"""The control table: what each tenant's operator decided, read to its end before anything else, then followed live."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.metadata import Metadata, NewConsumer
from recallflow.decisions import History
from recallflow.errors import InvalidRecord, SourceError
from recallflow.parsing import parse_control

POLL_S = 0.1

_log = logging.getLogger(__name__)


class ControlTable:
    """Follows the control topic on a thread of its own. One per process."""

    def __init__(self, options: KafkaOptions, topic: str, new_consumer: NewConsumer = Consumer) -> None:
        """Returns once all that stands in the topic now is read. Raises SourceError."""
        self.history = History()
        self.error: Exception | None = None
        self._topic = topic
        self._stopping = threading.Event()
        self._unread: set[int] = set()
        self._partitions = 0
        self._added: deque[int] = deque()
        chosen = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        self._metadata = Metadata(options, chosen, new_consumer=new_consumer)
        try:
            self._assign()
            while self._unread:
                self._read()
        except BaseException:
            self._metadata.consumer.close()
            raise
        self._thread = threading.Thread(target=self._follow, daemon=True, name="recallflow-control")
        self._thread.start()

    def failure(self) -> Exception | None:
        """Why the topic cannot be followed any more: what is decided from here on would go unseen."""
        return self.error

    def grow(self, found: Mapping[str, Described]) -> None:
        """Has partitions that were added to the topic followed. Called from another thread."""
        count = found[self._topic].partitions
        self._added.extend(range(self._partitions, count))
        self._partitions = max(count, self._partitions)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._metadata.consumer.close()

    def _assign(self) -> None:
        numbers = self._metadata.partitions([self._topic])[self._topic]
        starts = {number: self._metadata.span(self._topic, number)[0] for number in numbers}
        self._partitions = len(numbers)
        self._unread.update(starts)
        parts = [TopicPartition(self._topic, *start) for start in starts.items()]
        self._metadata.consumer.incremental_assign(parts)

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                self._read()
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self.error = error

    def _read(self) -> None:
        try:
            while self._added:
                self._metadata.consumer.incremental_assign([TopicPartition(self._topic, self._added.popleft(), 0)])
            message = self._metadata.consumer.poll(POLL_S)
        except KafkaException as error:
            raise SourceError(f"{self._topic}: cannot be read: {error.args[0].str()}") from error
        self._metadata.complaints.check()
        if message is not None:
            self._take(message)

    def _take(self, message: Any) -> None:
        error: KafkaError | None = message.error()
        where = f"{self._topic}:{message.partition()}"
        if error is None:
            self._add(f"{where}:{message.offset()}", message)
        elif error.code() == KafkaError._PARTITION_EOF:
            # The event tells the end, not an offset: compaction leaves gaps, and so do transactions.
            self._unread.discard(message.partition())
        elif passes(error):
            _log.warning("%s: %s; retrying", where, error.str())
        else:
            raise SourceError(f"{where}: cannot be read: {error.str()}")

    def _add(self, position: str, message: Any) -> None:
        try:
            self.history.add(time_ms(message), parse_control(message.value() or b""))
        except InvalidRecord as error:
            _log.warning("%s is no control event: %s", position, error)
