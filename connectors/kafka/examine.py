"""What the brokers say of topics, rights and times, for whoever looks whether all is well. Nothing is changed."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.topic_reader import TRY_AGAIN_S

ASK_S = 10.0


class Topic(NamedTuple):
    """A topic as the brokers describe it. `problem`: why they do not; `rights`: operations that we may do, None where
    they do not say; `leaderless`: partitions that nobody answers for."""

    name: str
    problem: str | None = None
    missing: bool = False
    partitions: int = 0
    leaderless: tuple[int, ...] = ()
    rights: frozenset[str] | None = None


class Examiner:
    """Asks the brokers. Raises KafkaException where nobody answers."""

    def __init__(self, options: KafkaOptions) -> None:
        self._admin = AdminClient(options.admin())

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        asked = self._admin.describe_topics(
            TopicCollection([*dict.fromkeys(names)]), include_authorized_operations=True, request_timeout=ASK_S
        )
        return {name: _topic(name, future) for name, future in asked.items()}

    def settings(self, topic: str) -> Mapping[str, str] | str:
        """A topic's settings, or why they are not told."""
        (asked,) = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=ASK_S
        ).values()
        try:
            return {name: str(one.value) for name, one in asked.result().items()}
        except KafkaException as error:
            return str(error.args[0].str())

    def group_rights(self, group: str) -> frozenset[str] | str | None:
        """What we may do with a consumer group, or why that is not told. Asked again while the brokers say to: they
        have nobody who knows until a first group is there."""
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
        """When the newest record of these topics was appended; None where they are empty, or do not say."""
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
