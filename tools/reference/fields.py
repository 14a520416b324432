"""The fields of a model, described from its JSON Schema."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

Named = Callable[[str], str]  # returns the link to a named part


class Field(NamedTuple):
    """One field. `default` is empty if there is none, and `required` for a required field."""

    name: str
    values: str
    default: str


def fields_of(schema: dict[str, Any], named: Named) -> Iterator[Field]:
    """Yield name, values and default of each field."""
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", []) else ""
        if field.get("default") not in (None, {}) and not isinstance(field["default"], dict):
            default = f"`{orjson.dumps(field['default']).decode()}`"
        yield Field(name, value_of(field, named), default)


def value_of(schema: dict[str, Any], named: Named) -> str:
    """Return a description of a field's values."""
    if "$ref" in schema:
        return named(schema["$ref"].rpartition("/")[2])
    arms = [arm for arm in schema.get("anyOf", schema.get("oneOf", [])) if arm != {"type": "null"}]
    if arms and any(arm.get("format") == "date-time" for arm in arms):
        return "time"
    if arms:
        return " or ".join(dict.fromkeys(value_of(arm, named) for arm in arms))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return _BY_TYPE[schema["type"]](schema, named) if "type" in schema else "anything"


def _text(schema: dict[str, Any], _: Named) -> str:
    most = schema.get("maxLength")
    if "{64}" in schema.get("pattern", ""):
        return "64 hexadecimal digits"
    if "pattern" in schema and most in (128, 512):
        return "id" if most == 128 else "name"
    return "text" + (f" of up to {most:,} characters" if most else "") + (", not blank" if "pattern" in schema else "")


def _number(schema: dict[str, Any], _: Named) -> str:
    kind = "whole number" if schema["type"] == "integer" else "number"
    if "exclusiveMinimum" in schema:
        return f"{kind} above {schema['exclusiveMinimum']:g}, to {schema['maximum']:,.0f}"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']:g} to {schema['maximum']:,.0f}" if "maximum" in schema else kind
    return kind


def _list(schema: dict[str, Any], named: Named) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    bounds = (
        f" of {least} to {most:,}"
        if least and most
        else f" of up to {most:,}"
        if most
        else f" of {least} or more" * bool(least)
    )
    items = schema.get("items")
    return f"list{bounds}: {value_of(items, named)}" if items else f"list{bounds}"


def _object(schema: dict[str, Any], named: Named) -> str:
    most, values = schema.get("maxProperties"), schema.get("additionalProperties")
    bounds = f" of 1 to {most}" if most else ""
    return f"object{bounds}: {value_of(values, named)}" if isinstance(values, dict) and values else f"object{bounds}"


_BY_TYPE: dict[str, Callable[[dict[str, Any], Named], str]] = {
    "string": _text,
    "integer": _number,
    "number": _number,
    "boolean": lambda *_: "true or false",
    "array": _list,
    "object": _object,
    "null": lambda *_: "null",
}
