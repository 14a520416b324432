"""One user's records in topics, their retention by Kafka, and the outcome of an erasure request."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from recallflow.connectors.kafka.admin import topic_settings
from recallflow.connectors.kafka.messages import Letter, identity_of, json_or_wire, time_ms
from recallflow.connectors.kafka.sender import Sender
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader, current_records
from recallflow.kafka_options import KafkaOptions
from recallflow.owner import Owner
from recallflow.process import TimeLimit
from recallflow.records import Position

TOMBSTONE_BYTES = 16 * 1024  # smallest record limit of a topic
FLUSH_S = 60.0
NO_LIMIT = -1
SEARCH_INTERVAL_S = 0.2  # pause between two searches for an outcome


class Retention(NamedTuple):
    """Retention of a topic according to its configuration. -1 means unlimited."""

    policies: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    segment_ms: int

    @property
    def longest_ms(self) -> int | None:
        """Return the time after which a record is gone; None if there is no such time. Kafka deletes whole segments,
        each `retention_ms` after its last record, and a segment takes records for `segment_ms`."""
        if "delete" not in self.policies or self.retention_ms == NO_LIMIT:
            return None
        return self.retention_ms + self.segment_ms


@dataclass(slots=True)
class RemainingRecords:
    """Remaining records of a user in a topic.

    `count` excludes tombstones; `newest_ms` is the append time of the last record. In `partitions_without_tombstone`,
    the last record under the user's key is not a tombstone. `retention` is None if the brokers do not report it."""

    topic: str
    retention: Retention | None
    count: int = 0
    newest_ms: int = 0
    partitions_without_tombstone: list[int] = field(default_factory=list)


def remaining_records(
    options: KafkaOptions, topics: Sequence[str], tenant_id: str, user_id: str
) -> Iterator[RemainingRecords]:
    """Yield the remaining records of a user in each existing topic. Read the topics whole. Raise SourceError."""
    user = _User(tenant_id, user_id)
    with TopicReader(options, TAIL, decodes=True) as reader:
        existing = reader.existing(topics)
        settings = topic_settings(AdminClient(options.admin()), [*existing])
        for topic, numbers in existing.items():
            reported = settings[topic]
            found = RemainingRecords(topic, None if isinstance(reported, KafkaError) else _retention(reported))
            for number in numbers:
                _count(reader, found, number, user)
            yield found


def records_of(options: KafkaOptions, topic: str, tenant_id: str, user_id: str) -> Iterator[Any]:
    """Return the messages of a topic that belong to a user. Raise SourceError while they are read."""
    return filter(_User(tenant_id, user_id).has, current_records(options, topic, decodes=True))


def send_tombstones(options: KafkaOptions, found: Sequence[RemainingRecords], key: bytes) -> None:
    """Send a tombstone to each partition that holds records of the user. Raise SinkError."""
    if not found:
        return
    sender = Sender(options, dict.fromkeys((one.topic for one in found), TOMBSTONE_BYTES), remedy="repeat the command")
    for one in found:
        for number in one.partitions_without_tombstone:
            sender.send(one.topic, None, key, partition=number)
    sender.flush(TimeLimit(FLUSH_S))


def _retention(settings: Mapping[str, str]) -> Retention:
    policies = tuple(one.strip() for one in settings["cleanup.policy"].split(","))
    return Retention(policies, *(int(settings[name]) for name in ("retention.ms", "retention.bytes", "segment.ms")))


def _count(reader: TopicReader, found: RemainingRecords, number: int, user: "_User") -> None:
    has_value = False  # whether the last record under the user's key is no tombstone
    for message in reader.current_records(found.topic, number):
        if message.value() is None:
            has_value &= message.key() != user.key
        elif user.has(message):
            found.count += 1
            found.newest_ms = max(found.newest_ms, time_ms(message))
            has_value |= message.key() == user.key
    if has_value:
        found.partitions_without_tombstone.append(number)


class _User:
    """Filter of a user's records: by their key, or else by the ids in their value."""

    def __init__(self, tenant_id: str, user_id: str) -> None:
        self.key = Owner(tenant_id, "", user_id).record_key
        self._ids = tenant_id, user_id
        # A record that contains the user id in none of its JSON spellings need not be parsed.
        self._spellings = {orjson.dumps(user_id)[1:-1], json.dumps(user_id).encode()[1:-1], user_id.encode()}

    def has(self, message: Any) -> bool:
        if message.key() == self.key:
            return True
        value = json_or_wire(message)
        if not any(spelling in value for spelling in self._spellings):
            return False
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        return isinstance(fields, dict) and (fields.get("tenant_id"), fields.get("user_id")) == self._ids


class Outcome(NamedTuple):
    """Outcome of an event: the outcome in its receipt, or the code and detail of its refusal."""

    outcome: str
    refused: bool = False
    detail: str = ""


class OutcomeReader:
    """Reader of the topics of receipts and dead letters, from their current ends."""

    def __init__(self, options: KafkaOptions, topics: Sequence[str]) -> None:
        self._reader = TopicReader(options, TAIL)
        self._next_offsets = {part: end for part, (_, end) in self._reader.spans(topics).items()}

    def outcome_of(self, position: Position, time_limit: TimeLimit) -> Outcome | None:
        """Return the outcome of the record at a position; None if it does not come in time."""
        while (found := self._search(position)) is None and not time_limit.poll_expired():
            time.sleep(SEARCH_INTERVAL_S)
        return found

    def _search(self, position: Position) -> Outcome | None:
        for (topic, number), offset in self._next_offsets.items():
            for message in self._reader.read_to_end(topic, number, offset):
                self._next_offsets[topic, number] = message.offset() + 1
                if any(source == str(position).encode() for source, _ in identity_of(message)):
                    return _outcome(message)
        return None

    def close(self) -> None:
        self._reader.close()


def _outcome(message: Any) -> Outcome:
    if (letter := Letter.of(message)) is not None:
        return Outcome(letter.error["code"], True, letter.error["detail"])
    return Outcome(orjson.loads(message.value())["outcome"])
