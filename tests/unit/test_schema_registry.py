"""Responses in registered formats, and errors of a registry; the real one: tests/kafka/test_schema_registry.py."""

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
import pytest
from confluent_kafka import Message

from recallflow.errors import InvalidRecord, RegistryUnavailable, SourceError, UsageError
from recallflow.flows.config import Config, RunSettings
from recallflow.flows.doctor import registry_findings
from recallflow.kafka_options import KafkaOptions
from recallflow.registered_responses import encode
from recallflow.responses import AVRO, PROTOBUF, REGISTERED_FORMATS, Response
from recallflow.schema import registered_schema
from recallflow.schema_registry import SchemaRegistry
from tests.http_server import Handler, serving

URL = "schema.registry.url"
FRAME = b"\0\0\0\0\7"


@contextmanager
def answering(status: int, body: object) -> Iterator[str]:
    class Registry(Handler):
        def do_GET(self) -> None:  # noqa: N802 - of http.server
            self.reply(body if isinstance(body, bytes) else orjson.dumps(body), status)

    with serving(Registry) as url:
        yield url


def read(status: int, body: object, value: bytes) -> bytes:
    with answering(status, body) as url:
        registry = SchemaRegistry({"url": url})
        try:
            return registry.read(value).json()
        finally:
            registry.close()


@pytest.mark.parametrize("response_format", REGISTERED_FORMATS)
def test_registered_response_is_read_as_the_plain_one_without_nan(response_format: str) -> None:
    gate = {"blocked": False, "since": None, "by": None, "why": None, "windows": {"a": 1.5}}
    figures = {"edge_types": {"knows": {"answers": 3, "relevance": 0.5, "before": None}}}
    rollout = {"mode": "off", "enabled": True, "since": None, "by": "ann", "why": None}
    graph = {"nodes": {"person": 2}, "edges": {}, "complete": True, "rollout": rollout, "gate": gate | figures}
    warnings = [{"code": "stale_read", "detail": "größer"}]
    response = {"query_id": "q", "status": "degraded", "memories": [], "stats": {"a": {"b": [None]}}}
    body = orjson.dumps(response | {"graph_status": graph | {"failures": []}, "warnings": warnings, "sla_met": False})
    Response.model_validate_json(body)
    kind, text = registered_schema("response", response_format)
    answer, value = {"schema": text, "schemaType": kind}, encode(body, response_format, 7)
    assert orjson.loads(read(200, answer, value)) == orjson.loads(body)
    if response_format in (AVRO, PROTOBUF):  # JSON lacks NaN
        with pytest.raises(InvalidRecord) as raised:
            read(200, answer, value.replace(struct.pack("<d", 0.5), struct.pack("<d", math.nan)))
        assert [problem.field for problem in raised.value.fields] == ["graph_status.gate.edge_types.knows.relevance"]


@pytest.mark.parametrize(("status", "body", "expected"), [(200, [], "OK"), (401, {"error_code": 401}, "FAIL")])
def test_doctor_examines_the_registry(status: int, body: object, expected: str) -> None:
    with answering(status, body) as url:
        (found,) = registry_findings(Config(kafka=KafkaOptions("127.0.0.1:1", {URL: url})))
    assert (found.status, bool(found.todo)) == (expected, expected == "FAIL")


def test_protobuf_schema_as_text_is_named() -> None:
    body = {"schema": "syntax = 'proto3'; message M {}", "schemaType": "PROTOBUF"}
    with pytest.raises(InvalidRecord, match="as text"):
        read(200, body, b"\0\0\0\0\7\0")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"error_code": 401, "message": "Unauthorized"}, SourceError), (404, {"no": "registry"}, SourceError),
        (429, {"error_code": 429, "message": "slow down"}, RegistryUnavailable), (503, {}, RegistryUnavailable),
        (404, {"error_code": 40403, "message": "Schema not found"}, InvalidRecord),
        (200, b"<html>", RegistryUnavailable), (200, [], RegistryUnavailable), (200, {}, RegistryUnavailable),
        (200, {"schema": '"long"', "schemaType": "AVRO"}, InvalidRecord),
        (200, {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}, InvalidRecord),
    ],
)  # fmt: skip
def test_errors_of_the_registry_stop_wait_or_refuse(status: int, body: object, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        read(status, body, FRAME)
    assert type(raised.value) is error


def test_avro_values_that_json_lacks_are_converted_or_refused() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    numbers = {"type": "array", "items": "double"}
    fields = [{"name": "a", "type": "bytes"}, {"name": "b", "type": decimal}, {"name": "c", "type": numbers}]
    schema = orjson.dumps({"type": "record", "name": "R", "fields": fields}).decode()
    answer, value = (
        {"schema": schema, "schemaType": "AVRO"},
        FRAME + b"\2x\2\x7d\4" + struct.pack("<dd", 2.5, 0.5) + b"\0",
    )
    assert orjson.loads(read(200, answer, value)) == {"a": "eA==", "b": 1.25, "c": [2.5, 0.5]}
    with pytest.raises(InvalidRecord) as raised:
        read(200, answer, value.replace(struct.pack("<d", 0.5), struct.pack("<d", math.inf)))
    assert [problem.field for problem in raised.value.fields] == ["c.1"]


def test_skipped_record_needs_no_registry() -> None:
    options = KafkaOptions("127.0.0.1:1", {URL: "http://127.0.0.1:1"})
    config = Config(kafka=options, run=RunSettings(skip=("memory.events:0:3",)))
    registry, skipped, other = config.kafka.registry, *(Message("memory.events", 0, at, None, FRAME) for at in (3, 4))
    assert registry is not None
    registry.open(skipped)
    assert type(skipped.value()) is bytes
    with pytest.raises(RegistryUnavailable):
        registry.open(other)


def test_id_beyond_the_protocol_is_an_unknown_schema() -> None:
    with pytest.raises(InvalidRecord) as raised:
        read(404, {"no": "registry"}, b"\0\xff\xff\xff\xff\7")
    assert raised.value.code == "unknown_schema"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KafkaOptions("a:1", {URL: "registry:8081"}),
        lambda: KafkaOptions("a:1", {URL: "http://a", "schema.registry.ulr": "http://a"}),
        lambda: KafkaOptions("a:1", {"schema.registry.basic.auth.user.info": "a:b"}),
        lambda: Config(run=RunSettings(response_format="avro")),
    ],
)
def test_invalid_settings_of_a_registry_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"schema\.registry"):
        wrong()
