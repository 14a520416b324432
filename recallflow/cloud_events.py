"""CloudEvents 1.0 on Kafka, in binary and in structured mode, by the official SDK (extra `cloudevents`).

An attribute fills a field of the event that its data leaves out: `type`, without the prefix `recallflow.`, the type;
`source#id` the id, of a query `id` alone; `time` the timestamp; `subject`, as `tenant_id/user_id`, the owner."""

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
_FAMILY, _MEDIA_TYPE = b"application/cloudevents", b"application/cloudevents+json"
_STRUCTURED_RESPONSE = b'{"specversion"'
_SPEC = "ce_specversion"
_ID_CHARACTERS = 128  # of an event


def check_sdk(wanted: str) -> None:
    """Raise UsageError without the SDK that a setting needs."""
    if find_spec("cloudevents") is None:
        raise UsageError(f"{wanted} needs the CloudEvents SDK: {install('cloudevents')}")


def is_cloud_event(headers: Headers) -> bool:
    for name, _ in headers:  # of every record: the lengths exclude most headers at once
        if len(name) == len(_SPEC) and name.lower() == _SPEC:
            return True
        if len(name) == len(CONTENT_TYPE) and name.lower() == CONTENT_TYPE:
            return _structured_type(headers) is not None or _SPEC in (name.lower() for name, _ in headers)
    return False


def event_json(value: bytes, headers: Headers) -> bytes:
    """Return the event in a CloudEvent, as JSON. Raise InvalidRecord."""
    try:
        return _event_json(value, headers)
    except InvalidRecord:
        raise
    except Exception as error:  # noqa: BLE001  the SDK uses values before it checks their types
        raise _refusal("", f"not a CloudEvent: {error}") from None


def _event_json(value: bytes, headers: Headers) -> bytes:
    given, data = _read(value, headers)
    if isinstance(data, bytes):  # data_base64
        data = _object(data)
    if not isinstance(data, dict):
        if _structured_type(headers) is None:
            if "json" in (content_type := given.get("datacontenttype", "json")):
                return value  # its parser names the problem
            raise _refusal(CONTENT_TYPE, f"is {content_type}, which is not read; send the event as application/json")
        raise _refusal("data", "not a JSON object; give the event, as in a plain record")
    kind = str(data.get("type", given["type"])).removeprefix(PREFIX)
    known = {"type": kind, "id": given["id"] if kind in QUERY_TYPES else _event_id(given["source"], given["id"])}
    if "time" in given:
        known["timestamp"] = given["time"].isoformat()
    tenant, slash, user = given.get("subject", "").partition("/")
    if slash:
        known |= {"tenant_id": tenant, "user_id": user}
    return json.dumps(known | data, ensure_ascii=False).encode(errors="surrogatepass")


def _event_id(source: str, given: str) -> str:
    """Return the idempotency key of an event. `id` alone is unique within a source only."""
    whole = f"{source}#{given}"
    return whole if len(whole) <= _ID_CHARACTERS else sha256(whole.encode(errors="surrogatepass")).hexdigest()


def _structured_type(headers: Headers) -> bytes | None:
    types = ((value or b"").strip().lower() for name, value in headers if name.lower() == CONTENT_TYPE)
    return next((one for one in types if one.startswith(_FAMILY)), None)


def _read(value: bytes, headers: Headers) -> tuple[dict[str, Any], Any]:
    """Return attributes and data. The SDK invents a missing id and time, so only given attributes are returned. An
    error names the attribute, in binary mode its header."""
    try:
        from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, from_structured
        from cloudevents.core.exceptions import CloudEventValidationError
        from cloudevents.core.formats.json import JSONFormat
        from cloudevents.core.v1.event import CloudEvent
    except ModuleNotFoundError:
        remedy = f"{install('cloudevents')} on every member, then recallflow dlq replay --code invalid_event"
        raise _refusal("", f"a CloudEvent, and this engine lacks the SDK: {remedy}") from None
    given: dict[str, Any] = {}

    def keep(attributes: dict[str, Any], data: Any) -> CloudEvent:
        given.update(attributes)
        return CloudEvent(attributes, data)

    media_type = _structured_type(headers)
    if media_type is not None and media_type.partition(b";")[0].strip() != _MEDIA_TYPE:
        raise _refusal(CONTENT_TYPE, f"{media_type.decode(errors='replace')} is not read; send {_MEDIA_TYPE.decode()}")
    prefix = "ce_" if media_type is None else ""
    message = KafkaMessage({name: text for name, text in headers if text is not None}, None, value)
    try:
        event = (from_binary if media_type is None else from_structured)(message, JSONFormat(), keep)
    except CloudEventValidationError as error:
        problems = [FieldProblem(f"{prefix}{name}", str(found[0])) for name, found in sorted(error.errors.items())]
        raise InvalidRecord("invalid_event", problems) from None
    except ValueError as error:  # in binary mode of the time, the only attribute that is parsed
        if media_type is None and not isinstance(error, UnicodeDecodeError):
            raise _refusal("ce_time", "is no time; give RFC 3339, such as 2026-01-31T12:00:00Z") from None
        raise
    for name in ("specversion", "id"):
        if name not in given:
            raise _refusal(f"{prefix}{name}", "is missing; a CloudEvent needs it")
    return given, event.get_data()


def _object(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def _refusal(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid_event", [FieldProblem(field, problem)])


def response_event(body: bytes, key: bytes, topic: str, number: str, response_format: str) -> tuple[bytes, Headers]:
    """Return value and headers of a response. `topic` and `number` identify it; a repetition has the same."""
    from cloudevents.core.bindings.kafka import to_binary
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    attributes = {"specversion": "1.0", "type": f"{PREFIX}response", "source": f"/recallflow/{topic}", "id": number}
    attributes["datacontenttype"] = "application/json"
    if subject := key.decode(errors="replace"):
        attributes["subject"] = subject
    event, json_format = CloudEvent(attributes), JSONFormat()
    attributes.pop("time", None)  # the SDK's own: it would differ in a repetition
    if response_format == STRUCTURED:
        # The body stays as it is: the SDK would escape it, and its size would change.
        return json_format.write(event)[:-1] + b', "data": ' + body + b"}", ((CONTENT_TYPE, _MEDIA_TYPE),)
    return body, tuple(to_binary(event, json_format).headers.items())


def response_json(value: bytes) -> bytes:
    """Return the response in a record of the response topic: its value, the content of a registered record, or the data
    of our structured CloudEvent."""
    if isinstance(value, RegisteredValue) and isinstance(value.content, bytes):
        return value.content
    if not value.startswith(_STRUCTURED_RESPONSE):
        return value
    event = _object(value)
    return to_json(event["data"]) if isinstance(event, dict) and "data" in event else value
