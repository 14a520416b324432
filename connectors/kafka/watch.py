"""Looks at the topics while the flow runs: partitions that were added, and topics that were made anew."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from confluent_kafka import KafkaException

from recallflow.background import beside
from recallflow.connectors.kafka.admin import Described
from recallflow.errors import SourceError

LOOK_S = 1.0

_log = logging.getLogger(__name__)

Found = Mapping[str, Described]


class Watch:
    """Calls listeners with what there is. What one of them refuses stops the flow."""

    def __init__(self, ask: Callable[[], Found], found: Found) -> None:
        """`ask` says what there is (KafkaException: not now), `found` is what there was when the flow began."""
        self.added = Counter(dict.fromkeys(found, 0))  # partitions, by topic
        self._counts = {topic: described.partitions for topic, described in found.items()}
        self._ask = ask
        self._listeners: list[Callable[[Found], None]] = []
        self._error: SourceError | None = None
        self._stopping = threading.Event()

    def call(self, *listeners: Callable[[Found], None]) -> None:
        """From now on these are called as well."""
        self._listeners += listeners

    def failure(self) -> SourceError | None:
        """Why the topics are not what they were."""
        return self._error

    def running(self) -> AbstractContextManager[None]:
        """Looks every LOOK_S seconds, on a thread of its own."""
        return beside(self._run, "watch", self._stopping)

    def look(self) -> None:
        """Looks once. What Kafka cannot say now is asked again: whoever reads complains."""
        try:
            found = self._ask()
        except KafkaException:
            return
        try:
            for listener in self._listeners:
                listener(found)
        except SourceError as error:
            self._error = error
            return
        for topic, described in found.items():
            if (added := described.partitions - self._counts[topic]) > 0:
                _log.warning("%s has %d partitions, and had %d", topic, described.partitions, self._counts[topic])
                self.added[topic] += added
                self._counts[topic] = described.partitions

    def _run(self) -> None:
        while self._error is None and not self._stopping.wait(LOOK_S):
            self.look()
