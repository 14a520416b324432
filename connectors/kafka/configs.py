"""How large a record each topic takes, and whose clock stamps it: asked of the brokers."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from recallflow.brokers.options import KafkaOptions

ASK_S = 10.0
UNTOLD_BYTES = 900_000  # where the brokers do not say: below what a topic takes by default (1,048,588)
MOST_BYTES = 64 * 1024 * 1024  # a broker takes no request beyond 100 MB (socket.request.max.bytes)
BATCH_BYTES = 1_000_000  # librdkafka's own batch.size

_log = logging.getLogger(__name__)


class TopicConfig(NamedTuple):
    """`most_bytes`: of a batch, and so of a record with all its trimmings."""

    most_bytes: int = UNTOLD_BYTES
    stamped_by_log: bool = True


def ask_configs(options: KafkaOptions, topics: Iterable[str]) -> dict[str, TopicConfig]:
    """The configuration of each topic. Of one that the brokers do not tell about, a cautious guess, and a log line."""
    admin = AdminClient(options.admin())
    wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    asked = admin.describe_configs(wanted, request_timeout=ASK_S)
    return {resource.name: _config(resource.name, future) for resource, future in asked.items()}


def _config(topic: str, future: Any) -> TopicConfig:
    try:
        found = future.result()
    except KafkaException as error:
        why = error.args[0].str()
        _log.warning("%s: its configuration is not told (%s): records are kept to %d bytes", topic, why, UNTOLD_BYTES)
        return TopicConfig()
    most_bytes = min(int(found["max.message.bytes"].value), MOST_BYTES)
    return TopicConfig(most_bytes, found["message.timestamp.type"].value == "LogAppendTime")


def producer_bounds(most_bytes: Mapping[str, int]) -> dict[str, int]:
    """librdkafka's options for a producer to these topics: it takes what the largest takes, and puts no more records
    into a batch than the smallest takes."""
    return {
        "message.max.bytes": max(most_bytes.values()),
        "batch.size": min(BATCH_BYTES, *most_bytes.values()),
    }
