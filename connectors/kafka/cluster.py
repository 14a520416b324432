"""Observation of the cluster: outages, records to catch up with, changed topics, and the last records of outputs."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from recallflow.connectors.kafka.admin import TopicDescription
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.partition import TopicOffsets
from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, TAIL, UNCOMMITTED, TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_clients import is_retriable
from recallflow.kafka_options import KafkaOptions
from recallflow.process import OUTAGE_S, TimeLimit, background_thread

OUTAGE_CHECK_INTERVAL_S = 0.5
POLL_INTERVAL_S = 1.0  # interval of the checks of topics, and of requests for end offsets
TopicDescriptions = Mapping[str, TopicDescription]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Backlog:
    """Backlog of a memory partition. Each offset below `next_offset` was emitted to the dataflow, or has no record."""

    next_offset: int
    first: int  # first offset of this run
    target: int  # end offset at the start or after the last outage
    unapplied: int = 0  # emitted records that the state step has not applied
    unapplied_below_target: int = 0


class CatchUp:
    """Count of the records that the state step has not applied yet. Offsets without a record (of transactions, or
    compacted) count as done once the reader has passed them."""

    def __init__(self) -> None:
        self.is_behind = True  # whether records below a target may be unapplied
        self.caught_up_count = 0  # applied records below a target
        self._lock = threading.Lock()
        self._backlogs: dict[str, _Backlog] = {}
        self._ends: Mapping[str, int] | None = None

    def add(self, source: str, offset: int, end: int = 0) -> None:
        """Register a partition that is read from `offset`, and whose end offset is `end`."""
        with self._lock:
            self._backlogs[source] = _Backlog(offset, offset, max(offset, end, (self._ends or {}).get(source, 0)))
            self.is_behind = True

    def remove(self, source: str) -> None:
        with self._lock:
            self._backlogs.pop(source, None)

    def set_targets(self, ends: Mapping[str, int]) -> None:
        """Set the end offsets up to which records must be applied."""
        with self._lock:
            self._ends = dict(ends)
            for source, backlog in self._backlogs.items():
                # All records in flight are below the target then, so their offsets need not be known.
                backlog.target = max(backlog.next_offset, ends.get(source, 0))
                backlog.unapplied_below_target = backlog.unapplied
            self.is_behind = True

    def note_outage(self) -> None:
        """Note an outage of the brokers, which makes the targets unknown."""
        with self._lock:
            self._ends = None
            self.is_behind = True

    def count_emitted(self, source: str, offsets: Iterable[int], next_offset: int) -> None:
        with self._lock:
            backlog = self._backlogs[source]
            backlog.next_offset = next_offset
            for offset in offsets:
                backlog.unapplied += 1
                backlog.unapplied_below_target += offset < backlog.target

    def skip_to(self, source: str, offset: int) -> None:
        """Note that all records before `offset` were emitted."""
        with self._lock:
            if (backlog := self._backlogs.get(source)) is not None:
                backlog.next_offset = max(backlog.next_offset, offset)

    def count_applied(self, source: str, offsets: Iterable[int]) -> None:
        with self._lock:
            if (backlog := self._backlogs.get(source)) is None:
                return  # a record of another topic or of a file
            for offset in offsets:
                if offset >= backlog.first:  # otherwise an earlier run delivered it
                    backlog.unapplied -= 1
                    backlog.unapplied_below_target -= offset < backlog.target
                    self.caught_up_count += self.is_behind

    def remaining(self, source: str | None = None) -> int | None:
        """Return how many records one partition, or all, must still apply to reach the targets; None if unknown."""
        if not self.is_behind:
            return 0
        with self._lock:
            if self._ends is None or (source is not None and source not in self._backlogs):
                return None
            if source is not None:
                return _remaining(self._backlogs[source])
            remaining = sum(map(_remaining, self._backlogs.values()))
            self.is_behind = remaining > 0
            return remaining

    def describe(self, source: str | None = None) -> str:
        """Describe the remaining records of one partition or of all; return an empty text if none remains."""
        if (remaining := self.remaining(source)) is None:
            return "the number of remaining memory records is not known yet"
        return f"{remaining:,} memory records remain" if remaining else ""


def _remaining(backlog: _Backlog) -> int:
    return max(0, backlog.target - backlog.next_offset) + backlog.unapplied_below_target


class OutageMonitor:
    """Observer of the brokers on a thread. It sets the targets of `catch_up`, also after an outage."""

    def __init__(self, options: KafkaOptions, topic: str, catch_up: CatchUp, has_begun: Callable[[], bool]) -> None:
        """Return once the topic's end offsets are known. `has_begun`: whether reading has begun. Raise SourceError."""
        self.connected = True
        self._topic = topic
        self._catch_up, self._has_begun = catch_up, has_begun
        self._reader = TopicReader(options)
        self._stopping = threading.Event()
        self._lost_s = self._targets_s = 0.0
        self._count_before = 0  # records caught up before the targets were last set
        self._is_end_logged = False  # whether the end of the catch-up was logged
        try:
            self._set_targets({number: end for (_, number), (_, end) in self._reader.spans([topic]).items()})
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
        while not self._stopping.wait(OUTAGE_CHECK_INTERVAL_S):
            self._reader.consumer.poll(0)  # calls the error callbacks; nothing is assigned
            try:
                numbers = self._partitions()
                if not self.connected:
                    read_span = partial(self._reader.consumer.get_watermark_offsets, timeout=REQUEST_TIMEOUT_S)
                    parts = [TopicPartition(self._topic, number) for number in numbers]
                    self._set_targets({part.partition: read_span(part)[1] for part in parts})
            except KafkaException as error:
                if self.connected:
                    self._note_outage(error.args[0])
                continue
            if not self.connected:
                self.connected = True
                away_s = time.monotonic() - self._lost_s
                missing = self._catch_up.describe() or "nothing is missing"
                _log.warning("Kafka is back after %.1f s: %s", away_s, missing)
            if not self._is_end_logged and self._has_begun() and self._catch_up.remaining() == 0:
                self._is_end_logged = True
                caught_up = f"{self._catch_up.caught_up_count - self._count_before:,}"
                _log.info("ready after %.1f s: %s records caught up", time.monotonic() - self._targets_s, caught_up)

    def _partitions(self) -> list[int]:
        found: Any = self._reader.consumer.list_topics(self._topic, timeout=REQUEST_TIMEOUT_S).topics[self._topic]
        if any(part.leader < 0 for part in found.partitions.values()):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return sorted(found.partitions)

    def _set_targets(self, ends: dict[int, int]) -> None:
        self._catch_up.set_targets({f"{self._topic}:{number}": end for number, end in ends.items()})
        self._targets_s, self._count_before = time.monotonic(), self._catch_up.caught_up_count
        self._is_end_logged = False

    def _note_outage(self, error: KafkaError) -> None:
        self.connected, self._lost_s = False, time.monotonic()
        self._catch_up.note_outage()
        _log.warning("Kafka is unavailable: %s; waiting for it", error.str())


