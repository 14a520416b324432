"""The control table: what each tenant's operator decided, read to its end before anything else, and kept up to date."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.topic_reader import NewConsumer, TopicReader
from recallflow.decisions import History
from recallflow.errors import InvalidRecord
from recallflow.parsing import parse_control

POLL_S = 0.1

_log = logging.getLogger(__name__)


class ControlTable:
    """Reads the control topic on a thread of its own. One per process."""

    def __init__(
        self,
        options: KafkaOptions,
        topic: str,
        new_consumer: NewConsumer = Consumer,
        history: History | None = None,
    ) -> None:
        """Returns once all that stands in the topic now is read, into `history` if it is given. Raises SourceError."""
        self.history = History() if history is None else history
        self._error: Exception | None = None
        self._topic = topic
        self._stopping = threading.Event()
        self._added: deque[int] = deque()
        self._reader = TopicReader(options, new_consumer=new_consumer)
        try:
            begins = {number: low for (_, number), (low, _) in self._reader.spans([topic]).items()}
            for begin in begins.items():
                self._reader.add(topic, *begin)
            while not self._reader.ends.keys() >= begins.keys():
                self._read()
        except BaseException:
            self._reader.close()
            raise
        self._partitions = len(begins)
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-control")
        self._thread.start()

    def failure(self) -> Exception | None:
        """Why the topic cannot be read on: what is decided from here on would go unseen."""
        return self._error

    def grow(self, found: Mapping[str, Described]) -> None:
        """Has partitions that were added to the topic read, too. Called from another thread."""
        count = found[self._topic].partitions
        self._added.extend(range(self._partitions, count))
        self._partitions = max(count, self._partitions)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                while self._added:
                    self._reader.add(self._topic, self._added.popleft(), 0)
                self._read()
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self._error = error

    def _read(self) -> None:
        message: Any = self._reader.read(POLL_S)
        if message is None:
            return
        try:
            self.history.add(time_ms(message), parse_control(message.value() or b""))
        except InvalidRecord as error:
            place = f"{self._topic}:{message.partition()}:{message.offset()}"
            _log.warning("%s is no control event: %s", place, error)
