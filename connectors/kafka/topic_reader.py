"""Reading of topics: their partitions, offsets and records."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.cloud_events import response_json
from recallflow.connectors.kafka.messages import REPLAYED_HEADER, Letter, headers_of, time_ms
from recallflow.errors import SourceError
from recallflow.fields import format_time
from recallflow.kafka_clients import ClientErrors, is_retriable, remedy_of
from recallflow.kafka_options import KafkaOptions
from recallflow.process import TimeLimit

GIVE_UP_S = 10.0  # time limit of a request and its retries
REQUEST_TIMEOUT_S = 2.0  # timeout of one attempt, after which refused access is detected
TRY_AGAIN_S = 0.1  # pause before a retry
POLL_S = 0.5
READ_MAX = 1_000  # records of one `read_many`
# Our own outputs are in no transaction; an open transaction of another producer must not hide them.
UNCOMMITTED = {"isolation.level": "read_uncommitted"}
# At the end of a partition the broker delays its answer by up to half a second, and a start reads many partitions.
TAIL = {"fetch.wait.max.ms": 10, **UNCOMMITTED}
NewConsumer = Callable[..., Any]  # configuration → confluent_kafka.Consumer, whose stubs are vague

_log = logging.getLogger(__name__)


class TopicReader(AbstractContextManager["TopicReader"]):
    """Reader of topic metadata, and of partitions to their end. Requests are retried after retriable errors, such as
    those of a new topic. Methods raise SourceError for unreachable brokers, refusals, and missing topics."""

    def __init__(
        self,
        options: KafkaOptions,
        consumer_options: Mapping[str, object] | None = None,  # further options of librdkafka
        *,
        give_up_s: float | None = None,  # time limit of a request and its retries
        new_consumer: NewConsumer = Consumer,
        stopping: threading.Event | None = None,  # event that ends retries
        decodes: bool = False,  # whether to decode records with registered schemas
    ) -> None:
        self._options = options
        self._give_up_s = GIVE_UP_S if give_up_s is None else give_up_s
        self._stopping = stopping or threading.Event()
        self.client_errors = ClientErrors()
        fixed_options = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "error_cb": self.client_errors}
        self.consumer: Any = new_consumer(options.consumer() | fixed_options | dict(consumer_options or {}))
        self.ends: dict[int, int] = {}  # partition → its end offset, once reached
        self.ended: set[tuple[str, int]] = set()  # partitions that were read to their end
        self._registry = options.registry if decodes else None
        self._has_metadata = False  # whether a broker has answered a request

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.consumer.close()

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        found = self.existing(topics)
        if missing := [topic for topic in topics if topic not in found]:
            remedy = "correct its name, or create it (recallflow topics create, with the same options for topics)"
            raise SourceError(f"no topic {' and no topic '.join(missing)}: {remedy}")
        return found

    def existing(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return topic → partition numbers, for those topics that exist."""
        found = self.ask(lambda: self._list(topics))
        existing = (topic for topic in topics if topic in found and found[topic].error is None)
        return {topic: sorted(found[topic].partitions) for topic in existing}

    def span(self, topic: str, number: int) -> tuple[int, int]:
        """Return the first offset of a partition, and its last stable offset; with UNCOMMITTED, its high watermark."""
        part = TopicPartition(topic, number)
        span: tuple[int, int] = self.ask(lambda: self.consumer.get_watermark_offsets(part, timeout=REQUEST_TIMEOUT_S))
        return span

    def spans(self, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (topic, partition) → `span`, for every partition of the topics."""
        found = self.partitions(topics)
        return {(topic, number): self.span(topic, number) for topic, numbers in found.items() for number in numbers}

    def offset_at(self, topic: str, number: int, at_ms: int) -> int:
        """Return the first offset of a partition at or after a time; its end if there is none."""
        (found,) = self.offsets_for_times([TopicPartition(topic, number, at_ms)])
        return self.span(topic, number)[1] if found.offset < 0 else int(found.offset)

    def offsets_for_times(self, times: list[TopicPartition]) -> list[TopicPartition]:
        """Return each partition's first offset at or after the time in its `offset`; -1 if there is none. For the time
        OFFSET_END, return its last stable offset; with UNCOMMITTED, its high watermark."""

        def request() -> list[TopicPartition]:
            timeout_s = min(REQUEST_TIMEOUT_S, self._give_up_s)
            found: list[TopicPartition] = self.consumer.offsets_for_times(times, timeout=timeout_s)
            for error in (part.error for part in found if part.error is not None):
                raise KafkaException(error)
            return found

        return self.ask(request)  # type: ignore[no-any-return]

    def first_records(self, spans: Mapping[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], Any]:
        """Return (topic, partition) → first record from the start of its span on, if there is one."""
        filled = {part: low for part, (low, high) in spans.items() if low < high}
        firsts = {part: next(self.read_to_end(*part, low), None) for part, low in filled.items()}
        return {part: first for part, first in firsts.items() if first is not None}

    def cluster_id(self) -> str:
        found: str = self.ask(lambda: self.consumer.list_topics(timeout=REQUEST_TIMEOUT_S).cluster_id)
        return found

    def ask(self, request: Callable[[], Any]) -> Any:
        """Return the result of a request. Retry it after retriable errors. Raise SourceError."""
        time_limit = TimeLimit(self._give_up_s)
        while True:
            try:
                answer = request()
            except KafkaException as error:
                reason = error.args[0]
                self.consumer.poll(0)  # calls the error callbacks; nothing is assigned yet
                self.client_errors.check()
                # A restarted broker does not know its partitions for a moment.
                is_transient = is_retriable(reason) or reason.code() == KafkaError._UNKNOWN_PARTITION
                if not is_transient or time_limit.poll_expired() or self._stopping.is_set():
                    problem = f"{reason.str()}{self.client_errors.last_reason}"
                    remedy = f"; {known}" if (known := remedy_of(problem, "")) else ""
                    raise SourceError(
                        f"cannot reach Kafka at {self._options.bootstrap_servers}: {problem}{remedy}"
                    ) from error
            else:
                self._has_metadata, self.client_errors.last_reason = True, ""
                return answer
            time.sleep(TRY_AGAIN_S)

    def add(self, topic: str, number: int, offset: int) -> None:
        """Let `read` include a partition, from an offset."""
        self._look_up(topic)
        try:
            self.consumer.incremental_assign([TopicPartition(topic, number, offset)])
        except KafkaException as error:
            raise SourceError(f"{topic}:{number}: cannot be read: {error.args[0].str()}") from error

    def read_to_end(self, topic: str, number: int, offset: int) -> Iterator[Any]:
        """Yield the records of one partition from an offset to its current end, and store that end in `ends`."""
        self._look_up(topic)
        self.consumer.assign([TopicPartition(topic, number, offset)])
        self.ends.pop(number, None)
        time_limit: TimeLimit | None = None
        while number not in self.ends:
            if (message := self.read(POLL_S)) is not None:
                time_limit = None
                yield message
            elif (time_limit := time_limit or TimeLimit(stopping=self._stopping)).poll_expired():
                raise SourceError(f"{topic}:{number}: could not be read to its end {time_limit}")

    def current_records(self, topic: str, number: int) -> Iterator[Any]:
        """Yield the records of one partition from its first one to its current end."""
        low, high = self.span(topic, number)
        yield from self.read_to_end(topic, number, low) if low < high else ()

    def read(self, wait_s: float) -> Any:
        """Return the next record of the assigned partitions; None if none comes in time."""
        message = self._call(lambda: self.consumer.poll(wait_s))
        return None if message is None or not self._is_record(message) else message

    def read_many(self) -> list[Any]:
        """Return available records, possibly none. Add partitions that were read to their end to `ended`."""
        found = self._call(lambda: self.consumer.consume(READ_MAX, POLL_S))
        return [message for message in found if self._is_record(message)]

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            found = call()
        except KafkaException as failed:
            raise SourceError(f"cannot continue to read Kafka: {failed.args[0].str()}") from failed
        self.client_errors.check()
        return found

    def _is_record(self, message: Any) -> bool:
        """Return whether a message is a record, and decode it. Raise SourceError for permanent errors."""
        if (error := message.error()) is None:
            if self._registry is not None:
                self._registry.open(message)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            # No offset of a record shows the end: compaction and transactions leave gaps.
            self.ends[message.partition()] = message.offset()
            self.ended.add((message.topic(), message.partition()))
        elif is_retriable(error):
            _log.warning("%s:%s: %s; retrying", message.topic(), message.partition(), error.str())
        else:
            raise SourceError(f"{message.topic()}:{message.partition()}: cannot be read: {error.str()}")
        return False

    def _look_up(self, topic: str) -> None:
        """Request a topic's metadata before an assignment, which would delay the first fetch by a second."""
        if not self._has_metadata:
            self.ask(lambda: self.consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S))

    def _list(self, topics: Sequence[str]) -> Any:
        found = self.consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        for topic in topics:
            if topic in found and (error := found[topic].error) is not None and is_retriable(error):
                raise KafkaException(error)
        return found


