"""The time of the oldest record that a partition still holds."""

from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.errors import SourceError


def oldest_ms(options: KafkaOptions, topic: str, number: int) -> int | None:
    """Epoch milliseconds, or None where the partition holds nothing. Raises SourceError."""
    chosen = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    with Metadata.open(options, chosen) as metadata:
        low, high = metadata.span(topic, number)
        if low == high:
            return None
        metadata.consumer.assign([TopicPartition(topic, number, low)])
        while True:
            message: Any = metadata.consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return int(message.timestamp()[1])
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            if not passes(error):
                raise SourceError(f"{topic}:{number} cannot be read: {error.str()}")