class TopicWatcher:
    """Observer of topic metadata. It calls listeners with each description; an error of a listener stops the flow."""

    def __init__(self, describe: Callable[[], TopicDescriptions], first: TopicDescriptions) -> None:
        """`describe` raises KafkaException in an outage; `first` is the first description."""
        self.added = Counter(dict.fromkeys(first, 0))  # topic → number of added partitions
        self._counts = {topic: description.partitions for topic, description in first.items()}
        self._describe = describe
        self._listeners: list[Callable[[TopicDescriptions], None]] = []
        self._error: SourceError | None = None

    def add_listeners(self, *listeners: Callable[[TopicDescriptions], None]) -> None:
        self._listeners += listeners

    def failure(self) -> SourceError | None:
        return self._error

    def check(self) -> None:
        """Describe the topics once. Ignore an outage, because another check follows and the readers log it."""
        try:
            descriptions = self._describe()
        except KafkaException:
            return
        try:
            for listener in self._listeners:
                listener(descriptions)
        except SourceError as error:
            self._error = error
            return
        for topic, description in descriptions.items():
            if (added := description.partitions - self._counts[topic]) > 0:
                _log.warning("%s has %d partitions, and had %d", topic, description.partitions, self._counts[topic])
                self.added[topic] += added
                self._counts[topic] = description.partitions


ENDS_TIMEOUT_S = 5.0
READ_ENDS_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 0.1
SKEW_MS = 300_000  # allowed difference between clocks of machines


