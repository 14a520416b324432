"""One user's records in topics, until when Kafka keeps them, and the outcome of an erasure request."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import orjson
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from recallflow.background import Patience
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import CONFIGS_S
from recallflow.connectors.kafka.dead_letters import Letter
from recallflow.connectors.kafka.messages import identity_of, time_ms
from recallflow.connectors.kafka.sender import Sender
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader
from recallflow.owner import Owner
from recallflow.records import Position

COMPACT, DELETE = "compact", "delete"
TOMBSTONE_BYTES = 16 * 1024  # what a topic takes at least
FLUSH_S = 60.0
NO_LIMIT = -1
LOOK_S = 0.2  # between two looks


class Retention(NamedTuple):
    """How long a topic keeps records, as its configuration says. -1: without limit."""

    policies: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    segment_ms: int

    @property
    def compacts(self) -> bool:
        return COMPACT in self.policies

    @property
    def deletes(self) -> bool:
        return DELETE in self.policies

    @property
    def longest_ms(self) -> int | None:
        """After so long a record is gone: Kafka deletes whole segments, each so long after its last record, and one
        segment takes records for `segment_ms`. None: there is no such time."""
        if not self.deletes or self.retention_ms == NO_LIMIT:
            return None
        return self.retention_ms + self.segment_ms


@dataclass(slots=True)
class Remains:
    """What a topic holds of a user. `count`: records, tombstones not among them; `newest_ms`: when the last one was
    appended; `keyed_in`: partitions with records under the user's key, of which the last one is no tombstone. A topic
    whose configuration the brokers do not tell has no `retention`."""

    topic: str
    retention: Retention | None
    count: int = 0
    newest_ms: int = 0
    keyed_in: list[int] = field(default_factory=list)


def remains(options: KafkaOptions, topics: Sequence[str], tenant_id: str, user_id: str) -> Iterator[Remains]:
    """What each of the topics holds of a user; those that are not there are left out. Reads them whole. Raises
    SourceError."""
    user = _User(tenant_id, user_id)
    with TopicReader(options, TAIL) as reader:
        there = reader.existing(topics)
        retentions = ask_retentions(options, [*there])
        for topic, numbers in there.items():
            found = Remains(topic, retentions[topic])
            for number in numbers:
                _count(reader, found, number, user)
            yield found


def records_of(options: KafkaOptions, topic: str, tenant_id: str, user_id: str) -> Iterator[Any]:
    """The messages of a topic that are a user's. Raises SourceError."""
    user = _User(tenant_id, user_id)
    with TopicReader(options, TAIL) as reader:
        for (_, number), (low, _) in reader.spans([topic]).items():
            yield from filter(user.has, reader.read_to_end(topic, number, low))


def send_tombstones(options: KafkaOptions, found: Sequence[Remains], key: bytes) -> None:
    """Sends a tombstone behind the user's records, in each partition that has some. Raises SinkError."""
    if not found:
        return
    sender = Sender(options, dict.fromkeys((one.topic for one in found), TOMBSTONE_BYTES), then="do the same again")
    for one in found:
        for number in one.keyed_in:
            sender.send(one.topic, None, key, partition=number)
    sender.flush(Patience(FLUSH_S))


def ask_retentions(options: KafkaOptions, topics: Sequence[str]) -> dict[str, Retention | None]:
    """How long each topic keeps records; None where the brokers do not say."""
    if not topics:
        return {}
    admin = AdminClient(options.admin())
    asked = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, one) for one in topics], request_timeout=CONFIGS_S
    )
    return {resource.name: _retention(future) for resource, future in asked.items()}


def _retention(future: Any) -> Retention | None:
    try:
        found: Mapping[str, Any] = future.result()
    except KafkaException:  # no right to describe it
        return None
    policies = tuple(one.strip() for one in found["cleanup.policy"].value.split(","))
    return Retention(policies, *(int(found[name].value) for name in ("retention.ms", "retention.bytes", "segment.ms")))


def _count(reader: TopicReader, found: Remains, number: int, user: "_User") -> None:
    low, high = reader.span(found.topic, number)
    is_left = False
    for message in reader.read_to_end(found.topic, number, low) if low < high else ():
        if message.value() is None:
            is_left &= message.key() != user.key
        elif user.has(message):
            found.count += 1
            found.newest_ms = max(found.newest_ms, time_ms(message))
            is_left |= message.key() == user.key
    if is_left:
        found.keyed_in.append(number)


class _User:
    """Tells a user's records: by their key, or else by who they say they are about."""

    def __init__(self, tenant_id: str, user_id: str) -> None:
        self.key = Owner(tenant_id, "", user_id).record_key
        self._who = tenant_id, user_id
        # Most records name nobody like this in whatever spelling, and need not be parsed.
        self._spelt = {orjson.dumps(user_id)[1:-1], json.dumps(user_id).encode()[1:-1], user_id.encode()}

    def has(self, message: Any) -> bool:
        value: bytes = message.value() or b""
        if message.key() == self.key:
            return True
        if not any(one in value for one in self._spelt):
            return False
        try:
            said = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        return isinstance(said, dict) and (said.get("tenant_id"), said.get("user_id")) == self._who


class Outcome(NamedTuple):
    """`outcome`: what a receipt says, or the code of the refusal; `detail`: why it was refused."""

    outcome: str
    refused: bool = False
    detail: str = ""


class OutcomeReader:
    """Follows the topics of receipts and dead letters, from where they end when it is made."""

    def __init__(self, options: KafkaOptions, topics: Sequence[str]) -> None:
        """Raises SourceError."""
        self._reader = TopicReader(options, TAIL)
        self._places = {part: end for part, (_, end) in self._reader.spans(topics).items()}

    def of(self, position: Position, patience: Patience) -> Outcome | None:
        """What became of the record at a position, once that is told; None where it is not told in time."""
        between_looks = threading.Event()
        while (found := self._look(position)) is None and not patience.ended():
            between_looks.wait(LOOK_S)
        return found

    def _look(self, position: Position) -> Outcome | None:
        for (topic, number), place in self._places.items():
            for message in self._reader.read_to_end(topic, number, place):
                self._places[topic, number] = message.offset() + 1
                if any(source == str(position).encode() for source, _ in identity_of(message)):
                    return _outcome(message)
        return None

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _outcome(message: Any) -> Outcome:
    letter = Letter.of(message)
    if letter is not None:
        return Outcome(letter.error["code"], True, letter.error["detail"])
    return Outcome(orjson.loads(message.value())["outcome"])
