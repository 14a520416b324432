"""Members of a deployment's consumer group: agreed settings, static members, assignment, and rebalances.

An owner of partitions that are assigned by hand (`--own`) is a static member, whose instance id lists the partitions.
The group assigns nothing to such members, but those with overlapping partitions find each other in it."""

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

_ID_PREFIX = "own-"
_INSTANCE_ID = re.compile(_ID_PREFIX + r"\d+(-\d+)?(_\d+(-\d+)?)*")
MEMBERS_TIMEOUT_S = 5.0
PROBE_INTERVAL_S = 0.05
# A description that times out may end the process (librdkafka issue 4605), so the timeout is long.
PROBE_TIMEOUT_S = 30.0
Assignment = dict[str, frozenset[int]]  # the partitions of each member


def check_settings(name: str, settings: Mapping[str, object], holders: Iterable[Holder]) -> bool:
    """Return whether a member has committed its settings. Raise UsageError if they differ from ours."""
    committed = [holder.settings for holder in holders if holder.settings]
    for other in committed:
        differing = [key for key in (*other, *(settings.keys() - other.keys())) if other.get(key) != settings.get(key)]
        if differing:
            values = "; ".join(f"{key} is {other.get(key)!r} there and {settings.get(key)!r} here" for key in differing)
            raise UsageError(
                f"deployment {name} has other settings: {values}. Use its settings, or begin another deployment: "
                "docs/how-to/several-machines.md#change-shared-settings"
            )
    return bool(committed)


def instance_id_of(own: Collection[int]) -> str:
    """Return a name like `own-0-7_9`: a broker accepts letters, digits, `.`, `_` and `-`."""
    return _ID_PREFIX + ranges_of(own).replace(",", "_")


def overlapping(own: Collection[int], names: Iterable[str]) -> str | None:
    """Return the partitions (`0-7,9`) of another member that has some of `own`; None without such a member."""
    for name in names:
        if name == instance_id_of(own) or not _INSTANCE_ID.fullmatch(name):
            continue
        text = name.removeprefix(_ID_PREFIX).replace("_", ",")
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
        raise SourceError(f"cannot read the members of deployment {name}: {error.args[0].str()}") from error
    return {member.group_instance_id: member.member_id for member in found.members if member.group_instance_id}


def check_alone(options: KafkaOptions, name: str, own: Collection[int]) -> None:
    """Raise UsageError if another member owns some of our partitions by hand, SourceError if the brokers do not
    tell. Call it after joining: of two members that join at the same time, at least one finds the other then."""
    if other := overlapping(own, static_members(options, name)):
        problem = f"another process owns partitions {other}: they overlap with --own {ranges_of(own)}"
        raise UsageError(f"deployment {name}: {problem}")


def check_counts(topics: tuple[str, str], counts: Mapping[str, int]) -> None:
    """Raise UsageError if the topics of memory and queries have different partition counts."""
    memory, queries = (counts[topic] for topic in topics)
    if memory != queries:
        smaller, wanted = (topics[0], queries) if memory < queries else (topics[1], memory)
        numbers = f"{topics[0]} has {memory} partitions and {topics[1]} {queries}"
        raise UsageError(f"{numbers}; they need equal numbers: add partitions to {smaller}, up to {wanted}")


def check_topics(options: KafkaOptions, topics: tuple[str, str], own: Collection[int] | None) -> None:
    """Raise UsageError for unequal partition counts or a lack of our partitions, SourceError for missing topics."""
    with TopicReader(options) as reader:
        found = {topic: len(numbers) for topic, numbers in reader.partitions(topics).items()}
    check_counts(topics, found)
    memory = found[topics[0]]
    if outside := [one for one in own or () if one >= memory]:
        raise UsageError(f"{topics[0]} has no partition {ranges_of(outside)}: it has partitions 0 to {memory - 1}")


class RebalanceProbe:
    def __init__(self, options: KafkaOptions, name: str) -> None:
        self._options, self._name = options, name
        self._admin: Any = None
        self._request: Any = None  # future of a description
        self._next_s = 0.0

    def is_rebalancing(self) -> bool:
        """Return whether a rebalance has started, or the state is unreadable. Return False without an answer yet."""
        if self._request is None and boottime_s() >= self._next_s:
            self._admin = self._admin or AdminClient(self._options.admin())
            futures = self._admin.describe_consumer_groups([self._name], request_timeout=PROBE_TIMEOUT_S)
            self._request, self._next_s = futures[self._name], boottime_s() + PROBE_INTERVAL_S
        if self._request is None or not self._request.done():
            return False
        answered, self._request = self._request, None
        try:
            return bool(answered.result().state != ConsumerGroupState.STABLE)
        except KafkaException as error:
            return not is_retriable(error.args[0])


def fetch_assignment(admin: AdminClient, name: str, topic: str) -> Assignment:
    described: Any = admin.describe_consumer_groups([name], request_timeout=PROBE_TIMEOUT_S)
    return {
        member.member_id: frozenset(one.partition for one in member.assignment.topic_partitions if one.topic == topic)
        for member in described[name].result().members
    }
