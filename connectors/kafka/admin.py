"""Creating topics."""

from collections.abc import Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import SourceError

CREATE_S = 30.0


def create_topics(
    options: KafkaOptions, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], replication: int
) -> dict[str, bool]:
    """Creates topics of so many partitions each. Returns which were made; the others were there. Raises SourceError."""
    with Metadata.open(options) as metadata:
        metadata.partitions([])  # says soon whether the brokers can be reached, and let us in
    admin = AdminClient(options.admin())
    wanted = [
        NewTopic(topic, count, replication, config=dict(config.get(topic, {}))) for topic, count in partitions.items()
    ]
    try:
        futures = admin.create_topics(wanted, operation_timeout=CREATE_S)
        return {topic: _made(future) for topic, future in futures.items()}
    except KafkaException as error:
        raise SourceError(f"cannot create topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def _made(future: "Future[None]") -> bool:
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True
