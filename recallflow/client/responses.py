"""Reads the response topic."""

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import ValidationError

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import log_outage, passes
from recallflow.client.outstanding import Outstanding, new_future
from recallflow.errors import QueryFailed, SourceError
from recallflow.responses import ErrorBody, Response

POLL_S = 0.05  # how late a deadline may be noticed
METADATA_S = 1.0
RETRY_S = 0.2
LOOK_S = 2.0  # so often it is seen whether partitions were added

_log = logging.getLogger(__name__)


class Responses:
    """One consumer on one thread: all partitions of the response topic, from where they end when it starts, and those
    that are added later, from their beginning. `ready` is done once the first are assigned: a query that is sent
    before could miss its response."""

    def __init__(self, options: KafkaOptions, topic: str, outstanding: Outstanding) -> None:
        self.ready: Future[None] = new_future()
        self.trouble: str | None = None
        self._topic = topic
        self._outstanding = outstanding
        self._stopping = threading.Event()
        self._assigned: set[int] = set()
        # Responses are in no transaction; somebody else's that is open must not hold them back.
        chosen = {"isolation.level": "read_uncommitted", "error_cb": self._on_error}
        self._consumer = Consumer(options.consumer() | chosen)
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-responses")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._assign():
            self._stopping.wait(RETRY_S)
        if not self._stopping.is_set():
            self.ready.set_result(None)
        look_s = time.monotonic() + LOOK_S
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None:
                self._receive(message)
            if time.monotonic() >= look_s:
                self._assign_added()
                look_s = time.monotonic() + LOOK_S

    def _assign(self) -> bool:
        """Reads every partition from its end on. False where Kafka cannot answer now; `trouble` is why."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=METADATA_S).topics[self._topic]
            if found.error is None:
                parts = [TopicPartition(self._topic, number) for number in found.partitions]
                for part in parts:
                    part.offset = self._consumer.get_watermark_offsets(part, timeout=METADATA_S)[1]
                self._consumer.assign(parts)
                self._assigned = set(found.partitions)
            self.trouble = None if found.error is None else f"{self._topic}: {found.error.str()}"
        except KafkaException as error:
            self.trouble = f"{self._topic}: {reason_of(error)}"
        return self.trouble is None

    def _assign_added(self) -> None:
        """Reads partitions that were added since the last look, too: the engine may have answered there by now."""
        with suppress(KafkaException):  # another look follows, and whoever reads complains
            found = self._consumer.list_topics(self._topic, timeout=METADATA_S).topics[self._topic]
            added = sorted(found.partitions.keys() - self._assigned)
            self._consumer.incremental_assign([TopicPartition(self._topic, n, OFFSET_BEGINNING) for n in added])
            self._assigned.update(added)

    def _receive(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self.trouble = None
            self._resolve(message.key() or b"", message.value() or b"")
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention overtook us: what is gone looks like what never came, so queries time out.
            _log.warning("%s: responses were removed before they were read: %s", self._topic, error.str())
            self._assign()
        else:
            self._on_error(error)
            if not passes(error):
                self._outstanding.fail_all(SourceError(f"cannot read {self._topic}: {error.str()}"))

    def _resolve(self, key: bytes, value: bytes) -> None:
        if not self._outstanding.awaits(key):
            return
        try:
            response = Response.model_validate_json(value)
        except ValidationError as error:
            # Not the error itself: it quotes what it found, and that may be a memory.
            _log.warning(
                "%s holds something that is no response: %d fields are wrong", self._topic, error.error_count()
            )
            return
        pending = self._outstanding.pop(key, response.query_id)
        if pending is None:
            return
        if response.status == "error":
            reason = response.error or ErrorBody(code="unknown", message="the response names no reason")
            pending.future.set_exception(QueryFailed(pending.query_id, reason))
        else:
            pending.future.set_result(response)

    def _on_error(self, error: KafkaError) -> None:
        self.trouble = error.str()
        log_outage(error)


def reason_of(error: KafkaException) -> str:
    reason: str = error.args[0].str()
    return reason