def await_brokers(options: KafkaOptions, stopping: threading.Event) -> None:
    """Return once the brokers can be reached, or `stopping` is set."""
    while not stopping.is_set():
        try:
            with TopicReader(options) as reader:
                reader.cluster_id()
        except SourceError as error:
            _log.warning("waiting for Kafka: %s", error)
        else:
            return


def current_records(options: KafkaOptions, topic: str, *, decodes: bool = False) -> Iterator[Any]:
    """Yield all current records of a topic, partition by partition. Raise SourceError."""
    with TopicReader(options, TAIL, decodes=decodes) as reader:
        for number in reader.partitions([topic])[topic]:
            yield from reader.current_records(topic, number)


def read_responses(options: KafkaOptions, topic: str) -> Iterator[dict[str, Any]]:
    """Yield all current responses as rows of an export, partition by partition. Raise SourceError."""
    return map(_response_row, current_records(options, topic, decodes=True))


def _response_row(message: Any) -> dict[str, Any]:
    value = response_json(message.value() or b"")
    try:
        response = orjson.loads(value)
    except orjson.JSONDecodeError:
        response = value.decode(errors="replace")
    fields = response if isinstance(response, dict) else {}
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "appended_at": format_time(time_ms(message)),
        "key": (message.key() or b"").decode(errors="replace"),
        "query_id": fields.get("query_id"),
        "status": fields.get("status"),
        "processing_time_ms": fields.get("processing_time_ms"),
        "response": response,
    }


