"""Tails of output topics: their end offsets, and the last records."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.place import Tails
from recallflow.connectors.kafka.topic_reader import TAIL, UNCOMMITTED, TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_clients import passes
from recallflow.kafka_options import KafkaOptions
from recallflow.process import OUTAGE_S, Patience, beside

ASK_EVERY_S = 1.0
ASK_S = 5.0
READ_ENDS_S = 1.0
PAUSE_S = 0.1
SKEW_MS = 300_000  # between clocks of machines

_log = logging.getLogger(__name__)


class Ends:
    """Repeated requests for the end offsets of topics: later outputs have higher offsets."""

    def __init__(self, options: KafkaOptions, counts: Mapping[str, int]) -> None:
        """`counts` are the known numbers of partitions of the topics."""
        self.topics = tuple(counts)
        self._options = options
        self._parts = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        self._admin = AdminClient(options.admin())
        self._found: tuple[Tails, int] = ({}, 0)
        self._stopping = threading.Event()

    def latest(self) -> tuple[Tails, int]:
        """Return end offsets (by topic and partition) at an earlier moment, and that moment (epoch ms)."""
        return self._found

    def ask(self) -> Tails:
        """Return the current end offsets, added partitions included: another member may write to them. Raise
        SourceError."""
        waiting = Patience(OUTAGE_S)
        while True:
            try:
                self._parts = self._list()
                return self._ask()
            except KafkaException as error:
                if not passes(error.args[0]) or waiting.ended():
                    raise SourceError(f"cannot ask where output topics end: {error.args[0].str()}") from error
            time.sleep(PAUSE_S)

    def at(self, at_ms: int) -> Tails:
        """Return the offsets of the first records appended after a time, whether by broker or producer time. Raise
        SourceError."""
        since_ms = max(0, at_ms - SKEW_MS)
        with TopicReader(self._options, UNCOMMITTED) as reader:
            return {
                topic: {number: reader.offset_at(topic, number, since_ms) for number in numbers}
                for topic, numbers in reader.partitions(self.topics).items()
            }

    def lost(self, begin: Tails, at_ms: int) -> str | None:
        """Return the first partition that lost records after `begin`, unless its remaining records are older than
        `at_ms`: the lost ones were older still."""
        with TopicReader(self._options, TAIL) as reader:
            for (topic, number), (low, high) in reader.spans([*begin]).items():
                if not 0 < begin[topic].get(number, low) < low:
                    continue
                first = next(reader.read_to_end(topic, number, low), None) if low < high else None
                if first is None or time_ms(first) >= at_ms:
                    return f"{topic}:{number}"
        return None

    def running(self) -> AbstractContextManager[None]:
        """Refresh the end offsets on a thread. After a failed request the older offsets stay, which are still
        correct."""
        return beside(self._run, "ends", self._stopping)

    def _run(self) -> None:
        while not self._stopping.wait(ASK_EVERY_S):
            try:
                self._ask()
            except KafkaException:
                continue

    def _list(self) -> list[TopicPartition]:
        there = self._admin.list_topics(timeout=ASK_S).topics
        counts = Counter(part.topic for part in self._parts)
        for topic in there.keys() & counts:
            counts[topic] = max(counts[topic], len(there[topic].partitions))
        return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]

    def _ask(self) -> Tails:
        at_ms = time.time_ns() // 1_000_000
        ends: dict[str, dict[int, int]] = {}
        for part, end in _end_offsets(self._admin, self._parts, IsolationLevel.READ_UNCOMMITTED, ASK_S):
            ends.setdefault(part.topic, {})[part.partition] = end
        self._found = ends, at_ms
        return ends


class EndOffsets:
    """End offsets of a topic's partitions, asked of the brokers on a connection without a pending fetch.

    A consumer's own request waits behind its fetch for up to half a second; this one takes about half a millisecond.
    """

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self._topic = topic
        self._admin = AdminClient(options.admin())

    def __call__(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the end offset of committed records by partition, without partitions that the brokers could not
        report."""
        parts, ends = [TopicPartition(self._topic, number) for number in partitions], dict[int, int]()
        try:
            for part, end in _end_offsets(self._admin, parts, IsolationLevel.READ_COMMITTED, READ_ENDS_S):
                ends[part.partition] = end
        except KafkaException as error:
            _log.warning("%s: end offsets are unknown (%s): queries do not wait", self._topic, error.args[0].str())
        return ends


def _end_offsets(
    admin: AdminClient, parts: Sequence[TopicPartition], isolation: IsolationLevel, timeout_s: float
) -> Iterator[tuple[TopicPartition, int]]:
    """Ask the brokers for the end offsets of partitions, and yield each answer. Raise KafkaException."""
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    requests = admin.list_offsets(dict.fromkeys(parts, latest), isolation_level=isolation, request_timeout=timeout_s)
    for part, future in requests.items():
        yield part, future.result().offset


def read_tails(
    options: KafkaOptions, begin: Tails, end: Tails, stopping: threading.Event, see: Callable[[Any], None]
) -> None:
    """Pass every record between two offsets of each partition to `see`. Raise SourceError."""
    spans = {
        (topic, number): (begin[topic][number], last)
        for topic, lasts in end.items()
        for number, last in lasts.items()
        if topic in begin and begin[topic].get(number, last) < last
    }
    if not spans:
        return
    with TopicReader(options, TAIL, give_up_s=OUTAGE_S, stopping=stopping) as reader:
        for (topic, number), (first, _) in spans.items():
            reader.add(topic, number, first)
        left = dict(spans)
        while left and not stopping.is_set():
            messages = reader.read_many()
            for message in messages:
                part = message.topic(), message.partition()
                if part in left and message.offset() >= left[part][1] - 1:
                    del left[part]
                see(message)
            for part in reader.ended():
                left.pop(part, None)


def earliest(tails: Sequence[Tails], ends: Mapping[str, Mapping[int, int]]) -> Tails:
    """Return the minimum of these tails. A partition that one of them does not name is read from its beginning, because
    it was added later."""
    return {
        topic: {number: min((one.get(topic, {}).get(number, 0) for one in tails), default=last)
                for number, last in lasts.items()}
        for topic, lasts in ends.items()
    }  # fmt: skip
