"""Members of a deployment's consumer group: agreed settings, static members, assignment, and rebalances.

Partitions that are assigned by hand (`--own`) make their owner a static member, named after them. Such members do not
assign partitions to each other, but two members with overlapping partitions see each other in the group."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from recallflow.connectors.kafka.lease import Holder, boottime_s
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SourceError, UsageError
from recallflow.kafka_clients import is_retriable
from recallflow.kafka_options import KafkaOptions
from recallflow.owner import parse_ranges, ranges_of

_PREFIX = "own-"
_NAME = re.compile(_PREFIX + r"\d+(-\d+)?(_\d+(-\d+)?)*")
MEMBERS_TIMEOUT_S = 5.0
PROBE_S = 0.05
# A description that times out may end the process (librdkafka issue 4605), so the timeout is long.
PROBE_TIMEOUT_S = 30.0
Assignment = dict[str, frozenset[int]]  # the partitions of each member


def agree(name: str, ours: Mapping[str, object], holders: Iterable[Holder]) -> bool:
    """Return whether a member has committed its settings. Raise UsageError where they differ from ours."""
    committed = [holder.settings for holder in holders if holder.settings]
    for theirs in committed:
        differing = [key for key in (*theirs, *(ours.keys() - theirs.keys())) if theirs.get(key) != ours.get(key)]
        if differing:
            values = "; ".join(f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here" for key in differing)
            raise UsageError(
                f"deployment {name} has other settings: {values}. Use those, or begin another deployment: "
                "docs/how-to/several-machines.md#change-shared-settings"
            )
    return bool(committed)


def name_of(own: Collection[int]) -> str:
    """Return a name like `own-0-7_9`: a broker accepts letters, digits, `.`, `_` and `-`."""
    return _PREFIX + ranges_of(own).replace(",", "_")


def overlapping(own: Collection[int], names: Iterable[str]) -> str | None:
    """Return the name of another member with partitions that overlap ours; None if there is none."""
    for name in names:
        if name == name_of(own) or not _NAME.fullmatch(name):
            continue
        text = name.removeprefix(_PREFIX).replace("_", ",")
        if parse_ranges(text) & frozenset(own):
            return text
    return None


def static_members(options: KafkaOptions, name: str) -> dict[str, str]:
    """Return the static members of a group: instance id → member id. Raise SourceError."""
    try:
        admin: Any = AdminClient(options.admin())
        found = admin.describe_consumer_groups([name], request_timeout=MEMBERS_TIMEOUT_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise SourceError(f"cannot ask who is in deployment {name}: {error.args[0].str()}") from error
    return {member.group_instance_id: member.member_id for member in found.members if member.group_instance_id}


def check_alone(options: KafkaOptions, name: str, own: Collection[int]) -> None:
    """Raise UsageError where another member owns some of our partitions by hand, and SourceError. Checked after
    joining: of two that join at once, at least one sees the other."""
    if other := overlapping(own, static_members(options, name)):
        problem = f"another process owns partitions {other}: they overlap with --own {ranges_of(own)}"
        raise UsageError(f"deployment {name}: {problem}")


def check_counts(topics: tuple[str, str], counts: Mapping[str, int]) -> None:
    """Raise UsageError where the topics of memory and queries have different partition counts."""
    memory, queries = (counts[topic] for topic in topics)
    if memory != queries:
        less, more = (topics[0], queries) if memory < queries else (topics[1], memory)
        raise UsageError(
            f"{topics[0]} has {memory} partitions and {topics[1]} {queries}, and one member owns a "
            f"partition of both: add partitions to {less}, up to {more}"
        )


def check_topics(options: KafkaOptions, topics: tuple[str, str], own: Collection[int] | None) -> None:
    """Raise UsageError for unequal partition counts or a lack of our partitions, SourceError for missing topics."""
    with TopicReader(options) as reader:
        found = {topic: len(numbers) for topic, numbers in reader.partitions(topics).items()}
    check_counts(topics, found)
    memory = found[topics[0]]
    if outside := [one for one in own or () if one >= memory]:
        raise UsageError(f"{topics[0]} has no partition {ranges_of(outside)}: it has {memory}, from 0 on")


class RebalanceProbe:
    def __init__(self, options: KafkaOptions, name: str) -> None:
        self._options, self._name = options, name
        self._admin: Any = None
        self._asked: Any = None  # future of a description
        self._next_s = 0.0

    def is_rebalancing(self) -> bool:
        """Return whether a rebalance has started, or the group's state is unreadable; False while it is being asked."""
        if self._asked is None and boottime_s() >= self._next_s:
            self._admin = self._admin or AdminClient(self._options.admin())
            asked = self._admin.describe_consumer_groups([self._name], request_timeout=PROBE_TIMEOUT_S)
            self._asked = asked[self._name]
            self._next_s = boottime_s() + PROBE_S
        if self._asked is None or not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            return bool(asked.result().state != ConsumerGroupState.STABLE)
        except KafkaException as error:
            return not is_retriable(error.args[0])


def fetch_assignment(admin: AdminClient, name: str, topic: str) -> Assignment:
    described: Any = admin.describe_consumer_groups([name], request_timeout=PROBE_TIMEOUT_S)
    return {
        member.member_id: frozenset(one.partition for one in member.assignment.topic_partitions if one.topic == topic)
        for member in described[name].result().members
    }