def read_letters(options: KafkaOptions, topic: str) -> Iterator[Letter]:
    """Return all current dead letters, partition by partition. Raise SourceError while they are read."""
    return filter(None, map(Letter.of, current_records(options, topic)))


def letters_to_replay(options: KafkaOptions, topic: str) -> list[Letter]:
    """Return the dead letters that no replay has sent. Raise SourceError, also during an open transaction."""
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = reader.spans([topic])
    letters, sent = list[Letter](), set[str]()
    with TopicReader(options) as reader:
        for (_, number), (low, high) in spans.items():
            if (stable := reader.span(topic, number)[1]) < high:
                remedy = "retry after its end, which comes 30 s after a crash of dlq replay"
                raise SourceError(f"{topic}:{number}: a transaction is open since offset {stable}; {remedy}")
            for message in reader.read_to_end(topic, number, low) if low < high else ():
                if (letter := Letter.of(message)) is not None:
                    letters.append(letter)
                sent.update(
                    (value or b"").decode() for name, value in headers_of(message) or () if name == REPLAYED_HEADER
                )
    return [letter for letter in letters if str(letter.position) not in sent]


def with_originals(options: KafkaOptions, letters: Sequence[Letter]) -> list[Letter]:
    """Return the letters. Complete those with missing parts if their topic still has the record."""
    if not any(letter.missing for letter in letters):
        return [*letters]
    with TopicReader(options) as reader:
        topics = reader.existing([*{letter.source.topic for letter in letters}])
        return [_completed(reader, one) if one.missing and one.source.topic in topics else one for one in letters]


def _completed(reader: TopicReader, letter: Letter) -> Letter:
    low, high = reader.span(letter.source.topic, letter.source.partition)
    if not low <= letter.source.offset < high:
        return letter
    first = next(reader.read_to_end(*letter.source), None)
    return letter if first is None or first.offset() != letter.source.offset else letter.completed(first)
