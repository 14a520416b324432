"""Reads topics as they grow, for whoever waits for something in them."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import log_outage, passes
from recallflow.errors import SourceError

POLL_S = 0.05  # how late a deadline may be noticed
METADATA_S = 1.0
RETRY_S = 0.2
LOOK_S = 2.0  # so often it is seen whether partitions were added, and whether Kafka is there

_log = logging.getLogger(__name__)


class Inbox(NamedTuple):
    """A topic to read: all of it, or `one` partition, where none is named any."""

    topic: str
    one: bool = False
    partition: int | None = None


class Reader:
    """One consumer on one thread: topics from where they end when it starts, and partitions that are added later from
    their beginning. `ready` is done once the first are assigned: what is asked before could miss its answer. `away`:
    why Kafka did not answer when it was last looked for; None where it did."""

    def __init__(
        self,
        options: KafkaOptions,
        inboxes: Sequence[Inbox],
        receive: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`receive` is given each message, and `fail` what stops us from reading more of them; both on our thread."""
        self.ready: Future[None] = Future()
        self.trouble: str | None = None
        self.away: str | None = None
        self.chosen: dict[str, int] = {}  # of inboxes of one partition
        self._inboxes = inboxes
        self._named = ", ".join(inbox.topic for inbox in inboxes)
        self._receive, self._fail = receive, fail
        self._stopping = threading.Event()
        self._assigned: set[tuple[str, int]] = set()
        # What we read is in no transaction; somebody else's that is open must not hold it back.
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
                self._take(message)
            if time.monotonic() >= look_s:
                self._look()
                look_s = time.monotonic() + LOOK_S

    def _assign(self) -> bool:
        """Reads every partition from its end on. False where Kafka cannot answer now; `trouble` is why."""
        try:
            parts = [TopicPartition(*part) for part in self._wanted()]
            for part in parts:
                part.offset = self._consumer.get_watermark_offsets(part, timeout=METADATA_S)[1]
            self._consumer.assign(parts)
        except KafkaException as error:
            self.trouble = f"{self._named}: {reason_of(error)}"
        except SourceError as error:
            self.trouble = str(error)
        else:
            self._assigned = {(part.topic, part.partition) for part in parts}
            self.trouble = None
        return self.trouble is None

    def _wanted(self) -> list[tuple[str, int]]:
        """Every partition to read. Raises KafkaException, and SourceError where there is no such topic or partition."""
        parts: list[tuple[str, int]] = []
        for inbox in self._inboxes:
            found = self._consumer.list_topics(inbox.topic, timeout=METADATA_S).topics[inbox.topic]
            if found.error is not None:
                raise SourceError(f"{inbox.topic}: {found.error.str()}")
            numbers = sorted(found.partitions)
            if inbox.one:
                numbers = [self._choose(inbox, numbers)]
            parts += [(inbox.topic, number) for number in numbers]
        return parts

    def _choose(self, inbox: Inbox, numbers: Sequence[int]) -> int:
        wanted = random.choice(numbers) if inbox.partition is None else inbox.partition  # noqa: S311  any will do
        chosen = self.chosen.setdefault(inbox.topic, wanted)
        if chosen not in numbers:
            raise SourceError(f"{inbox.topic} has {len(numbers)} partitions, and none of them is {chosen}")
        return chosen

    def _look(self) -> None:
        """Reads partitions that were added since the last look, too: the engine may have answered there by now."""
        try:
            added = sorted({*self._wanted()} - self._assigned)
            self._consumer.incremental_assign([TopicPartition(*part, OFFSET_BEGINNING) for part in added])
        except KafkaException as error:  # another look follows, and whoever reads complains
            self.away = reason_of(error)
        except SourceError as error:
            self.away = str(error)
        else:
            self._assigned.update(added)
            self.away = None

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self.trouble = None
            self._receive(message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention overtook us: what is gone looks like what never came, so queries time out.
            _log.warning("%s: records were removed before they were read: %s", message.topic(), error.str())
            self._assign()
        else:
            self._on_error(error)
            if not passes(error):
                self._fail(SourceError(f"cannot read {message.topic() or self._named}: {error.str()}"))

    def _on_error(self, error: KafkaError) -> None:
        self.trouble = error.str()
        log_outage(error)


def reason_of(error: KafkaException) -> str:
    reason: str = error.args[0].str()
    return reason
