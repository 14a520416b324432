"""CloudEvents 1.0 on Kafka, in binary and in structured mode, by the official SDK (extra `cloudevents`).

Attributes replace event fields that the data lacks: `type` without the prefix `recallflow.` replaces the type,
`source#id` the id (in a query `id` alone), `time` the timestamp, and `subject`, as `tenant_id/user_id`, the owner."""

import json
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from pydantic_core import from_json, to_json

from recallflow.credentials import Headers
from recallflow.distribution import install
from recallflow.errors import FieldProblem, InvalidRecord, UsageError
from recallflow.parsing import QUERY_TYPES
from recallflow.schema_registry import RegisteredValue

JSON, BINARY, STRUCTURED = RESPONSE_FORMATS = ("json", "cloudevents-binary", "cloudevents-structured")
CONTENT_TYPE = "content-type"
PREFIX = "recallflow."
_MEDIA_TYPES, _MEDIA_TYPE = b"application/cloudevents", b"application/cloudevents+json"  # the prefix; the supported one
_STRUCTURED_RESPONSE = b'{"specversion"'
_VERSION_HEADER = "ce_specversion"
_ID_CHARACTERS = 128  # maximum length of an event's id


def check_sdk(setting: str) -> None:
    """Raise UsageError if the SDK is missing. `setting` needs it."""
    if find_spec("cloudevents") is None:
        raise UsageError(f"{setting} needs the CloudEvents SDK: {install('cloudevents')}")


def is_cloud_event(headers: Headers) -> bool:
    for name, _ in headers:  # called for every record: comparing lengths is faster than comparing names
        if len(name) == len(_VERSION_HEADER) and name.lower() == _VERSION_HEADER:
            return True
        if len(name) == len(CONTENT_TYPE) and name.lower() == CONTENT_TYPE:
            return _structured_type(headers) is not None or _VERSION_HEADER in (name.lower() for name, _ in headers)
    return False


def event_json(value: bytes, headers: Headers) -> bytes:
    """Return the event in a CloudEvent, as JSON. Raise InvalidRecord."""
    try:
        return _event_json(value, headers)
    except InvalidRecord:
        raise
    except Exception as error:  # noqa: BLE001  the SDK uses values before it checks their types
        raise InvalidRecord.of("invalid_event", f"not a CloudEvent: {error}") from None


def _event_json(value: bytes, headers: Headers) -> bytes:
    attributes, data = _attributes_and_data(value, headers)
    if isinstance(data, bytes):  # data_base64
        data = _parsed(data)
    if not isinstance(data, dict):
        if _structured_type(headers) is None:
            if "json" in (content_type := attributes.get("datacontenttype", "json")):
                return value  # the event parser will report why this is no JSON object
            problem = f"is {content_type}, which is not supported; send the event as application/json"
            raise InvalidRecord.of("invalid_event", problem, CONTENT_TYPE)
        raise InvalidRecord.of("invalid_event", "not a JSON object; give the event, as in a plain record", "data")
    kind, event_id = str(data.get("type", attributes["type"])).removeprefix(PREFIX), attributes["id"]
    if kind not in QUERY_TYPES:  # an idempotency key: the id of a CloudEvent is unique within its source only
        event_id = f"{attributes['source']}#{event_id}"
        if len(event_id) > _ID_CHARACTERS:
            event_id = sha256(event_id.encode(errors="surrogatepass")).hexdigest()
    fields = {"type": kind, "id": event_id}
    if "time" in attributes:
        fields["timestamp"] = attributes["time"].isoformat()
    tenant, slash, user = attributes.get("subject", "").partition("/")
    if slash:
        fields |= {"tenant_id": tenant, "user_id": user}
    return json.dumps(fields | data, ensure_ascii=False).encode(errors="surrogatepass")


def _structured_type(headers: Headers) -> bytes | None:
    types = ((value or b"").strip().lower() for name, value in headers if name.lower() == CONTENT_TYPE)
    return next((media_type for media_type in types if media_type.startswith(_MEDIA_TYPES)), None)


def _attributes_and_data(value: bytes, headers: Headers) -> tuple[dict[str, Any], Any]:
    """Return the attributes in the record, without the id and the time that the SDK adds where they are missing, and
    the data. An error names the attribute; in binary mode it names the header of the attribute."""
    try:
        from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, from_structured
        from cloudevents.core.exceptions import CloudEventValidationError
        from cloudevents.core.formats.json import JSONFormat
        from cloudevents.core.v1.event import CloudEvent
    except ModuleNotFoundError:
        remedy = f"{install('cloudevents')} on every member, then recallflow dlq replay --code invalid_event"
        raise InvalidRecord.of("invalid_event", f"a CloudEvent, and this engine lacks the SDK: {remedy}") from None
    attributes: dict[str, Any] = {}

    def new_event(found: dict[str, Any], data: Any) -> CloudEvent:
        attributes.update(found)
        return CloudEvent(found, data)

    media_type = _structured_type(headers)
    if media_type is not None and media_type.partition(b";")[0].strip() != _MEDIA_TYPE:
        problem = f"{media_type.decode(errors='replace')} is not supported; send {_MEDIA_TYPE.decode()}"
        raise InvalidRecord.of("invalid_event", problem, CONTENT_TYPE)
    prefix = "ce_" if media_type is None else ""
    message = KafkaMessage({name: text for name, text in headers if text is not None}, None, value)
    try:
        event = (from_binary if media_type is None else from_structured)(message, JSONFormat(), new_event)
    except CloudEventValidationError as error:
        problems = [FieldProblem(f"{prefix}{name}", str(found[0])) for name, found in sorted(error.errors.items())]
        raise InvalidRecord("invalid_event", problems) from None
    except ValueError as error:  # in binary mode the time is the only attribute that is parsed
        if media_type is None and not isinstance(error, UnicodeDecodeError):
            problem = "is no time; give RFC 3339, such as 2026-01-31T12:00:00Z"
            raise InvalidRecord.of("invalid_event", problem, "ce_time") from None
        raise
    for name in ("specversion", "id"):
        if name not in attributes:
            raise InvalidRecord.of("invalid_event", "is missing; a CloudEvent needs it", f"{prefix}{name}")
    return attributes, event.get_data()


def _parsed(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def response_event(body: bytes, key: bytes, topic: str, number: str, response_format: str) -> tuple[bytes, Headers]:
    """Return value and headers of a response. `topic` and `number` identify the response, also if it is sent again."""
    from cloudevents.core.bindings.kafka import to_binary
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    attributes = {"specversion": "1.0", "type": f"{PREFIX}response", "source": f"/recallflow/{topic}", "id": number}
    attributes["datacontenttype"] = "application/json"
    if subject := key.decode(errors="replace"):
        attributes["subject"] = subject
    event, json_format = CloudEvent(attributes), JSONFormat()
    attributes.pop("time", None)  # the SDK adds the current time: it would differ if the response is sent again
    if response_format == STRUCTURED:
        # The body is inserted unchanged: the SDK would escape it, and its size would change.
        return json_format.write(event)[:-1] + b', "data": ' + body + b"}", ((CONTENT_TYPE, _MEDIA_TYPE),)
    return body, tuple(to_binary(event, json_format).headers.items())


def response_json(value: bytes) -> bytes:
    """Return the response in a value of its topic: plain, in a registered record, or in our structured CloudEvent."""
    if isinstance(value, RegisteredValue) and isinstance(value.content, bytes):
        return value.content
    if not value.startswith(_STRUCTURED_RESPONSE):
        return value
    event = _parsed(value)
    return to_json(event["data"]) if isinstance(event, dict) and "data" in event else value
