"""Records of a real schema registry, and CloudEvents of the official SDK, through a real engine."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka, to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from recallflow.errors import UsageError
from recallflow.schema import registered_schema
from recallflow.schema_registry import SchemaRegistry
from tests.kafka.engine import Engine
from tests.kafka.harness import ANN, GIVE_UP_S, Names, deployed, produce, read_topic, until
from tests.pages import blocks, run
from tests.process import Process, command
from tools.broker import HOST, Cluster
from tools.registry import Registry

URL = "schema.registry.url"
TOPIC = {"subject.name.strategy.type": "TOPIC"}
AT_MS = 1_700_000_000_000
FIELDS = ("type", "tenant_id", "user_id", "id", "content")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as started:
        yield started


@pytest.fixture
def client(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as opened:
        yield opened


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "memory", **ANN, "id": f"m{number}", "content": f"Bottle {number} is blue.", **fields}


class Serializers:
    """Values as producers of other languages write them."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def avro(self, fields: dict[str, Any], name: str = "Event") -> bytes:
        types: list[Any] = [{"name": field, "type": "string"} for field in FIELDS]
        types += [{"name": "project_id", "type": ["null", "string"], "default": None}]
        types += [{"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}}]
        schema = json.dumps({"type": "record", "name": name, "fields": types})
        return written(AvroSerializer(self._client, schema, conf=TOPIC), fields | {"timestamp": AT_MS}, name)

    def json_schema(self, fields: dict[str, Any]) -> bytes:
        schema = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": "Event", "type": "object"})
        return written(JSONSerializer(schema, self._client, conf=TOPIC), fields, "json")

    def protobuf(self, fields: dict[str, Any]) -> bytes:
        file = FileDescriptorProto(name="event.proto", syntax="proto3")
        file.message_type.add(name="Other")
        described = file.message_type.add(name="Event")
        for number, name in enumerate(FIELDS, 1):
            described.field.add(name=name, number=number, type=9, label=1)
        described.field.add(name="timestamp", number=9, type=3, label=1)
        described.field.add(name="tags", number=10, type=9, label=3)
        pool = DescriptorPool()
        pool.Add(file)
        made = GetMessageClass(pool.FindMessageTypeByName("Event"))
        return written(
            ProtobufSerializer(made, self._client, TOPIC), made(**fields, timestamp=AT_MS, tags=["a"]), "proto"
        )


def written(serializer: Any, value: Any, topic: str) -> bytes:
    found: bytes = serializer(value, SerializationContext(topic, MessageField.VALUE))
    return found


def test_registered_and_plain_records_share_a_topic_through_an_outage(
    registry: Registry, client: SchemaRegistryClient, broker: Cluster, topics: Names, tmp_path: Path
) -> None:
    flow = deployed(broker, topics, tmp_path / "state", flags=("-X", f"{URL}={registry.url}"))
    write = Serializers(client)
    avro = write.avro(event(1))
    values = [avro, write.json_schema(event(2)), write.protobuf(event(3)), orjson.dumps(event(4))]
    unknown, broken = b"\0\0\1\0\0" + b"?" * 9, avro[:9]

    def refused() -> dict[bytes, bytes]:
        letters = read_topic(broker, flow.topics.dead_letters)
        return {dict(one.headers())["error.code"]: one.value() for one in letters}

    with flow.running() as process, flow.client() as recall:
        produce(broker, flow.topics.memory, *values, unknown, broken, key="acme/ann")
        until(lambda: len(refused()) == 2)
        assert refused() == {b"unknown_schema": unknown, b"undecodable": broken}
        found = {one.id: one for one in recall.all(user="ann")}
        assert {one.content for one in found.values()} == {event(number)["content"] for number in range(1, 5)}
        assert (found["m3"].tags, found["m1"].created_at[:4]) == (["a"], "2023")
        (example,) = (one.code for one in blocks("how-to/schema-registry.md") if one.language == "python")
        example = example.replace("https://registry.example.com", registry.url)
        example = example.replace("memory.events", flow.topics.memory).replace(
            "localhost:9092", broker.bootstrap_servers
        )
        run("python", example.replace('"m1"', '"m0"'), tmp_path)
        later = write.avro(event(5, project_id="p"), "Later")
        with registry.paused():
            produce(broker, flow.topics.memory, later, orjson.dumps(event(6)), key="acme/ann")
            until(lambda: "schema registry" in process.said())
            assert len([*recall.all(user="ann")]) == 5
        until(lambda: len([*recall.all(user="ann")]) == 7)
    assert flow.errors[0].count("schema registry") == 1
    assert len(refused()) == 2


@pytest.mark.parametrize("response_format", ["avro", "protobuf"])
def test_responses_are_written_and_read_in_a_registered_format(
    registry: Registry, client: SchemaRegistryClient, broker: Cluster, topics: Names, tmp_path: Path,
    response_format: str,
) -> None:  # fmt: skip
    config = tmp_path / "recallflow.toml"
    config.write_text(f'[run]\nresponse_format = "{response_format}"\n[kafka.librdkafka]\n"{URL}" = "{registry.url}"\n')
    flow = deployed(broker, topics, tmp_path / "state", flags=("--config", str(config)))
    create = ("topics", "create", "--register-schemas", "--config", config)
    assert command(*create, *flow.options()).code == 0
    with flow.running(), flow.client(options={URL: registry.url}) as recall:
        added = recall.add(event(1)["content"], user="ann", receipt=True)
        until(lambda: bool(read_topic(broker, flow.topics.receipts)))  # a new deployment reads later queries only
        (found,) = recall.search("Which bottle is blue?", user="ann", after=added.position)
        (message,) = read_topic(broker, flow.topics.responses)
        if response_format == "avro":
            (memory,) = AvroDeserializer(client)(message.value())["memories"]
            assert memory["content"] == found.content == event(1)["content"]
        tail = ("tail", "--only", "responses", "--from", "beginning", "--count", "1", "--json", "--config", config)
        (line,) = command(*tail, *flow.options()[:6], *flow.options()[8:]).out.splitlines()
        assert orjson.loads(line)["record"]["memories"][0]["content"] == found.content
        serve = ("--config", str(config), *flow.options())
        with Process(tmp_path / "serve.log", "serve", *serve) as gateway:
            gateway.up()
            asked = {"type": "recall", "query": "Which bottle is blue?", **ANN}
            answer = httpx.post(f"http://{HOST}:{gateway.port}/memory/query", json=asked)
            assert answer.json()["memories"][0]["content"] == found.content


def test_incompatible_schema_is_reported_and_not_registered(registry: Registry, client: SchemaRegistryClient) -> None:
    kind, text = registered_schema("receipt", "json")
    with closing(SchemaRegistry({"url": registry.url})) as ours:
        with pytest.raises(UsageError):
            ours.schema_id("mine", kind, text)
        assert [ours.register("mine", kind, text)[0] for _ in range(2)] == ["registered", "exists"]
        client.set_compatibility("mine", "BACKWARD")
        changed = orjson.loads(text)
        changed["required"].append("outcome_id")
        outcome, reason = ours.register("mine", kind, orjson.dumps(changed).decode())
        assert (outcome, "REQUIRED" in reason) == ("incompatible", True)
        assert ours.register("mine", "AVRO", '"string"')[0] == "kept"


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
