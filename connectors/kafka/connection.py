"""Whether the brokers are there, asked again and again; and where the memory topic ends when they are back."""

import logging
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.metadata import Metadata

ASK_EVERY_S = 0.5
ASK_S = 2.0

_log = logging.getLogger(__name__)


class Connection:
    """Looks on a thread of its own. Tells `catch_up` what there is to catch up with: at the start, after an outage."""

    def __init__(self, options: KafkaOptions, topic: str, catch_up: CatchUp) -> None:
        """Returns once it is known where the topic ends. Raises SourceError."""
        self.connected = True
        self._topic = topic
        self._catch_up = catch_up
        self._metadata = Metadata(options)
        self._stopping = threading.Event()
        self._lost_s = self._aimed_s = 0.0
        self._passed = 0  # records caught up before the last aim
        self._told = False
        try:
            numbers = self._metadata.partitions([topic])[topic]
            self._aim({number: self._metadata.span(topic, number)[1] for number in numbers})
        except BaseException:
            self._metadata.consumer.close()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-connection")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._metadata.consumer.close()

    def _run(self) -> None:
        while not self._stopping.wait(ASK_EVERY_S):
            self._metadata.consumer.poll(0)  # hands over complaints; nothing is assigned
            try:
                numbers = self._ask()
                if not self.connected:
                    self._aim({number: self._end(number) for number in numbers})
            except KafkaException as error:
                if self.connected:
                    self._lose(error.args[0])
                continue
            if not self.connected:
                self._find()
            if not self._told and self._catch_up.to_go() == 0:
                self._tell()

    def _ask(self) -> list[int]:
        found: Any = self._metadata.consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        leaderless = [number for number, part in found.partitions.items() if part.leader < 0]
        if leaderless:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return sorted(found.partitions)

    def _end(self, number: int) -> int:
        part = TopicPartition(self._topic, number)
        end: int = self._metadata.consumer.get_watermark_offsets(part, timeout=ASK_S)[1]
        return end

    def _aim(self, ends: dict[int, int]) -> None:
        self._catch_up.aim({f"{self._topic}:{number}": end for number, end in ends.items()})
        self._aimed_s, self._passed, self._told = time.monotonic(), self._catch_up.passed, False

    def _lose(self, error: KafkaError) -> None:
        self.connected, self._lost_s = False, time.monotonic()
        self._catch_up.lose()
        _log.warning("Kafka is away: %s; waiting for it", error.str())

    def _find(self) -> None:
        self.connected = True
        away_s = time.monotonic() - self._lost_s
        _log.warning("Kafka is back after %.1f s: %s", away_s, self._catch_up.says() or "nothing is missing")

    def _tell(self) -> None:
        self._told = True
        taken_s = time.monotonic() - self._aimed_s
        _log.info("ready after %.1f s: %s records caught up", taken_s, f"{self._catch_up.passed - self._passed:,}")
