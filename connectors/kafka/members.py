"""Descriptions of a consumer group: its static members, and whether it is rebalancing."""

from collections.abc import Callable, Collection
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.lease import boottime_s
from recallflow.connectors.kafka.own import overlapping
from recallflow.errors import SourceError, UsageError
from recallflow.ranges import ranges_of

ASK_S = 5.0
PROBE_S = 0.05
# librdkafka may end the process where a description times out (its issue 4605), so hardly any does.
PROBE_TIMEOUT_S = 30.0


def static_members(options: KafkaOptions, name: str) -> dict[str, str]:
    """The static members of a group: what they are named → how the coordinator knows them. Raises SourceError."""
    try:
        admin: Any = AdminClient(options.admin())
        found = admin.describe_consumer_groups([name], request_timeout=ASK_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise SourceError(f"cannot ask who is in deployment {name}: {error.args[0].str()}") from error
    return {member.group_instance_id: member.member_id for member in found.members if member.group_instance_id}


def check_alone(options: KafkaOptions, name: str, own: Collection[int]) -> None:
    """Raises UsageError where another member owns by hand what we are to own, and SourceError. Who looks once it is in
    the group sees everybody who came before: of two that come at once, one sees the other at least."""
    if other := overlapping(own, static_members(options, name)):
        raise UsageError(
            f"deployment {name}: another process owns partitions {other}: they overlap with --own {ranges_of(own)}"
        )


class RebalanceProbe:
    """Whether a group is between two generations."""

    def __init__(self, options: KafkaOptions, name: str, clock_s: Callable[[], float] = boottime_s) -> None:
        self._options, self._name, self._clock_s = options, name, clock_s
        self._admin: Any = None
        self._asked: Any = None  # a future
        self._next_s = 0.0

    def is_rebalancing(self) -> bool:
        """Return whether a rebalance has begun, or the group's state cannot be read. Does not wait: a description that
        is under way counts as no rebalance."""
        if self._asked is None and self._clock_s() >= self._next_s:
            self._admin = self._admin or AdminClient(self._options.admin())
            self._asked = self._admin.describe_consumer_groups([self._name], request_timeout=PROBE_TIMEOUT_S)[
                self._name
            ]
            self._next_s = self._clock_s() + PROBE_S
        if self._asked is None or not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            return bool(asked.result().state != ConsumerGroupState.STABLE)
        except KafkaException as error:
            return not passes(error.args[0])
