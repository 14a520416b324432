"""CloudEvents of the official SDK through a real engine, next to plain records."""

from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka, to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import Producer

from tests.kafka.engine import Engine
from tests.kafka.harness import ANN, GIVE_UP_S, read_topic, until


def send(engine: Engine, topic: str, mode: Any, kind: str, number: str, data: dict[str, Any]) -> None:
    attributes = {"type": f"recallflow.{kind}", "source": "/chat", "id": number, "subject": "acme/ann"}
    message = mode(CloudEvent(attributes, data))
    producer = Producer({"bootstrap.servers": engine.broker.bootstrap_servers, "partitioner": "murmur2_random"})
    producer.produce(topic, message.value, "acme/ann", headers=message.headers)
    assert producer.flush(GIVE_UP_S) == 0


@pytest.mark.parametrize("chosen", ["cloudevents-binary", "cloudevents-structured"])
def test_cloud_events_of_the_sdk_are_stored_and_answered(deserted: Engine, tmp_path: Path, chosen: str) -> None:
    topics, state_dir = deserted.topics, tmp_path / "state"
    with deserted.running(state_dir, environment={"RECALLFLOW_RUN_RESPONSE_FORMAT": chosen}):
        send(deserted, topics.memory, to_structured_event, "message", "1", {"content": "The tea is green."})
        send(deserted, topics.memory, to_binary_event, "message", "2", {"content": "The tea is hot.", "receipt": True})
        send(deserted, topics.memory, to_binary_event, "message", "2", {"content": "The tea is hot.", "receipt": True})
        deserted.produce(
            topics.memory, "acme/ann", ANN | {"type": "message", "id": "3", "content": "The tea is sweet."}
        )
        until(lambda: len(read_topic(deserted.broker, topics.receipts)) == 2)
        with deserted.client() as client:
            client.search("tea", user="ann", after=client.add("Nothing else.", user="ann"))  # reads this format
        send(deserted, topics.queries, to_structured_event, "recall", "q", {"query": "What about the tea?"})
        until(lambda: len(read_topic(deserted.broker, topics.responses)) == 2)
    found = (one for one in read_topic(deserted.broker, topics.responses))
    events = [from_kafka(KafkaMessage(dict(one.headers()), None, one.value()), JSONFormat()) for one in found]
    (event,) = (one for one in events if one.get_data()["query_id"] == "q")  # type: ignore[index, call-overload]
    response: Any = event.get_data()
    assert {"/chat#1", "/chat#2", "3"} <= {memory["id"] for memory in response["memories"]}
    assert (event.get_type(), event.get_subject(), response["status"]) == ("recallflow.response", "acme/ann", "ok")
    assert len({one.get_id() for one in events}) == 2
    assert not read_topic(deserted.broker, topics.dead_letters)
