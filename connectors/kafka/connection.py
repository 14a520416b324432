"""Whether the brokers are there, asked again and again; and where the memory topic ends when they are back."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.topic_reader import TopicReader

ASK_EVERY_S = 0.5
ASK_S = 2.0

_log = logging.getLogger(__name__)


class Connection:
    """Asks on a thread of its own. Sets the goals of `catch_up`: at the start, and after an outage."""

    def __init__(
        self, options: KafkaOptions, topic: str, catch_up: CatchUp, begun: Callable[[], bool] = lambda: True
    ) -> None:
        """Returns once it is known where the topic ends. `begun`: whether anything is read yet. Raises SourceError."""
        self.connected = True
        self._topic = topic
        self._catch_up, self._begun = catch_up, begun
        self._reader = TopicReader(options)
        self._stopping = threading.Event()
        self._lost_s = self._aimed_s = 0.0
        self._passed = 0  # records caught up before the last aim
        self._logged = False  # that all is caught up
        try:
            self._aim({number: end for (_, number), (_, end) in self._reader.spans([topic]).items()})
        except BaseException:
            self._reader.close()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-connection")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self._stopping.wait(ASK_EVERY_S):
            self._reader.consumer.poll(0)  # hands over complaints; nothing is assigned
            try:
                numbers = self._partitions()
                if not self.connected:
                    self._aim({number: self._end(number) for number in numbers})
            except KafkaException as error:
                if self.connected:
                    self._lose(error.args[0])
                continue
            if not self.connected:
                self.connected = True
                away_s = time.monotonic() - self._lost_s
                missing = self._catch_up.describe() or "nothing is missing"
                _log.warning("Kafka is back after %.1f s: %s", away_s, missing)
            if not self._logged and self._begun() and self._catch_up.to_go() == 0:
                self._logged = True
                caught_up = f"{self._catch_up.passed - self._passed:,}"
                _log.info("ready after %.1f s: %s records caught up", time.monotonic() - self._aimed_s, caught_up)

    def _partitions(self) -> list[int]:
        found: Any = self._reader.consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        if any(part.leader < 0 for part in found.partitions.values()):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return sorted(found.partitions)

    def _end(self, number: int) -> int:
        part = TopicPartition(self._topic, number)
        end: int = self._reader.consumer.get_watermark_offsets(part, timeout=ASK_S)[1]
        return end

    def _aim(self, ends: dict[int, int]) -> None:
        self._catch_up.aim({f"{self._topic}:{number}": end for number, end in ends.items()})
        self._aimed_s, self._passed, self._logged = time.monotonic(), self._catch_up.passed, False

    def _lose(self, error: KafkaError) -> None:
        self.connected, self._lost_s = False, time.monotonic()
        self._catch_up.lose()
        _log.warning("Kafka is away: %s; waiting for it", error.str())
