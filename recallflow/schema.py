"""JSON Schemas (draft 2020-12) and the AsyncAPI 3 document of all topics, generated from the models."""

from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import orjson
from pydantic import BaseModel, TypeAdapter

from recallflow.control import ControlEvent
from recallflow.distribution import __version__
from recallflow.events import EnrichmentRequest, EnrichmentResult, MemoryEvent
from recallflow.outputs import AuditRecord
from recallflow.queries import QueryEvent
from recallflow.registered_responses import schema_text
from recallflow.responses import AVRO, PROTOBUF, Receipt, Response

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
REFERENCE = "#/components/schemas/{model}"
BINDING = "0.5.0"  # of the Kafka binding
OWNER_KEY = "tenant_id/user_id, unencoded: the events of one user are in one partition, in order"
DECISION_KEY = "tenant_id/kind/name"
ONCE, INTERNAL = "One response to each query, written once", "Internal, may change"


def schemas() -> dict[str, dict[str, Any]]:
    """Return schema name → JSON Schema."""
    by_name = {}
    for channel in CHANNELS:
        if (name := channel.schema) is not None:
            draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:recallflow:schema:{name}"}
            title = {"title": f"{name} (topic {channel.topic})"}
            by_name[name] = draft | title | TypeAdapter(channel.content).json_schema(mode="validation")
    return by_name


def registered_schema(name: str, response_format: str) -> tuple[str, str]:
    """Return type and text of a schema for a registry. Responses in Avro and Protobuf have schemas of these types."""
    if name == "response" and response_format in (AVRO, PROTOBUF):
        return response_format.upper(), schema_text(response_format)
    # Registries cannot compare schemas of a later draft; ours have only keywords that both drafts share.
    return "JSON", orjson.dumps(schemas()[name] | {"$schema": DRAFT_7}).decode()


class Channel(NamedTuple):
    """A topic. `reads`: the topic is an input of the engine, not an output. `schema` is the name of the schema of its
    `content`, a model or a union of models; None for a topic of arbitrary bytes."""

    name: str
    topic: str
    reads: bool
    schema: str | None
    content: Any
    key: str
    text: str

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        if self.schema is None:
            return ()
        return (self.content,) if isinstance(self.content, type) else get_args(get_args(self.content)[0])


CHANNELS = (
    Channel("memoryEvents", "memory.events", True, "memory-event", MemoryEvent, OWNER_KEY,
            "All changes of memory"),
    Channel("queryEvents", "query.events", True, "query-event", QueryEvent, OWNER_KEY, "All queries"),
    Channel("controlEvents", "control.events", True, "control-event", ControlEvent, DECISION_KEY,
            "Operators' decisions"),
    Channel("recallResponses", "recall.responses", False, "response", Response, OWNER_KEY, ONCE),
    Channel("memoryReceipts", "memory.receipts", False, "receipt", Receipt, OWNER_KEY, "Outcomes of events"),
    Channel("deadLetters", "dead.letters", False, None, None, "that of the refused record",
            "Refused records, without secrets, cut if too large"),
    Channel("auditLog", "audit.log", False, "audit", AuditRecord, OWNER_KEY,
            "Access log, if it is enabled"),
    Channel("enrichmentRequests", "enrichment.requests", False, "enrichment-request", EnrichmentRequest, OWNER_KEY,
            INTERNAL),
    Channel("enrichmentResults", "enrichment.results", False, "enrichment-result", EnrichmentResult, OWNER_KEY,
            INTERNAL),
)  # fmt: skip
# Headers of every record that the engine writes, and further headers of a dead letter.
IDENTITY = {
    "recallflow-source": "position (topic:partition:offset) of the record that this one comes from",
    "recallflow-output": "index among the outputs of that record; the two headers together identify this record",
}
REASON = {
    "error.code": "reason of the refusal",
    "error.detail": "every wrong field, for a person",
    "error.fields": "the same in JSON, a list of [field, problem], cut off if there are very many",
    "error.step": "the step that refused it",
    "error.source": "position of the refused record",
    "error.time": "append time of the refused record, in epoch milliseconds",
}
_OWNER = {"tenant_id": "acme", "user_id": "ann"}
_MESSAGE = {"type": "message", "session_id": "s1", "role": "user", "content": "My flight leaves on 3 June."}
_FACT = {"type": "memory", "kind": "fact", "content": "Ann is allergic to peanuts.", "tags": ["food"]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "Message": _OWNER | _MESSAGE,
    "MemoryAdd": _OWNER | _FACT,
    "Recall": _OWNER | {"type": "recall", "id": "q1", "query": "What can't Ann eat?", "k": 3},
    "Receipt": {"id": "m1", "position": "memory.events:0:7", "outcome": "created", "memory_id": "m1"},
}


def asyncapi() -> dict[str, Any]:
    """Return the document, with the default names of the topics."""
    text = "Memory events and queries in, ranked answers out. JSON, UTF-8, one event a record."
    info = {"title": "recallflow", "version": __version__, "description": text, "license": {"name": "Apache-2.0"}}
    channels, operations, messages = {}, {}, dict[str, Any]()
    for channel in CHANNELS:
        name, own = channel.name, dict(_messages(channel))
        references = {message: {"$ref": f"#/components/messages/{message}"} for message in own}
        channels[name] = {"address": channel.topic, "description": f"{channel.text}.", "messages": references}
        messages |= own
        verb, action = ("read", "receive") if channel.reads else ("write", "send")
        operation = {"action": action, "channel": {"$ref": f"#/channels/{name}"}, "summary": f"{channel.text}."}
        if name == "queryEvents":  # a query may also name another topic for its response
            operation["reply"] = {"channel": {"$ref": "#/channels/recallResponses"}}
        operations[verb + name[0].upper() + name[1:]] = operation
    return {
        "asyncapi": "3.1.0", "info": info, "defaultContentType": "application/json", "channels": channels,
        "operations": operations, "components": {"messages": messages, "schemas": _schemas()},
    }  # fmt: skip


def _messages(channel: Channel) -> Iterable[tuple[str, dict[str, Any]]]:
    common: dict[str, Any] = {"bindings": {"kafka": {"bindingVersion": BINDING, "key": _text(channel.key)}}}
    if not channel.reads:
        own = IDENTITY if channel.models else IDENTITY | REASON
        properties = {name: _text(text) for name, text in own.items()}
        common["headers"] = {"type": "object", "properties": properties, "required": [*own]}
    if not channel.models:
        yield "DeadLetter", {"name": "DeadLetter", "contentType": "application/octet-stream"} | common
    for model in channel.models:
        name = model.__name__
        message = {"name": name, "payload": {"$ref": REFERENCE.format(model=name)}} | common
        if model is Response:
            message["correlationId"] = {"description": "The query's id.", "location": "$message.payload#/query_id"}
        if name in EXAMPLES:
            message["examples"] = [{"payload": EXAMPLES[name]}]
        yield name, message


def _text(text: str) -> dict[str, Any]:
    return {"type": "string", "description": text}


def _schemas() -> dict[str, Any]:
    """Return every model by name, as JSON Schema."""
    models = [model for channel in CHANNELS for model in channel.models]
    adapters = [(model, "validation", TypeAdapter(model)) for model in models]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=REFERENCE)  # type: ignore[arg-type]
    return {name: _plain(schema) for name, schema in found["$defs"].items()}


def _plain(schema: Any) -> Any:
    """Return a schema without discriminators: they belong to OpenAPI, and each member's `const` replaces them."""
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name != "discriminator"}
    return [_plain(one) for one in schema] if isinstance(schema, list) else schema
