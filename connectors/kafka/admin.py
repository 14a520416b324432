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
from recallflow.kafka_clients import is_retriable
from recallflow.kafka_options import KafkaOptions
from recallflow.process import TimeLimit

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


def describe_topics(admin: AdminClient, topics: Sequence[str]) -> dict[str, TopicDescription]:
    """Raise KafkaException."""
    admin.poll(0)
    futures = admin.describe_topics(TopicCollection([*topics]), request_timeout=DESCRIBE_S)
    found = {topic: future.result() for topic, future in futures.items()}
    return {topic: TopicDescription(str(one.topic_id), len(one.partitions)) for topic, one in found.items()}


def first_descriptions(options: KafkaOptions, topics: Sequence[str]) -> dict[str, TopicDescription]:
    """Describe topics. Raise SourceError where brokers or topics are missing, or refuse us."""
    with TopicReader(options) as reader:
        reader.partitions(topics)
    try:
        return describe_topics(AdminClient(options.admin()), topics)
    except KafkaException as error:
        raise SourceError(f"cannot ask {options.bootstrap_servers} about topics: {error.args[0].str()}") from error


class TopicConfig(NamedTuple):
    """Configuration of a topic.

    `most_bytes` limits a batch, and so a record with its overhead. `stamped_by_log` tells whether the broker sets
    timestamps. `keeps_all` tells whether no record is ever removed by age, size or compaction."""

    most_bytes: int = UNKNOWN_BYTES
    stamped_by_log: bool = False
    keeps_all: bool = False


def ask_configs(options: KafkaOptions, topics: Iterable[str]) -> dict[str, TopicConfig]:
    """Return the configuration of each topic; for one that is not described, warn and return cautious defaults."""
    found = ask_settings(AdminClient(options.admin()), topics, CONFIGS_S)
    return {topic: _config(topic, settings) for topic, settings in found.items()}


def ask_settings(
    admin: AdminClient, topics: Iterable[str], timeout_s: float
) -> dict[str, Mapping[str, str] | KafkaError]:
    """Return the settings of each topic, or the reason for their absence."""
    wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    asked = admin.describe_configs(wanted, request_timeout=timeout_s) if wanted else {}
    found = {resource.name: result_of(future) for resource, future in asked.items()}
    return {
        topic: one if isinstance(one, KafkaError) else {name: str(entry.value) for name, entry in one.items()}
        for topic, one in found.items()
    }


def result_of(future: Any) -> Any:
    """Return the brokers' answer, or their KafkaError."""
    try:
        return future.result()
    except KafkaException as error:
        return error.args[0]


def _config(topic: str, settings: Mapping[str, str] | KafkaError) -> TopicConfig:
    if isinstance(settings, KafkaError):
        problem = f"records are kept to {UNKNOWN_BYTES} bytes, and times are taken for producers'"
        text = "%s: its configuration is unknown (%s): %s; grant the right to describe it"
        _log.warning(text, topic, settings.str(), problem)
        return TopicConfig()
    most_bytes = min(int(settings["max.message.bytes"]), MOST_BYTES)
    stamped_by_log = settings["message.timestamp.type"] == "LogAppendTime"
    return TopicConfig(most_bytes, stamped_by_log, KEEPS_ALL.items() <= settings.items())


def create_topics(
    options: KafkaOptions, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], replication: int
) -> dict[str, bool]:
    """Create topics with their numbers of partitions. Return which did not exist. Raise SourceError."""
    with TopicReader(options) as reader:
        reader.partitions([])  # fails soon where the brokers cannot be reached, or refuse us
    admin = AdminClient(options.admin())  # answers need it: without a name it would be deleted before them
    wanted = [
        NewTopic(topic, count, replication, config=dict(config.get(topic, {}))) for topic, count in partitions.items()
    ]
    try:
        futures = admin.create_topics(wanted, operation_timeout=CREATE_S)
        return {topic: _done(future, KafkaError.TOPIC_ALREADY_EXISTS) for topic, future in futures.items()}
    except KafkaException as error:
        raise SourceError(f"cannot create topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def delete_topics(options: KafkaOptions, topics: Sequence[str]) -> None:
    """Delete the existing topics among those named. Raise SourceError."""
    admin = AdminClient(options.admin())
    try:
        for future in admin.delete_topics([*topics], operation_timeout=CREATE_S).values():
            _done(future, KafkaError.UNKNOWN_TOPIC_OR_PART)
    except KafkaException as error:
        raise SourceError(f"cannot delete topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def _done(future: Any, unneeded: int) -> bool:
    """Return whether a change was made; False for the error code of an unneeded one. Raise KafkaException."""
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() == unneeded:
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


class ClusterInspector:
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
        found = ask_settings(self._admin, [topic], ASK_S)[topic]
        return found.str() if isinstance(found, KafkaError) else found

    def group_rights(self, group: str) -> frozenset[str] | str | None:
        """Return the permitted operations on a consumer group, or the reason for their absence. Retry while the brokers
        report that no coordinator is available yet, as before the first group of a cluster."""
        waiting = TimeLimit(ASK_S)
        while True:
            (asked,) = self._admin.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=ASK_S
            ).values()
            if not isinstance(found := result_of(asked), KafkaError):
                return _rights(found.authorized_operations)
            if not is_retriable(found) or waiting.poll_expired():
                return found.str()
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
        found = map(result_of, self._admin.list_offsets(parts, request_timeout=ASK_S).values())
        times = [int(one.timestamp) for one in found if not isinstance(one, KafkaError)]
        return max((one for one in times if one > 0), default=None)


def _topic(name: str, future: Any) -> Topic:
    if isinstance(found := result_of(future), KafkaError):
        return Topic(name, found.str(), missing=found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
    leaderless = tuple(one.id for one in found.partitions if one.leader is None)
    return Topic(name, None, False, len(found.partitions), leaderless, _rights(found.authorized_operations))


def _rights(operations: Iterable[AclOperation] | None) -> frozenset[str] | None:
    return None if operations is None else frozenset(one.name for one in operations)
