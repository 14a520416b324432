"""Descriptions of topics, rights and times by the brokers, and the creation of topics."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from recallflow.connectors.kafka.topic_reader import TRY_AGAIN_S, TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_clients import passes
from recallflow.kafka_options import KafkaOptions
from recallflow.process import Patience

CREATE_S = 30.0
DESCRIBE_S = 2.0
CONFIGS_S = 10.0
UNKNOWN_BYTES = 900_000  # assumed batch limit where the brokers report none: below the default of a topic (1,048,588)
KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
MOST_BYTES = 64 * 1024 * 1024  # a broker refuses requests above 100 MB (socket.request.max.bytes)
ASK_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Description of a topic. A topic that is deleted and created again has another id."""

    id: str
    partitions: int


class TopicAsker:
    """Repeated descriptions of some topics over one connection."""

    def __init__(self, options: KafkaOptions, topics: Sequence[str]) -> None:
        self._options = options
        self._topics = topics
        self._admin = AdminClient(options.admin())

    def __call__(self) -> dict[str, TopicDescription]:
        """Describe the topics. Raise KafkaException."""
        self._admin.poll(0)
        futures = self._admin.describe_topics(TopicCollection([*self._topics]), request_timeout=DESCRIBE_S)
        found = {topic: future.result() for topic, future in futures.items()}
        return {topic: TopicDescription(str(one.topic_id), len(one.partitions)) for topic, one in found.items()}

    def first(self) -> dict[str, TopicDescription]:
        """Return the first description. Raise SourceError where the brokers cannot be reached, refuse us, or lack a
        topic."""
        with TopicReader(self._options) as reader:
            reader.partitions(self._topics)
        try:
            return self()
        except KafkaException as error:
            servers = self._options.bootstrap_servers
            raise SourceError(f"cannot ask {servers} about topics: {error.args[0].str()}") from error


class TopicConfig(NamedTuple):
    """Configuration of a topic.

    `most_bytes` limits a batch, and so a record with its overhead. `stamped_by_log` tells whether the broker sets
    timestamps. `keeps_all` tells whether no record is ever removed by age, size or compaction.
    """

    most_bytes: int = UNKNOWN_BYTES
    stamped_by_log: bool = False
    keeps_all: bool = False


def ask_configs(options: KafkaOptions, topics: Iterable[str]) -> dict[str, TopicConfig]:
    """Return the configuration of each topic. For a topic that the brokers do not describe, log a warning and return
    cautious defaults."""
    admin = AdminClient(options.admin())
    wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    asked = admin.describe_configs(wanted, request_timeout=CONFIGS_S)
    return {resource.name: _config(resource.name, future) for resource, future in asked.items()}


def _config(topic: str, future: Any) -> TopicConfig:
    try:
        found = future.result()
    except KafkaException as error:
        why = error.args[0].str()
        _log.warning(
            "%s: its configuration is unknown (%s): records are kept to %d bytes, and times are taken for producers'; "
            "grant the right to describe it",
            topic,
            why,
            UNKNOWN_BYTES,
        )
        return TopicConfig()
    most_bytes = min(int(found["max.message.bytes"].value), MOST_BYTES)
    stamped_by_log = found["message.timestamp.type"].value == "LogAppendTime"
    return TopicConfig(
        most_bytes, stamped_by_log, KEEPS_ALL.items() <= {(name, one.value) for name, one in found.items()}
    )


def create_topics(
    options: KafkaOptions, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], replication: int
) -> dict[str, bool]:
    """Create topics with the given numbers of partitions. Return which were created; the others existed. Raise
    SourceError."""
    with TopicReader(options) as reader:
        reader.partitions([])  # fails soon where the brokers cannot be reached, or refuse us
    admin = AdminClient(options.admin())  # named, as its answers end with it
    wanted = [
        NewTopic(topic, count, replication, config=dict(config.get(topic, {}))) for topic, count in partitions.items()
    ]
    try:
        futures = admin.create_topics(wanted, operation_timeout=CREATE_S)
        return {topic: _is_made(future) for topic, future in futures.items()}
    except KafkaException as error:
        raise SourceError(f"cannot create topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def delete_topics(options: KafkaOptions, topics: Sequence[str]) -> None:
    """Delete the existing topics among those named. Raise SourceError."""
    admin = AdminClient(options.admin())
    try:
        for future in admin.delete_topics([*topics], operation_timeout=CREATE_S).values():
            _deleted(future)
    except KafkaException as error:
        raise SourceError(f"cannot delete topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def _deleted(future: Any) -> None:
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def _is_made(future: Any) -> bool:
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


class Topic(NamedTuple):
    """Topic as the brokers describe it. `problem` is the reason for a missing description. `rights` are the permitted
    operations, None where the brokers do not list them. `leaderless` are the partitions without a leader."""

    name: str
    problem: str | None = None
    missing: bool = False
    partitions: int = 0
    leaderless: tuple[int, ...] = ()
    rights: frozenset[str] | None = None


class Examiner:
    """Reader of cluster metadata for `recallflow doctor`. Its methods raise KafkaException where no broker answers."""

    def __init__(self, options: KafkaOptions) -> None:
        self._admin = AdminClient(options.admin())

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        asked = self._admin.describe_topics(
            TopicCollection([*dict.fromkeys(names)]), include_authorized_operations=True, request_timeout=ASK_S
        )
        return {name: _topic(name, future) for name, future in asked.items()}

    def settings(self, topic: str) -> Mapping[str, str] | str:
        """Return the settings of a topic, or the reason for their absence."""
        (asked,) = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=ASK_S
        ).values()
        try:
            return {name: str(one.value) for name, one in asked.result().items()}
        except KafkaException as error:
            return str(error.args[0].str())

    def group_rights(self, group: str) -> frozenset[str] | str | None:
        """Return the permitted operations on a consumer group, or the reason for their absence. Retry while the brokers
        report that no coordinator is available yet, as before the first group of a cluster."""
        waiting = Patience(ASK_S)
        while True:
            (asked,) = self._admin.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=ASK_S
            ).values()
            try:
                return _rights(asked.result().authorized_operations)
            except KafkaException as error:
                if not passes(error.args[0]) or waiting.ended():
                    return str(error.args[0].str())
            time.sleep(TRY_AGAIN_S)

    def newest_ms(self, topics: Iterable[Topic]) -> int | None:
        """Return the append time of the newest record of these topics; None for empty topics, or without an answer."""
        parts = {
            TopicPartition(topic.name, number): OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
            for topic in topics
            for number in range(topic.partitions)
        }
        if not parts:
            return None
        found = [_timestamp(future) for future in self._admin.list_offsets(parts, request_timeout=ASK_S).values()]
        return max((one for one in found if one > 0), default=None)


def _topic(name: str, future: Any) -> Topic:
    try:
        found = future.result()
    except KafkaException as error:
        reason = error.args[0]
        return Topic(name, reason.str(), missing=reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
    leaderless = tuple(one.id for one in found.partitions if one.leader is None)
    return Topic(name, None, False, len(found.partitions), leaderless, _rights(found.authorized_operations))


def _rights(operations: Iterable[AclOperation] | None) -> frozenset[str] | None:
    return None if operations is None else frozenset(one.name for one in operations)


def _timestamp(future: Any) -> int:
    try:
        return int(future.result().timestamp)
    except KafkaException:
        return 0
