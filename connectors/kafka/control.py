"""Control table: the decisions of each tenant's operators, and the sending of decisions.

The control topic is read to its end before any other topic, and then further by a thread. With a secret, only signed
decisions count. A replayed copy has no effect, because it has the timestamp of the original."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer

from recallflow.connectors.kafka.admin import TopicDescription, topic_configs
from recallflow.connectors.kafka.messages import headers_of, time_ms
from recallflow.connectors.kafka.sender import Sender
from recallflow.connectors.kafka.topic_reader import NewConsumer, TopicReader
from recallflow.control import Control, ControlHistory
from recallflow.credentials import has_signature, is_signed, sign
from recallflow.errors import InvalidRecord
from recallflow.kafka_options import KafkaOptions
from recallflow.parsing import parse_control
from recallflow.process import TimeLimit

POLL_S = 0.1
AHEAD_MS = 300_000  # maximum lead of a signed decision over its append time, for clock skew
# Reason for ignoring an event → text of the log line.
LEFT_OUT = {
    "no_event": "is no control event",
    "not_signed": "is not signed with auth.control_secret",
    "wrong_time": "has no timestamp, or one over five minutes ahead of its append time",
    "replayed": "is older than the decision in force: it was sent again, or a clock is behind",
}

_log = logging.getLogger(__name__)


class ControlTable:
    """Reader of the control topic on a thread."""

    def __init__(
        self,
        options: KafkaOptions,
        topic: str,
        new_consumer: NewConsumer = Consumer,
        history: ControlHistory | None = None,  # target of the decisions (default: a new history)
        secret: str | None = None,  # secret that decisions must be signed with
    ) -> None:
        """Return once all current records of the topic are read into `history`. Raise SourceError."""
        self.history = ControlHistory() if history is None else history
        self.left_out: Counter[str] = Counter()  # ignored events by reason
        self._newest = -1, False  # append time of the newest record, and whether it is signed
        self._secret = secret
        self._error: Exception | None = None
        self._topic = topic
        self._stopping = threading.Event()
        self._added: deque[int] = deque()  # added partitions that are not read yet
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

    def are_signed(self) -> bool:
        """Return whether the newest decision is signed."""
        return self._newest[1]

    def failure(self) -> Exception | None:
        """Return the error that ended reading. It must stop the process, which would miss later decisions."""
        return self._error

    def grow(self, found: Mapping[str, TopicDescription]) -> None:
        """Add the partitions of a grown topic. Called from another thread."""
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
        self._newest = max(self._newest, (time_ms(message), has_signature(headers_of(message))))
        if (ignored := self._add(message)) is not None:
            reason, detail = ignored
            self.left_out[reason] += 1
            at = f"{self._topic}:{message.partition()}:{message.offset()}"
            _log.warning("%s %s%s", at, LEFT_OUT[reason], detail)

    def _add(self, message: Any) -> tuple[str, str] | None:
        """Add the decision of a record to the history, or return the reason for ignoring it, with details."""
        try:
            event = parse_control(message.value() or b"")
        except InvalidRecord as error:
            return "no_event", f": {error}"
        append_ms, key = time_ms(message), message.key()
        if self._secret is None:
            self.history.add(append_ms, event)
            return None
        if key != event.record_key or not is_signed(self._secret, key, message.value(), headers_of(message)):
            return "not_signed", ""
        if event.timestamp is None or event.timestamp > append_ms + AHEAD_MS:
            return "wrong_time", ""
        return None if self.history.add_signed(append_ms, event) else ("replayed", "")


def send_decisions(options: KafkaOptions, topic: str, secret: str | None, events: Sequence[Control]) -> None:
    """Send decisions, signed if there is a secret, and await acknowledgements. Raise SinkError."""
    most_bytes = topic_configs(options, [topic])[topic].most_bytes
    sender = Sender(options, {topic: most_bytes}, remedy="decisions may be missing until they are sent again")
    for event in events:
        key, value = event.record_key, event.model_dump_json(exclude_none=True).encode()
        sender.send(topic, value, key, headers=sign(secret, key, value))
    sender.flush(TimeLimit())
