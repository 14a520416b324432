"""Schema registry: converts records in Avro, Protobuf and JSON Schema to the JSON that the engine parses.

A registered record begins with a zero byte and the four bytes of its schema's id (Confluent's wire format). No JSON
begins with a zero byte, so both kinds may share a topic. The schema of an id never changes, nor a record's JSON."""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import orjson

from recallflow.distribution import install
from recallflow.errors import ErrorCode, InvalidRecord, RegistryUnavailable, SourceError, UsageError
from recallflow.records import Position
from recallflow.responses import RESPONSE_NAME

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

PREFIX = "schema.registry."  # of its options among librdkafka's
FRAME_BYTES = 5
_LARGEST_ID = 2**31 - 1  # for a larger id, registries return another error than for an unknown schema
RETRY_S = 1.0
TIMEOUT_S = 5
_TEXT_SCHEMA = "the registry returns Protobuf as text, and only the serialized form can be read"
_UNKNOWN = 40401, 40403  # the registry's codes of an unknown subject, and of an unknown schema
_RETRIABLE = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class RegisteredValue(bytes):
    """The bytes of a registered record. `content` is the record as JSON, or the error of its conversion."""

    content: bytes | InvalidRecord

    def __new__(cls, value: bytes, content: bytes | InvalidRecord) -> Self:
        instance = super().__new__(cls, value)
        instance.content = content
        return instance

    def json(self) -> bytes:
        """Return the content. Raise InvalidRecord."""
        if isinstance(self.content, InvalidRecord):
            raise self.content
        return self.content


