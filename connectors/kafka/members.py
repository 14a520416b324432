"""Who is in a consumer group under a name of its own, asked from outside."""

from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.own import overlapping
from recallflow.errors import SourceError, UsageError
from recallflow.ranges import ranges_of

ASK_S = 5.0


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
