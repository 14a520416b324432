"""The control table: what each tenant's operator decided, read to its end before anything else, then followed live."""

import bisect
import logging
import threading
from collections import defaultdict
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import TypeAdapter, ValidationError

from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.control import Control, ControlEvent
from recallflow.errors import SourceError

POLL_S = 0.1

_log = logging.getLogger(__name__)
_EVENT: TypeAdapter[Control] = TypeAdapter(ControlEvent)


class Decision(NamedTuple):
    """A control event and when the log took it in (epoch milliseconds)."""

    append_ms: int
    event: Control


class History:
    """All decisions by (tenant, kind, name), each list in log order; a verdict on a record is taken as of the record's
    append time, so that a rebuild a year later accepts what was accepted then."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[str, str, str], list[Decision]] = defaultdict(list)

    def add(self, append_ms: int, event: Control) -> None:
        kind: str = event.type  # type: ignore[attr-defined]
        bisect.insort(
            self._decisions[event.tenant_id, kind, event.name], Decision(append_ms, event), key=lambda d: d[0]
        )

    def as_of(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Control | None:
        """What held at `at_ms`: the latest decision taken in by then."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        at = bisect.bisect_right(decisions, at_ms, key=lambda d: d.append_ms)
        return decisions[at - 1].event if at else None

    def names(self, tenant_id: str, kind: str) -> list[str]:
        """Every name of a kind that a tenant ever decided on."""
        return sorted(name for tenant, k, name in [*self._decisions] if (tenant, k) == (tenant_id, kind))


class ControlTable:
    """Follows the control topic on a thread of its own. One per process."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        """Returns once all that stands in the topic now is read. Raises SourceError."""
        self.history = History()
        self.error: SourceError | None = None
        self._options = options
        self._topic = topic
        self._stopping = threading.Event()
        self._consumer = Consumer(options.consumer() | {"auto.offset.reset": "earliest"})
        try:
            self._read_to_end()
        except KafkaException as error:
            self._consumer.close()
            raise SourceError(f"{topic}: cannot be read: {error.args[0].str()}") from error
        self._thread = threading.Thread(target=self._follow, daemon=True, name="recallflow-control")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _read_to_end(self) -> None:
        metadata = Metadata(self._options, self._consumer)
        spans = {
            number: metadata.span(self._topic, number) for number in metadata.partitions([self._topic])[self._topic]
        }
        ends = {number: high for number, (low, high) in spans.items() if high > low}
        self._consumer.assign([TopicPartition(self._topic, number, low) for number, (low, _) in spans.items()])
        while ends:
            # A compacted topic has gaps: the position, not the last record's offset, tells that the end is reached.
            self._take(self._consumer.poll(POLL_S))
            for at in self._consumer.position([TopicPartition(self._topic, number) for number in ends]):
                if at.offset >= ends[at.partition]:
                    del ends[at.partition]

    def _follow(self) -> None:
        with closing(self._consumer):
            while not self._stopping.is_set() and self.error is None:
                try:
                    self._take(self._consumer.poll(POLL_S))
                except KafkaException as error:
                    self.error = SourceError(f"{self._topic}: cannot be followed: {error}")

    def _take(self, message: Any) -> None:
        if message is None:
            return
        error: KafkaError | None = message.error()
        if error is not None:
            if not error.retriable():
                raise KafkaException(error)
            _log.warning("%s: %s; retrying", self._topic, error.str())
            return
        try:
            self.history.add(message.timestamp()[1], _EVENT.validate_json(message.value() or b""))
        except ValidationError as invalid:
            problem = invalid.errors(include_url=False, include_input=False)[0]["msg"]
            _log.warning(
                "%s:%d:%d is no control event: %s", self._topic, message.partition(), message.offset(), problem
            )
