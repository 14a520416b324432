"""Which partitions each member of a group has, as its coordinator tells anybody who asks."""

from typing import Any

from confluent_kafka.admin import AdminClient

from recallflow.brokers.options import KafkaOptions

# A description that is given up may end the process (librdkafka's issue 4605), so hardly any is.
ASK_S = 30.0

Shares = dict[str, frozenset[int]]  # the partitions of each member


class GroupShares:
    """Of one topic."""

    def __init__(self, options: KafkaOptions, name: str, topic: str) -> None:
        """`name`: of the group."""
        self._name, self._topic = name, topic
        self._admin = AdminClient(options.admin())

    def look(self) -> Shares:
        """What every member has at this moment. Raises KafkaException."""
        described: Any = self._admin.describe_consumer_groups([self._name], request_timeout=ASK_S)
        return {
            member.member_id: frozenset(
                one.partition for one in member.assignment.topic_partitions if one.topic == self._topic
            )
            for member in described[self._name].result().members
        }
