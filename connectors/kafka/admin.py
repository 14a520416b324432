"""Requests to the brokers: create, delete and describe topics, list rights, find the newest record."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, TRY_AGAIN_S, TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_clients import is_retriable
from recallflow.kafka_options import KafkaOptions
from recallflow.process import TimeLimit

CREATE_TIMEOUT_S = 30.0
ADMIN_TIMEOUT_S = 10.0  # of other requests: by commands, and by an engine when it starts
BATCH_BYTES_UNKNOWN = 900_000  # assumed batch limit if the brokers report none: below a topic's default (1,048,588)
BATCH_BYTES_MAX = 64 * 1024 * 1024  # a broker refuses requests above 100 MB (socket.request.max.bytes)
KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # settings: no record expires

_log = logging.getLogger(__name__)


class TopicDescription(NamedTuple):
    """Description of a topic. A topic that is deleted and created again has another id."""

    id: str
    partitions: int


def describe_topics(admin: AdminClient, topics: Sequence[str]) -> dict[str, TopicDescription]:
    """Raise KafkaException."""
    admin.poll(0)  # serves callbacks of the client
    futures = admin.describe_topics(TopicCollection([*topics]), request_timeout=REQUEST_TIMEOUT_S)
    results = ((topic, future.result()) for topic, future in futures.items())
    return {topic: TopicDescription(str(found.topic_id), len(found.partitions)) for topic, found in results}


def describe_required_topics(options: KafkaOptions, topics: Sequence[str]) -> dict[str, TopicDescription]:
    """Describe topics. Raise SourceError if a broker or a topic is missing, or refuses us."""
    admin = AdminClient(options.admin())
    with TopicReader(options) as reader:
        reader.partitions(topics)
        return reader.ask(lambda: describe_topics(admin, topics))  # type: ignore[no-any-return]


@contextmanager
def _source_errors(action: str, options: KafkaOptions) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise SourceError(f"cannot {action} at {options.bootstrap_servers}: {error.args[0].str()}") from error


class TopicConfig(NamedTuple):
    """Configuration of a topic. `most_bytes` limits a batch, and so a record with its overhead. `stamped_by_log`: the
    broker sets the timestamps. `keeps_all`: no record is ever removed by age, size or compaction."""

    most_bytes: int = BATCH_BYTES_UNKNOWN
    stamped_by_log: bool = False
    keeps_all: bool = False


def topic_configs(options: KafkaOptions, topics: Iterable[str]) -> dict[str, TopicConfig]:
    """Return the configuration of each topic. Warn, and return cautious defaults, if the brokers do not report it."""
    settings = topic_settings(AdminClient(options.admin()), topics)
    return {topic: _config(topic, found) for topic, found in settings.items()}


def topic_settings(admin: AdminClient, topics: Iterable[str]) -> dict[str, Mapping[str, str] | KafkaError]:
    """Return the settings of each topic (name → value), or the reason for their absence."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    futures = admin.describe_configs(resources, request_timeout=ADMIN_TIMEOUT_S) if resources else {}
    results = ((resource.name, _result(future)) for resource, future in futures.items())
    return {
        topic: found if isinstance(found, KafkaError) else {name: str(entry.value) for name, entry in found.items()}
        for topic, found in results
    }


def _result(future: Any) -> Any:
    """Return the result of a request, or its KafkaError."""
    try:
        return future.result()
    except KafkaException as error:
        return error.args[0]


def _config(topic: str, settings: Mapping[str, str] | KafkaError) -> TopicConfig:
    if isinstance(settings, KafkaError):
        text = "%s: its configuration is unknown (%s): assuming a limit of %d bytes and timestamps set by producers; %s"
        _log.warning(text, topic, settings.str(), BATCH_BYTES_UNKNOWN, "grant the right DESCRIBE_CONFIGS on it")
        return TopicConfig()
    most_bytes = min(int(settings["max.message.bytes"]), BATCH_BYTES_MAX)
    stamped_by_log = settings["message.timestamp.type"] == "LogAppendTime"
    return TopicConfig(most_bytes, stamped_by_log, KEEPS_ALL.items() <= settings.items())