class EndOffsetPoller:
    """Repeated requests for the end offsets of output topics. Later outputs have these offsets or higher ones."""

    def __init__(self, options: KafkaOptions, counts: Mapping[str, int]) -> None:
        self.topics = tuple(counts)
        self._options = options
        self._parts = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        self._admin = AdminClient(options.admin())
        self._latest: tuple[TopicOffsets, int] = ({}, 0)

    def latest(self) -> tuple[TopicOffsets, int]:
        """Return the end offsets of the last successful request (by topic and partition), and its time (epoch ms)."""
        return self._latest

    def ask(self) -> TopicOffsets:
        """Return the current end offsets, with added partitions. Raise SourceError."""
        time_limit = TimeLimit(OUTAGE_S)
        while True:
            try:
                self._parts = self._list()
                return self._ask()
            except KafkaException as error:
                if not is_retriable(error.args[0]) or time_limit.poll_expired():
                    raise SourceError(f"cannot read the end offsets of outputs: {error.args[0].str()}") from error
            time.sleep(RETRY_PAUSE_S)

    def at(self, at_ms: int) -> TopicOffsets:
        """Return the first offsets of records that may be later than `at_ms`, with clock skew. Raise SourceError."""
        since_ms = max(0, at_ms - SKEW_MS)
        with TopicReader(self._options, UNCOMMITTED) as reader:
            return {
                topic: {number: reader.offset_at(topic, number, since_ms) for number in numbers}
                for topic, numbers in reader.partitions(self.topics).items()
            }

    def first_loss(self, begin: TopicOffsets, at_ms: int) -> str | None:
        """Return the first partition some of whose records since `begin` are deleted and may be later than `at_ms`."""
        with TopicReader(self._options, TAIL) as reader:
            for (topic, number), (low, high) in reader.spans([*begin]).items():
                if not 0 < begin[topic].get(number, low) < low:
                    continue
                first = next(reader.read_to_end(topic, number, low), None) if low < high else None
                if first is None or time_ms(first) >= at_ms:
                    return f"{topic}:{number}"
        return None

    def refresh(self) -> None:
        """Request the end offsets once. After a failed request the earlier ones stay: they are lower, which is safe."""
        with suppress(KafkaException):
            self._ask()

    def _list(self) -> list[TopicPartition]:
        described = self._admin.list_topics(timeout=ENDS_TIMEOUT_S).topics
        counts = Counter(part.topic for part in self._parts)
        for topic in described.keys() & counts:
            counts[topic] = max(counts[topic], len(described[topic].partitions))
        return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]

    def _ask(self) -> TopicOffsets:
        at_ms = time.time_ns() // 1_000_000
        ends: dict[str, dict[int, int]] = {}
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        parts, isolation = dict.fromkeys(self._parts, latest), IsolationLevel.READ_UNCOMMITTED
        futures = self._admin.list_offsets(parts, isolation_level=isolation, request_timeout=ENDS_TIMEOUT_S)
        for part, future in futures.items():
            ends.setdefault(part.topic, {})[part.partition] = future.result().offset
        self._latest = ends, at_ms
        return ends


def polling(watcher: TopicWatcher, ends: EndOffsetPoller) -> AbstractContextManager[None]:
    """Check the topics and refresh the end offsets on a thread."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(POLL_INTERVAL_S):
            watcher.check()
            ends.refresh()

    return background_thread(run, "cluster", stopping)


class EndOffsetReader:
    """Reader of the end offsets of a topic's partitions, on a connection of its own.

    The request of a consumer that fetches records waits behind the fetch for up to half a second."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self._topic, self._reader = topic, TopicReader(options, give_up_s=READ_ENDS_TIMEOUT_S)

    def __call__(self, partitions: Collection[int]) -> dict[int, int]:
        """Return partition → end offset of committed records. Return nothing if the brokers do not report them."""
        try:
            found = self._reader.offsets_for_times([TopicPartition(self._topic, one, OFFSET_END) for one in partitions])
        except SourceError as error:
            _log.warning("%s: end offsets are unknown (%s): queries do not wait for newer events", self._topic, error)
            return {}
        return {part.partition: part.offset for part in found}


def read_tails(
    options: KafkaOptions, begin: TopicOffsets, end: TopicOffsets, stop: threading.Event, handle: Callable[[Any], None]
) -> None:
    """Pass every record between two offsets of each partition to `handle`. Raise SourceError."""
    spans = {
        (topic, number): (begin[topic][number], last)
        for topic, lasts in end.items()
        for number, last in lasts.items()
        if topic in begin and begin[topic].get(number, last) < last
    }
    if not spans:
        return
    with TopicReader(options, TAIL, give_up_s=OUTAGE_S, stopping=stop) as reader:
        for (topic, number), (first, _) in spans.items():
            reader.add(topic, number, first)
        while spans and not stop.is_set():
            for message in reader.read_many():
                part = message.topic(), message.partition()
                if part in spans and message.offset() >= spans[part][1] - 1:
                    del spans[part]
                handle(message)
            for part in reader.ended:
                spans.pop(part, None)


def earliest(tails: Sequence[TopicOffsets], ends: Mapping[str, Mapping[int, int]]) -> TopicOffsets:
    """Return the minimum of these offsets. A partition that one of them lacks was added later, and begins at 0."""
    return {
        topic: {number: min((one.get(topic, {}).get(number, 0) for one in tails), default=last)
                for number, last in lasts.items()}
        for topic, lasts in ends.items()
    }  # fmt: skip
