"""The answers that are in a response topic, as rows."""

from collections.abc import Iterator
from typing import Any

import orjson

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from recallflow.fields import format_time


def answers(options: KafkaOptions, topic: str) -> Iterator[dict[str, Any]]:
    """Partition by partition, up to where each ends by now. What is no JSON is told as its text. Raises SourceError."""
    with TopicReader(options, UNCOMMITTED) as reader:
        for (name, number), (low, high) in reader.spans([topic]).items():
            for message in reader.read_to_end(name, number, low) if low < high else ():
                yield _row(message)


def _row(message: Any) -> dict[str, Any]:
    value = message.value() or b""
    try:
        response = orjson.loads(value)
    except orjson.JSONDecodeError:
        response = value.decode(errors="replace")
    fields = response if isinstance(response, dict) else {}
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "appended_at": format_time(time_ms(message)),
        "key": (message.key() or b"").decode(errors="replace"),
        "query_id": fields.get("query_id"),
        "status": fields.get("status"),
        "processing_time_ms": fields.get("processing_time_ms"),
        "response": response,
    }