class SchemaRegistry:
    """Client of a registry with Confluent's protocol. Thread-safe."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are confluent_kafka's: `url`, `basic.auth.user.info`, `ssl.ca.location`, …"""
        self.url = options.get("url", "")
        self.skips: frozenset[Position] = frozenset()  # positions of records that are not converted
        self._options = options
        self._decoders: dict[int, Callable[[bytes], bytes]] = {}

    @cached_property
    def client(self) -> "SchemaRegistryClient":
        """A client of the registry, without an open connection. Raises UsageError for invalid options."""
        return self._new_client()

    def _new_client(self) -> "SchemaRegistryClient":
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            problem = f"{PREFIX}url needs packages that are not installed ({error.name})"
            raise UsageError(f"{problem}: {install('schema-registry')}") from None
        if not self.url:
            raise UsageError(f"{PREFIX}url is missing: give the address of the registry, or no {PREFIX}… option")
        try:
            return SchemaRegistryClient({**self._options, "timeout": TIMEOUT_S, "max.retries": 0})
        except (ValueError, TypeError, OSError) as error:  # an unknown option, or an unreadable certificate
            raise UsageError(f"{PREFIX}…: {error}") from None

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        if (client := self.__dict__.pop("client", None)) is not None:
            client.close()

    def open(self, message: Any) -> None:
        """Replace the value of a message by a `RegisteredValue` if the record is registered. Raise as `read`."""
        value: bytes | None = message.value()
        if value is None or len(value) < FRAME_BYTES or value[0] != 0:
            return
        if not self.skips or Position(message.topic(), message.partition(), message.offset()) not in self.skips:
            message.set_value(self.read(value))

    def read(self, value: bytes) -> RegisteredValue:
        """Decode a registered value. Raise RegistryUnavailable, and SourceError if the registry refuses us."""
        schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
        try:
            with self.translate_errors():
                if schema_id not in self._decoders:
                    self._decoders[schema_id] = self._decoder(schema_id)
                return RegisteredValue(value, self._decoders[schema_id](value))
        except SourceError:
            raise
        except InvalidRecord as error:
            return RegisteredValue(value, error)
        except _UnknownSchemaError:
            code: ErrorCode = "unknown_schema"
            problem = f"schema {schema_id} is not in the registry {self.url}; register it there, then replay the record"
        except Exception as error:  # noqa: BLE001 - a decoder raises errors of any type for arbitrary bytes
            code, kind = "undecodable", str(error) if str(error) == _TEXT_SCHEMA else type(error).__name__
            problem = f"cannot be read with its schema {schema_id}: {kind}; send it with the serializer of that schema"
        return RegisteredValue(value, InvalidRecord.of(code, problem))

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors of the registry in a block: to RegistryUnavailable if a retry may help, else SourceError."""
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            yield
        except SchemaRegistryError as error:
            status = error.http_status_code
            if error.error_code in _UNKNOWN:
                raise _UnknownSchemaError from None
            problem = f"the schema registry {self.url} answered {status}: {error.error_message}"
            if status in _RETRIABLE or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise RegistryUnavailable(problem) from None
            raise SourceError(f"{problem}; check the options {PREFIX}… (url, basic.auth.user.info, …)") from None
        except (httpx.HTTPError, OAuthTokenError) as error:
            problem = f"the schema registry {self.url} cannot be reached: {error}"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise SourceError(f"{problem}; check {PREFIX}ssl.ca.location") from None
            raise RegistryUnavailable(problem) from None

    def register(self, subject: str, kind: str, text: str) -> tuple[str, str]:
        """Register a schema. Return `registered`, `exists`, `kept` (the subject has schemas of another type) or
        `incompatible`, and the detail. Raise as `read`."""
        from confluent_kafka.schema_registry import Schema, SchemaRegistryError

        latest = None
        with suppress(_UnknownSchemaError), self.translate_errors():
            latest = self.client.get_latest_version(subject)
        if latest is not None and (latest.schema.schema_type or "AVRO") != kind:
            return "kept", f"version {latest.version} is {latest.schema.schema_type}"
        with self.translate_errors():
            try:
                schema_id = self.client.register_schema(subject, Schema(text, kind))
            except SchemaRegistryError as error:
                if error.http_status_code != HTTPStatus.CONFLICT:
                    raise
                return "incompatible", error.error_message
        return "exists" if latest is not None and latest.schema_id == schema_id else "registered", f"schema {schema_id}"

    def schema_id(self, subject: str, kind: str, text: str) -> int:
        """Return the id of a registered schema. Raise UsageError if it is not registered, and as `read`."""
        from confluent_kafka.schema_registry import Schema

        try:
            with self.translate_errors():
                return int(self.client.lookup_schema(subject, Schema(text, kind)).schema_id or 0)
        except _UnknownSchemaError:
            problem = f"{subject} lacks the schema for run.response_format in the registry {self.url}"
            raise UsageError(f"{problem}; run recallflow topics create --register-schemas") from None

    def _decoder(self, schema_id: int) -> Callable[[bytes], bytes]:
        schema = self._schema(self.client, schema_id)
        match schema.schema_type:
            case "AVRO":
                from confluent_kafka.schema_registry.avro import AvroDeserializer

                avro: Callable[[bytes], Any] = AvroDeserializer(self.client)
                root = orjson.loads(schema.schema_str or "")
                is_ours = isinstance(root, dict) and f"{root.get('namespace')}.{root.get('name')}" == RESPONSE_NAME
                return lambda value: _json(_without_nulls(avro(value)), is_ours)
            case "PROTOBUF":
                return self._protobuf_decoder(schema_id)
            case "JSON":
                return lambda value: value[FRAME_BYTES:]
        raise ValueError("unknown schema type")

    def _schema(self, client: "SchemaRegistryClient", schema_id: int, **options: str) -> "Schema":
        """Return the schema of an id. Raise RegistryUnavailable for any other content, such as the page of a proxy."""
        if schema_id > _LARGEST_ID:
            raise _UnknownSchemaError
        with suppress(ValueError, TypeError, AttributeError):  # errors of the client for other content
            schema = client.get_schema(schema_id, **options)
            if isinstance(schema.schema_str, str):
                return schema
        raise RegistryUnavailable(f"{self.url} answered without a schema; is it the schema registry?")

    def _protobuf_decoder(self, schema_id: int) -> Callable[[bytes], bytes]:
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        from confluent_kafka.schema_registry.serde import SchemaId
        from google.protobuf.message_factory import GetMessageClass
        from google.protobuf.struct_pb2 import Struct

        with self._new_client() as client:  # a new client: the cache of `self.client` ignores the format of a schema
            codec = ProtobufDeserializer(Struct, {"use.deprecated.format": False}, client)
            schema = self._schema(client, schema_id, fmt="serialized")
            if "{" in (schema.schema_str or ""):  # text: base64 has no such character
                raise ValueError(_TEXT_SCHEMA)
            file, pool = codec._get_parsed_schema(schema)
        described = pool.FindFileByName(file.name)

        def decode(value: bytes) -> bytes:
            frame = SchemaId("PROTOBUF")
            payload = prefix_schema_id_deserializer(value, None, frame)
            message = GetMessageClass(codec._get_message_desc(pool, described, frame.message_indexes or [0]))()
            message.ParseFromString(payload.read())
            return _json(_message_fields(message), message.DESCRIPTOR.full_name == RESPONSE_NAME)

        return decode


class _UnknownSchemaError(Exception):
    """The registry has no schema of an id."""


def _json(content: Any, is_ours: bool) -> bytes:
    """Return a decoded record as JSON. `is_ours`: it is one of our responses, converted to its plain form."""
    _check_finite(content)
    if is_ours:
        from recallflow.registered_responses import record_types

        content = record_types()["Response"].unpack(content)
    return orjson.dumps(content, default=_json_value)


def _json_value(value: Any) -> Any:
    """Return bytes as base64, like Protobuf's JSON, and a decimal as a number."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _check_finite(value: Any, field: str = "") -> None:
    """Raise InvalidRecord for a number that JSON lacks: as null it would be lost. `field` is the path of the value."""
    if isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            # An embedding has hundreds of finite numbers, which need no path.
            if isinstance(one, dict | list) or (isinstance(one, float) and not math.isfinite(one)):
                _check_finite(one, f"{field}.{name}" if field else str(name))
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRecord.of("invalid_event", f"is {value}, which JSON lacks: send a number, or leave it out", field)


def _without_nulls(value: Any) -> Any:
    """Return an Avro value without null fields: in Avro, a null means a missing field."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _message_fields(message: Any) -> Any:
    """Return the fields in a Protobuf message by their names in the schema."""
    from google.protobuf.json_format import MessageToDict

    if message.DESCRIPTOR.file.package == "google.protobuf":  # a Timestamp, a Struct, …
        return MessageToDict(message)
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {str(key): _field_item(of, one) for key, one in value.items()}
    return [_field_item(field, one) for one in value] if field.is_repeated else _field_item(field, value)


def _field_item(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value if field.message_type is None else _message_fields(value)
