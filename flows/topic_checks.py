"""Checks of a deployment's topics before a member joins: names, ids, record sizes, timestamps, and partition counts."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import TopicPartition

from recallflow.connectors.kafka.admin import KEEPS_ALL, TopicDescription, topic_configs
from recallflow.connectors.kafka.group_members import check_counts, check_settings
from recallflow.connectors.kafka.lease import holders
from recallflow.connectors.kafka.partition import PartitionProgress
from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, TopicReader
from recallflow.errors import SourceError, UsageError
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.parsing import is_query
from recallflow.state.description import TOPICS, describe, reads_topics
from recallflow.state.files import read_checked, write_checked

RECORD_BYTES_MIN = 16 * 1024  # enough for any key, headers and error

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TopicRegistry:
    """The topics that a state directory has read and written, in a file of the directory."""

    path: Path
    read: dict[str, str]  # command-line flag → topic that is read
    ids: dict[str, str]  # topic → id, of all topics that are read or written

    @classmethod
    def open(cls, state_dir: Path, found: Mapping[str, TopicDescription], read: Mapping[str, str]) -> Self:
        """Open the registry, and compare the topics with it. Raise SourceError if an input topic was recreated."""
        path = state_dir / TOPICS
        registry = cls._load(path, read) if path.exists() else cls(path, dict(read), {})
        registry.check(found)
        registry._write()
        return registry

    @classmethod
    def check_names(cls, state_dir: Path, read: Mapping[str, str]) -> None:
        """Raise SourceError if the directory belongs to another flow, or has read other topics."""
        if (path := state_dir / TOPICS).exists():
            cls._load(path, read)

    def check(self, found: Mapping[str, TopicDescription]) -> None:
        """Compare topic ids. Brokers before 2.8 have none. Raise SourceError if an input topic was recreated."""
        for topic, description in found.items():
            stored_id = self.ids.setdefault(topic, description.id)
            if stored_id == description.id:
                continue
            ids = f"its id is {description.id}, and was {stored_id}"
            if topic in self.read.values():
                raise SourceError(
                    f"{topic} was deleted and recreated ({ids}): the records that this state directory has read are "
                    "gone. Start with another state directory"
                )
            _log.warning("%s was recreated (%s): outputs go to the new topic", topic, ids)
            self.ids[topic] = description.id
            self._write()

    @classmethod
    def _load(cls, path: Path, read: Mapping[str, str]) -> Self:
        """Load a registry. Raise SourceError if the directory belongs to another flow, or has read other topics."""
        stored = read_checked(path)
        for flag, name in stored["read"].items():
            if (topic := read.get(flag)) is None:
                raise SourceError(
                    f"{path.parent} belongs to a flow that reads {name}: give this flow another --state-dir"
                )
            if topic != name:
                raise SourceError(
                    f"{path.parent} has read {name}, but {flag} names {topic}: the state would mix two logs. Give "
                    f"{flag} {name}, or start with another state directory"
                )
        return cls(path, dict(read), stored["ids"])

    def _write(self) -> None:
        write_checked(self.path, {"read": self.read, "ids": self.ids})


def topics_with_append_time(options: KafkaOptions, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics whose records carry the log's append time."""
    return frozenset(topic for topic, found in topic_configs(options, topics).items() if found.stamped_by_log)


def producer_time_error(topics: Iterable[str]) -> UsageError:
    """Return the error of topics whose records need credentials and carry no append times."""
    return UsageError(
        f"{', '.join(topics)}: records carry their producers' times (CreateTime), and credentials would be checked as "
        "of those times: set message.timestamp.type=LogAppendTime"
    )


def check_configs(
    options: KafkaOptions, inputs: Iterable[str], written: Iterable[str], *, checks_credentials: bool = False
) -> dict[str, int]:
    """Return the record size limit of each written topic. Raise UsageError if one is too small, or if credentials are
    checked and producers choose the times of the inputs: an expired token would be valid. Without credentials, warn."""
    found = topic_configs(options, (*inputs, *written))
    if unstamped := [topic for topic in inputs if not found[topic].stamped_by_log]:
        if checks_credentials:
            raise producer_time_error(unstamped)
        problem = "records carry their producers' times (CreateTime): clock skew changes the order of ingestion times"
        _log.warning("%s: %s; set message.timestamp.type=LogAppendTime", ", ".join(unstamped), problem)
    max_bytes = {topic: found[topic].most_bytes for topic in written}
    if small := [topic for topic, limit in max_bytes.items() if limit < RECORD_BYTES_MIN]:
        raise UsageError(f"{', '.join(small)}: max.message.bytes is too small; set it to {RECORD_BYTES_MIN} or more")
    return max_bytes


def check_control(options: KafkaOptions, topic: str) -> None:
    """Log a warning if the control topic may lose decisions, or lets senders choose their times."""
    found = topic_configs(options, [topic])[topic]
    if not found.keeps_all:
        settings = ", ".join(f"{name}={value}" for name, value in KEEPS_ALL.items())
        reason = "records are authorised by the decisions of their time, and a rebuild would lack these"
        _log.warning("%s deletes old decisions: %s; set %s", topic, reason, settings)
    if not found.stamped_by_log:
        problem = "decisions carry their senders' times (CreateTime), and can be backdated"
        _log.warning("%s: %s; set message.timestamp.type=LogAppendTime", topic, problem)


def choose_partition_count(
    options: KafkaOptions, name: str, topics: TopicNames, state_dir: Path, settings: Mapping[str, object]
) -> int:
    """Return the number of state partitions, which never changes: from the committed offsets of the deployment's group,
    an earlier state directory, or the topics of a new deployment. Raise UsageError if the topics have different counts,
    or members different settings; SourceError; and StateError."""
    with TopicReader(options, {"group.id": name}) as reader:
        counts = {topic: len(numbers) for topic, numbers in reader.partitions((topics.memory, topics.queries)).items()}
        memory_count = counts[topics.memory]
        check_counts((topics.memory, topics.queries), counts)
        check_settings(
            name, settings, reader.ask(lambda: holders(reader, topics.queries, range(memory_count))).values()
        )
        committed = committed_partition_count(reader, topics.memory, memory_count)
        if committed is not None:
            return committed
        _check_memories(reader, topics.memory)
    return describe(state_dir).fingerprint.partitions if reads_topics(state_dir) else memory_count


def committed_partition_count(reader: TopicReader, topic: str, count: int) -> int | None:
    """Return the number of state partitions in the metadata of the group's committed offsets; None if there is none."""
    partitions = [TopicPartition(topic, number) for number in range(count)]
    committed = reader.ask(lambda: reader.consumer.committed(partitions, timeout=REQUEST_TIMEOUT_S))
    found = (PartitionProgress.parse(one.metadata) for one in committed)
    return next((progress.partitions for progress in found if progress is not None), None)


def _check_memories(reader: TopicReader, topic: str) -> None:
    """Raise UsageError if the memory topic begins with queries: their answers would all be sent a second time."""
    values = [first.value() or b"" for first in reader.first_records(reader.spans((topic,))).values()]
    if values and all(map(is_query, values)):
        raise UsageError(
            f"{topic} begins with queries in each partition, and is given as --memory-topic: give the topic of memory "
            "events there, and that of queries as --query-topic"
        )
