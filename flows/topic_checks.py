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

LEAST_BYTES = 16 * 1024  # enough for any key, headers and error

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TopicRegistry:
    """The topics of one state directory, by name and id."""

    path: Path
    read: dict[str, str]  # flag → topic
    ids: dict[str, str]  # topic → id, of all topics read or written

    @classmethod
    def open(cls, state_dir: Path, found: Mapping[str, TopicDescription], read: Mapping[str, str]) -> Self:
        """Open the registry, and compare the topics with it. Raise SourceError if an input topic was replaced."""
        path = state_dir / TOPICS
        known = cls._stored(path, read) if path.exists() else cls(path, dict(read), {})
        known.check(found)
        known._write()
        return known

    @classmethod
    def check_names(cls, state_dir: Path, read: Mapping[str, str]) -> None:
        """Raise SourceError if the directory belongs to another flow, or has read other topics."""
        if (path := state_dir / TOPICS).exists():
            cls._stored(path, read)

    def check(self, found: Mapping[str, TopicDescription]) -> None:
        """Compare topic ids. Brokers before 2.8 have none. Raise SourceError if an input topic was replaced."""
        for topic, described in found.items():
            known = self.ids.setdefault(topic, described.id)
            if known == described.id:
                continue
            if topic in self.read.values():
                raise SourceError(
                    f"{topic} was deleted and recreated (its id is {described.id}, and was {known}): the records that "
                    "this state directory has read are gone. Start with another state directory"
                )
            ids = f"its id is {described.id}, and was {known}"
            _log.warning("%s was recreated (%s): outputs go to the new topic", topic, ids)
            self.ids[topic] = described.id
            self._write()

    @classmethod
    def _stored(cls, path: Path, read: Mapping[str, str]) -> Self:
        kept = read_checked(path)
        for flag, name in kept["read"].items():
            if (given := read.get(flag)) is None:
                owner = f"{path.parent} belongs to a flow that reads {name}"
                raise SourceError(f"{owner}: give this flow another --state-dir")
            if given != name:
                raise SourceError(
                    f"{path.parent} has read {name}, but {flag} names {given}: the state would mix two logs. Give "
                    f"{flag} {name}, or start with another state directory"
                )
        return cls(path, dict(read), kept["ids"])

    def _write(self) -> None:
        write_checked(self.path, {"read": self.read, "ids": self.ids})


def stamped_by_log(options: KafkaOptions, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics whose records carry the log's append time."""
    return frozenset(topic for topic, found in topic_configs(options, topics).items() if found.stamped_by_log)


def judged_by_senders(topics: Iterable[str]) -> UsageError:
    """Return the error of topics whose producers choose the times that credentials are checked by."""
    return UsageError(
        f"{', '.join(topics)}: records carry their producers' times (CreateTime), and credentials would be checked as "
        "of those times: set message.timestamp.type=LogAppendTime"
    )


def ask_sizes(
    options: KafkaOptions, inputs: Iterable[str], written: Iterable[str], *, judged: bool = False
) -> dict[str, int]:
    """Return the largest record of each written topic. Warn if producers' clocks stamp the inputs. Raise UsageError for
    too small a limit, and for such inputs if records are `judged`: an expired token would be valid."""
    found = topic_configs(options, (*inputs, *written))
    if own := [topic for topic in inputs if not found[topic].stamped_by_log]:
        if judged:
            raise judged_by_senders(own)
        what = "records carry their producers' times (CreateTime): clock skew falsifies the order of knowledge"
        _log.warning("%s: %s; set message.timestamp.type=LogAppendTime", ", ".join(own), what)
    most_bytes = {topic: found[topic].most_bytes for topic in written}
    if small := [topic for topic, most in most_bytes.items() if most < LEAST_BYTES]:
        raise UsageError(f"{', '.join(small)}: max.message.bytes is too small; set it to {LEAST_BYTES} or more")
    return most_bytes


def check_control(options: KafkaOptions, topic: str) -> None:
    """Log a warning if the control topic may lose decisions, or lets senders choose their times."""
    found = topic_configs(options, [topic])[topic]
    if not found.keeps_all:
        wanted = ", ".join(f"{name}={value}" for name, value in KEEPS_ALL.items())
        why = "records are judged by the decisions of their time, and a rebuild would judge them differently"
        _log.warning("%s deletes old decisions: %s; set %s", topic, why, wanted)
    if not found.stamped_by_log:
        what = "decisions carry their senders' times (CreateTime), and can be backdated"
        _log.warning("%s: %s; set message.timestamp.type=LogAppendTime", topic, what)


def deployed(
    options: KafkaOptions, name: str, topics: TopicNames, state_dir: Path, settings: Mapping[str, object]
) -> int:
    """Return the permanent number of state partitions: from the committed offsets of the deployment's group, an earlier
    state directory, or the topics of a new deployment. Raise UsageError for different counts or settings of members,
    SourceError, and StateError."""
    with TopicReader(options, {"group.id": name}) as reader:
        counts = {topic: len(numbers) for topic, numbers in reader.partitions((topics.memory, topics.queries)).items()}
        memory = counts[topics.memory]
        check_counts((topics.memory, topics.queries), counts)
        check_settings(name, settings, reader.ask(lambda: holders(reader, topics.queries, range(memory))).values())
        kept = state_partitions(reader, topics.memory, memory)
        if kept is None:
            _check_memories(reader, topics.memory)
    if kept is not None:
        return kept
    return describe(state_dir).fingerprint.partitions if reads_topics(state_dir) else memory


def state_partitions(reader: TopicReader, topic: str, count: int) -> int | None:
    """Return the number of state partitions in the metadata of the group's committed offsets; None if there is none."""
    wanted = [TopicPartition(topic, number) for number in range(count)]
    kept = reader.ask(lambda: reader.consumer.committed(wanted, timeout=REQUEST_TIMEOUT_S))
    found = (PartitionProgress.parse(one.metadata) for one in kept)
    return next((progress.partitions for progress in found if progress is not None), None)


def _check_memories(reader: TopicReader, topic: str) -> None:
    """Raise UsageError if the memory topic holds queries, which would all be answered a second time."""
    values = [first.value() or b"" for first in reader.firsts(reader.spans((topic,))).values()]
    if values and all(map(is_query, values)):
        raise UsageError(
            f"{topic} begins with queries in each partition, and is given as --memory-topic: give the topic of memory "
            "events there, and that of queries as --query-topic"
        )