def create_topics(
    options: KafkaOptions, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], replication: int
) -> dict[str, bool]:
    """Create topics (`partitions`: topic → count). Return topic → whether it is new. Raise SourceError."""
    with TopicReader(options) as reader:
        reader.partitions([])  # fails soon where the brokers cannot be reached, or refuse us
    admin = AdminClient(options.admin())  # a variable, because the client must exist until its requests are answered
    topics = [
        NewTopic(topic, count, replication, config=dict(config.get(topic, {}))) for topic, count in partitions.items()
    ]
    with _source_errors("create topics", options):
        futures = admin.create_topics(topics, operation_timeout=CREATE_TIMEOUT_S)
        return {topic: _has_changed(future, KafkaError.TOPIC_ALREADY_EXISTS) for topic, future in futures.items()}


def delete_topics(options: KafkaOptions, topics: Sequence[str]) -> None:
    """Delete those of the topics that exist. Raise SourceError."""
    admin = AdminClient(options.admin())
    with _source_errors("delete topics", options):
        for future in admin.delete_topics([*topics], operation_timeout=CREATE_TIMEOUT_S).values():
            _has_changed(future, KafkaError.UNKNOWN_TOPIC_OR_PART)


def _has_changed(future: Any, unneeded_code: int) -> bool:
    """Return whether a change was made; `unneeded_code` is the error of an unneeded change. Raise KafkaException."""
    error = _result(future)
    if isinstance(error, KafkaError) and error.code() != unneeded_code:
        raise KafkaException(error)
    return not isinstance(error, KafkaError)


class InspectedTopic(NamedTuple):
    """Topic as the brokers describe it. `problem` is the reason if they do not. `leaderless` are the partitions
    without a leader. `rights` are the permitted operations; None if the brokers do not report them."""

    name: str
    problem: str | None = None
    is_missing: bool = False  # whether the topic does not exist
    partitions: int = 0
    leaderless: tuple[int, ...] = ()
    rights: frozenset[str] | None = None


# Requests of `recallflow doctor`. They raise KafkaException if no broker answers.


def inspect_topics(admin: AdminClient, names: Iterable[str]) -> dict[str, InspectedTopic]:
    topics = TopicCollection([*dict.fromkeys(names)])
    futures = admin.describe_topics(topics, include_authorized_operations=True, request_timeout=ADMIN_TIMEOUT_S)
    return {name: _topic(name, future) for name, future in futures.items()}


def group_rights(admin: AdminClient, group: str) -> frozenset[str] | str | None:
    """Return the permitted operations on a consumer group, or the reason for their absence. Retry while the brokers
    report that no coordinator is available yet, as before the first group of a cluster."""
    time_limit = TimeLimit(ADMIN_TIMEOUT_S)
    while True:
        (future,) = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=ADMIN_TIMEOUT_S
        ).values()
        if not isinstance(found := _result(future), KafkaError):
            return _rights(found.authorized_operations)
        if not is_retriable(found) or time_limit.poll_expired():
            return found.str()
        time.sleep(TRY_AGAIN_S)


def newest_ms(admin: AdminClient, topics: Iterable[InspectedTopic]) -> int | None:
    """Return the time of the newest record of these topics; None if they are empty or the brokers do not answer."""
    parts = {
        TopicPartition(topic.name, number): OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        for topic in topics
        for number in range(topic.partitions)
    }
    futures = admin.list_offsets(parts, request_timeout=ADMIN_TIMEOUT_S).values() if parts else ()
    results = (found for found in map(_result, futures) if not isinstance(found, KafkaError))
    return max((time_ms for found in results if (time_ms := int(found.timestamp)) > 0), default=None)


def _topic(name: str, future: Any) -> InspectedTopic:
    if isinstance(found := _result(future), KafkaError):
        return InspectedTopic(name, found.str(), is_missing=found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
    leaderless = tuple(one.id for one in found.partitions if one.leader is None)
    return InspectedTopic(name, None, False, len(found.partitions), leaderless, _rights(found.authorized_operations))


def _rights(operations: Iterable[AclOperation] | None) -> frozenset[str] | None:
    return None if operations is None else frozenset(one.name for one in operations)
