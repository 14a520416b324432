"""Events, queries and responses, field by field, from the models."""

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel

from recallflow.events import Event, MemoryEvent
from recallflow.queries import QueryEvent
from recallflow.responses import Receipt, Response
from tools.reference.fields import fields_of
from tools.reference.markdown import code, escaped, page, prose, table
from tools.reference.notes import note_of

HEADS = ("field", "values", "default", "meaning")


def memory_events() -> str:
    """Return the page of events that change a memory."""
    return _union(
        "Memory events",
        "From this page you can write every field of every event on `memory.events`. "
        "[Events](../concepts/events.md) explains their effects.",
        MemoryEvent,
    )


def queries() -> str:
    """Return the page of queries."""
    return _union(
        "Queries",
        "From this page you can write every field of every query on `query.events`. "
        "[Queries and responses](../concepts/queries.md) explains them.",
        QueryEvent,
    )


def responses() -> str:
    """Return the page of outputs."""
    introduction = (
        "From this page you can read every field of `recall.responses` and `memory.receipts`. Fields without a value "
        "are omitted. [Queries and responses](../concepts/queries.md#responses) explains them."
    )
    schemas = {model.__name__: model.model_json_schema(mode="serialization") for model in (Response, Receipt)}
    parts = [_section(name, prose(model), schemas[name]) for name, model in _by_name(Response, Receipt)]
    return page("Responses and receipts", introduction, *parts, *_parts(schemas.values()))


def _union(title: str, introduction: str, union: Any) -> str:
    """Return a page of the events of a union: common fields, then each event's own, then their parts."""
    kinds = get_args(get_args(union)[0])
    models = sorted((_model(kind) for kind in kinds), key=_type_of)
    common = Event.model_fields.keys() | {"type"}
    schemas = [model.model_json_schema() for model in models]
    own = [
        _section(_type_of(model), prose(model), schema, without=common)
        for model, schema in zip(models, schemas, strict=True)
    ]
    every = _section("Every event", prose(Event), Event.model_json_schema())
    return page(title, introduction, every, *own, *_parts(schemas))


def _model(kind: Any) -> type[BaseModel]:
    """Return the model of a union's member, which may be `Annotated`."""
    model: type[BaseModel] = kind if isinstance(kind, type) else get_args(kind)[0]
    return model


def _type_of(model: type[BaseModel]) -> str:
    return str(get_args(model.model_fields["type"].annotation)[0])


def _by_name(*models: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    return [(model.__name__, model) for model in models]


def _parts(schemas: Iterable[dict[str, Any]]) -> list[str]:
    """Return a section for each named part of the schemas."""
    found = {name: part for schema in schemas for name, part in schema.get("$defs", {}).items()}
    described = {name: " ".join(part.get("description", "").split()) for name, part in found.items()}
    return [
        _section(name, described[name], found[name]) if "properties" in found[name] else _values(name, found[name])
        for name in sorted(found)
    ]


def _section(title: str, description: str, schema: dict[str, Any], without: Iterable[str] = ()) -> str:
    fields = [field for field in fields_of(schema, _link) if field.name not in without]
    rows = [(code(one.name), one.values, one.default, note_of(title, one.name)) for one in fields]
    shown = table(HEADS, rows) if rows else "It has no fields of its own."
    return f"## {title}\n\n{escaped(description)}\n\n{shown}"


def _values(title: str, schema: dict[str, Any]) -> str:
    values = ", ".join(code(one) for one in schema.get("enum", ()))
    return f"## {title}\n\n{values or 'Any value.'}"


def _link(part: str) -> str:
    return f"[{part}](#{part.lower()})"
