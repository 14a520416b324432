"""The Kafka source: one part per partition number, over the memory topic and the query topic."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

from recallflow.connectors.kafka.hub import Hub, Queue, Reader
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import SourceError
from recallflow.records import Position, Record

QUERIES_MAX = 1_000
AT_ONCE = datetime.fromtimestamp(0, UTC)

# topic:partition → the next offset, and the offset from which on outputs count
Offsets = dict[str, tuple[int, int]]


class Progress:
    """Counts what the source gave, by topic, and what the state was done with, over all workers of the process: no
    back-pressure crosses an exchange within an epoch, so the source keeps its own."""

    def __init__(self) -> None:
        self.given: Counter[str] = Counter()
        self._done = 0

    def gave(self, topic: str, records: int) -> None:
        self.given[topic] += records

    def done(self, records: int) -> None:
        self._done += records

    def in_flight(self) -> int:
        return self.given.total() - self._done


class KafkaSource(FixedPartitionedSource[Record, Offsets]):
    """Records of `memory_topic` and `query_topic`. A part's resume state is where it is in each of its partitions.

    Without one, memories are read from the beginning, and queries from where `begin` says the topic ended when the
    state directory was new. `rewind` names, per `topic:partition`, an offset below the resume state to read from again,
    to rebuild state that was lost: those records come out silent. `given_up` names, by part, up to where queries that
    are gone from the topic are done without. `wake` and `failure`: see `Hub`.
    """

    def __init__(
        self,
        options: KafkaOptions,
        memory_topic: str,
        query_topic: str,
        progress: Progress,
        begin: Mapping[str, int],
        rewind: Mapping[str, int] | None = None,
        given_up: Mapping[str, int] | None = None,
        *,
        wake: threading.Event | None = None,
        failure: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._options = options
        self._memory_topic = memory_topic
        self._query_topic = query_topic
        self._progress = progress
        self._begin = begin
        self._rewind = rewind or {}
        self._given_up = given_up or {}
        self._wake = wake
        self._failure = failure
        self._hubs: dict[int, Hub] = {}
        self._joining = threading.Lock()
        self._listed = 0
        self._built = 0
        self.first_offsets: dict[str, int] = {}  # `topic:partition` → the first offset of this run
        self.stopping = threading.Event()

    def list_parts(self) -> list[str]:
        """One part per partition number that either topic has. Raises SourceError where a topic is missing."""
        self._listed = max(self._partition_counts().values())
        return [f"{number:05d}" for number in range(self._listed)]

    def build_part(self, step_id: str, for_part: str, resume_state: Offsets | None) -> "KafkaPart":  # noqa: ARG002
        number = int(for_part)
        counts = self._partition_counts()
        hub = self._hub()
        hub.join()
        part = KafkaPart(for_part, hub, self._progress, self.stopping)
        for topic, reader in ((self._query_topic, hub.queries), (self._memory_topic, hub.memories)):
            if number < counts[topic]:
                source = f"{topic}:{number}"
                next_offset, answered_from = (resume_state or {}).get(source, (None, 0))
                first = self._first_offset(topic, number, next_offset)
                self.first_offsets[source] = first
                answered_from = max(answered_from, next_offset or 0)
                log = _Log(source, reader.add((topic, number), first), first, answered_from)
                (part.queries if reader is hub.queries else part.memories).append(log)
        with self._joining:
            self._built += 1
        return part

    def ready(self) -> bool:
        """Whether every part is there, and goes on."""
        return 0 < self._listed <= self._built and not self.stopping.is_set()

    def readers(self) -> list[Reader]:
        """The readers of all workers."""
        return [reader for hub in [*self._hubs.values()] for reader in (hub.queries, hub.memories)]

    def _hub(self) -> Hub:
        """The calling worker's hub."""
        with self._joining:
            worker = threading.get_ident()
            if worker not in self._hubs:
                self._hubs[worker] = Hub(self._options, self._progress.in_flight, self._wake, self._failure)
            return self._hubs[worker]

    def _partition_counts(self) -> dict[str, int]:
        with Metadata.open(self._options) as metadata:
            found = metadata.partitions((self._memory_topic, self._query_topic))
        return {topic: len(numbers) for topic, numbers in found.items()}

    def _first_offset(self, topic: str, number: int, resumed: int | None) -> int:
        """Where to read from. Raises SourceError where what comes next is gone."""
        with Metadata.open(self._options) as metadata:
            low, high = metadata.span(topic, number)
        queries = topic == self._query_topic
        if resumed is not None:
            wanted = min(resumed, self._rewind.get(f"{topic}:{number}", resumed))
        else:
            wanted = self._begin.get(part_name(topic, number), high) if queries else low
        if queries:
            wanted = max(wanted, self._given_up.get(part_name(topic, number), wanted))
        if wanted < low:
            raise SourceError(_gone(f"{topic}:{number}", wanted, low, queries))
        if wanted > high:
            raise SourceError(
                f"{topic}:{number} ends at offset {high}, and we were at {wanted}: the topic was made anew. "
                "Start with another state directory"
            )
        return wanted


def _gone(source: str, wanted: int, low: int, queries: bool) -> str:
    ways = (
        "a checkpoint does not help: go on without them (recallflow state rebuild --give-up-unanswered)"
        if queries
        else "restore a checkpoint that reaches into what is left"
    )
    return (
        f"{source}: {low - wanted} records from offset {wanted} on are gone from the topic, and nothing is skipped "
        f"silently: {ways}"
    )


@dataclass(slots=True)
class _Log:
    """One Kafka partition being read: its queue, the next offset, and the offset from which on outputs count."""

    source: str
    queue: Queue
    next_offset: int
    answered_from: int


class KafkaPart(StatefulSourcePartition[Record, Offsets]):
    """The partitions of one number: queries first, then as many memory events as the hub allows."""

    def __init__(self, name: str, hub: Hub, progress: Progress, stopping: threading.Event) -> None:
        self._name = name
        self._hub = hub
        self._progress = progress
        self._stopping = stopping
        self.queries: list[_Log] = []
        self.memories: list[_Log] = []

    def next_batch(self) -> list[Record]:
        if self._stopping.is_set():
            raise StopIteration
        self._hub.begin(self._name)
        records = [record for log in self.queries for record in _take(log, QUERIES_MAX)]
        if not records and (allowed := self._hub.memories_allowed()):
            records = [record for log in self.memories for record in _take(log, allowed)]
            self._hub.gave(len(records))
        if records:
            self._progress.gave(records[0].position.topic, len(records))
        else:
            self._hub.rest(self._name)
        return records

    def next_awake(self) -> datetime:
        # The hub paces; without this Bytewax would rest 1 ms after each empty batch.
        return AT_ONCE

    def snapshot(self) -> Offsets:
        return {log.source: (log.next_offset, log.answered_from) for log in (*self.queries, *self.memories)}

    def close(self) -> None:
        self._hub.leave()


def _take(log: _Log, most: int) -> list[Record]:
    records: list[Record] = []
    while log.queue and len(records) < most:
        records.append(_record(log, log.queue.popleft()))
    return records


def _record(log: _Log, message: Any) -> Record:
    offset: int = message.offset()
    log.next_offset = offset + 1
    return Record(
        position=Position(message.topic(), message.partition(), offset),
        value=message.value() or b"",
        append_ms=message.timestamp()[1],
        key=message.key(),
        headers=tuple(message.headers() or ()),
        silent=offset < log.answered_from,
    )
