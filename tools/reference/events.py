"""Events, queries and responses, field by field, from the models."""

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel

from recallflow.events import Event, MemoryEvent
from recallflow.queries import QueryEvent
from recallflow.responses import Receipt, Response
from tools.reference.fields import fields_of
from tools.reference.markdown import code, escaped, page, prose, table

HEADS = ("field", "values", "default")


def memory_events() -> str:
    """Every event that changes a memory."""
    return _union(
        "Memory events",
        "Every field of every event on `memory.events`. What each does is in [events](../events.md#memory-events).",
        MemoryEvent,
    )


def queries() -> str:
    """Every event that asks."""
    return _union(
        "Queries",
        "Every field of every event on `query.events`. What is answered is in [queries](../events.md#queries).",
        QueryEvent,
    )


def responses() -> str:
    """What comes out."""
    told = "What comes out on `recall.responses` and `memory.receipts`. Fields that say nothing are left out."
    schemas = {model.__name__: model.model_json_schema(mode="serialization") for model in (Response, Receipt)}
    parts = [_section(name, prose(model), schemas[name]) for name, model in _by_name(Response, Receipt)]
    return page("Responses and receipts", told, *parts, *_parts(schemas.values()))


def _union(title: str, told: str, union: Any) -> str:
    """A page on the events of a union: what all carry, each one's own, and the parts they are made of."""
    kinds = get_args(get_args(union)[0])
    models = sorted((_model(kind) for kind in kinds), key=_type_of)
    common = Event.model_fields.keys() | {"type"}
    schemas = [model.model_json_schema() for model in models]
    own = [
        _section(_type_of(model), prose(model), schema, without=common)
        for model, schema in zip(models, schemas, strict=True)
    ]
    every = _section("Every event", prose(Event), Event.model_json_schema())
    return page(title, told, every, *own, *_parts(schemas))


def _model(kind: Any) -> type[BaseModel]:
    """The model of a union's arm, which may stand in an `Annotated`."""
    model: type[BaseModel] = kind if isinstance(kind, type) else get_args(kind)[0]
    return model


def _type_of(model: type[BaseModel]) -> str:
    return str(get_args(model.model_fields["type"].annotation)[0])


def _by_name(*models: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    return [(model.__name__, model) for model in models]


def _parts(schemas: Iterable[dict[str, Any]]) -> list[str]:
    """A section for each part that has a name of its own."""
    found = {name: part for schema in schemas for name, part in schema.get("$defs", {}).items()}
    told = {name: " ".join(part.get("description", "").split()) for name, part in found.items()}
    return [
        _section(name, told[name], found[name]) if "properties" in found[name] else _values(name, found[name])
        for name in sorted(found)
    ]


def _section(title: str, told: str, schema: dict[str, Any], without: Iterable[str] = ()) -> str:
    fields = [field for field in fields_of(schema, _link) if field.name not in without]
    shown = table(HEADS, [(code(one.name), one.values, one.default) for one in fields]) if fields else "No field more."
    return f"## {title}\n\n{escaped(told)}\n\n{shown}"


def _values(title: str, schema: dict[str, Any]) -> str:
    values = ", ".join(code(one) for one in schema.get("enum", ()))
    return f"## {title}\n\n{values or 'Any value.'}"


def _link(part: str) -> str:
    return f"[{part}](#{part.lower()})"
