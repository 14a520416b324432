"""Checks of a deployment's topics before a member joins: names, ids, record sizes, timestamps, and partition counts."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import KEEPS_ALL, Described, ask_configs
from recallflow.connectors.kafka.group import agree, holders
from recallflow.connectors.kafka.place import Place
from recallflow.connectors.kafka.topic_reader import ASK_S, TopicReader
from recallflow.errors import SourceError, UsageError
from recallflow.flows.topics import Topics
from recallflow.parsing import asks
from recallflow.state.directory import describe
from recallflow.state.files import read_checked, write_checked
from recallflow.state.sources import TOPICS, reads_topics

LEAST_BYTES = 16 * 1024  # room for every key, header and error there may be

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TopicRegistry:
    """The topics of one state directory."""

    path: Path
    read: dict[str, str]  # by the flag that names each
    ids: dict[str, str]  # of every topic that is read or written

    @classmethod
    def open(cls, state_dir: Path, found: Mapping[str, Described], read: Mapping[str, str]) -> Self:
        """`found`: the topics there are; `read`: the name of the topic for each flag. Raises SourceError where an input
        is another topic than before."""
        path = state_dir / TOPICS
        known = cls._stored(path, read) if path.exists() else cls(path, dict(read), {})
        known.check(found)
        known._write()
        return known

    @classmethod
    def check_names(cls, state_dir: Path, read: Mapping[str, str]) -> None:
        """Raises SourceError where a directory has read other topics than it is given, or is of another flow."""
        if (path := state_dir / TOPICS).exists():
            cls._stored(path, read)

    def check(self, found: Mapping[str, Described]) -> None:
        """Compares ids. Brokers before 2.8 have none."""
        for topic, described in found.items():
            known = self.ids.setdefault(topic, described.id)
            if known == described.id:
                continue
            if topic in self.read.values():
                raise SourceError(
                    f"{topic} was deleted and made anew (its id is {described.id}, and was {known}): what this state "
                    "directory had read is not in it. Start with another state directory"
                )
            _log.warning(
                "%s was made anew (its id is %s, and was %s): written on from now on", topic, described.id, known
            )
            self.ids[topic] = described.id
            self._write()

    @classmethod
    def _stored(cls, path: Path, read: Mapping[str, str]) -> Self:
        kept = read_checked(path)
        for flag, name in kept["read"].items():
            if (given := read.get(flag)) is None:
                raise SourceError(
                    f"{path.parent} is of a flow that reads {name}: give this one a --state-dir of its own"
                )
            if given != name:
                raise SourceError(
                    f"{path.parent} has read {name}, and is given {given} ({flag}): two logs would be mixed. Give "
                    f"{flag} {name}, or start with another state directory"
                )
        return cls(path, dict(read), kept["ids"])

    def _write(self) -> None:
        write_checked(self.path, {"read": self.read, "ids": self.ids})


def stamped_by_log(options: KafkaOptions, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics whose records carry the time of the log."""
    return frozenset(topic for topic, found in ask_configs(options, topics).items() if found.stamped_by_log)


def judged_by_senders(topics: Iterable[str]) -> UsageError:
    """Why records of topics cannot be judged as of a time that their producers choose."""
    return UsageError(
        f"{', '.join(topics)}: records carry their producers' times (CreateTime), by which credentials would be "
        "judged: set message.timestamp.type=LogAppendTime"
    )


def ask_sizes(
    options: KafkaOptions, inputs: Iterable[str], written: Iterable[str], *, judged: bool = False
) -> dict[str, int]:
    """Asks the brokers how large a record each written topic takes; a log line where the clocks of producers stamp what
    is read. Raises UsageError where that is next to nothing, and where records are `judged` as of a time that their
    producers choose: an expired token would hold, and a revoked key."""
    found = ask_configs(options, (*inputs, *written))
    if own := [topic for topic in inputs if not found[topic].stamped_by_log]:
        if judged:
            raise judged_by_senders(own)
        _log.warning(
            "%s: records carry their producers' times (CreateTime): clocks that differ mix up what was known when; "
            "set message.timestamp.type=LogAppendTime",
            ", ".join(own),
        )
    most_bytes = {topic: found[topic].most_bytes for topic in written}
    if small := [topic for topic, most in most_bytes.items() if most < LEAST_BYTES]:
        raise UsageError(f"{', '.join(small)}: max.message.bytes is too small; set it to {LEAST_BYTES} or more")
    return most_bytes


def check_control(options: KafkaOptions, topic: str) -> None:
    """A log line where decisions may be lost, or claim to be of another time than they are."""
    found = ask_configs(options, [topic])[topic]
    if not found.keeps_all:
        wanted = ", ".join(f"{name}={value}" for name, value in KEEPS_ALL.items())
        _log.warning(
            "%s does not keep everything: records are judged by what was decided when they came, and a rebuild would "
            "judge them otherwise; set %s",
            topic,
            wanted,
        )
    if not found.stamped_by_log:
        _log.warning(
            "%s: decisions carry their senders' times (CreateTime), and can be backdated; set "
            "message.timestamp.type=LogAppendTime",
            topic,
        )


def deployed(options: KafkaOptions, name: str, topics: Topics, state_dir: Path, settings: Mapping[str, object]) -> int:
    """How many partitions the deployment's state has, for ever: as its group says, or where Kafka has forgotten that, a
    directory that was of it; a new deployment takes what the topics have now. Raises SourceError, StateError, and
    UsageError where topics do not go together, or members have committed other settings."""
    with TopicReader(options, {"group.id": name}) as reader:
        counts = {topic: len(numbers) for topic, numbers in reader.partitions((topics.memory, topics.queries)).items()}
        memory, queries = counts[topics.memory], counts[topics.queries]
        if queries != memory:
            raise UsageError(
                f"{topics.memory} has {memory} partitions and {topics.queries} {queries}: a user's memories and "
                "queries are read by one process, so give both as many (kafka-topics.sh --alter --partitions)"
            )
        agree(name, settings, reader.ask(lambda: holders(reader, topics.queries, range(queries))).values())
        kept = kept_partitions(reader, topics.memory, memory)
        if kept is None:
            _check_memories(reader, topics.memory)
    if kept is not None:
        return kept
    return describe(state_dir).fingerprint.partitions if reads_topics(state_dir) else memory


def kept_partitions(reader: TopicReader, topic: str, count: int) -> int | None:
    """How many partitions the state of the reader's group has, by what stands beside its offsets; None where nothing
    does."""
    wanted = [TopicPartition(topic, number) for number in range(count)]
    kept = reader.ask(lambda: reader.consumer.committed(wanted, timeout=ASK_S))
    places = (Place.found(one.metadata) for one in kept)
    return next((place.partitions for place in places if place is not None), None)


def _check_memories(reader: TopicReader, topic: str) -> None:
    """A topic of queries that is read as one of memories would have all of them answered a second time."""
    values = [first.value() or b"" for first in reader.firsts(reader.spans((topic,))).values()]
    if values and all(map(asks, values)):
        raise UsageError(
            f"{topic} begins with queries in each partition, and is given as --memory-topic: give the topic of memory "
            "events there, and that of queries as --query-topic"
        )
