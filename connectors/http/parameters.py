"""Query parameters of a URL → an event. Which there are is what the event's model has."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import orjson
from fastapi import Request
from pydantic import BaseModel

from recallflow.connectors.http.errors import Problem

_NOT_OF_A_URL = {"type", "reply_to", "receipt", "schema_version"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_TRUTHS = {"true": True, "false": False}


class Parameter(NamedTuple):
    """One parameter. `schema`: of its value, or, of one that may be given often, of each."""

    name: str
    schema: Mapping[str, Any]
    often: bool
    required: bool

    def value(self, text: str) -> object:
        """The JSON value that a text stands for. What it cannot be stays text, and the event's model says so."""
        kinds = {one.get("type") for one in self.schema.get("anyOf", [self.schema])}
        if "boolean" in kinds:
            return _TRUTHS.get(text, text)
        if ("integer" in kinds and _WHOLE.fullmatch(text)) or ("number" in kinds and _NUMBER.fullmatch(text)):
            return orjson.loads(text.removeprefix("+").encode()) if "." in text else int(text)
        return text


class Parameters:
    """The parameters that make an event of one model."""

    def __init__(
        self,
        model: type[BaseModel],
        only: Collection[str] | None = None,
        in_path: Collection[str] = (),
    ) -> None:
        """`only`: the fields that a URL may name, if not all. `in_path`: those that stand in the path."""
        self.type: str = model.model_json_schema()["properties"]["type"]["const"]
        fields = (set(model.model_fields) if only is None else set(only)) - set(in_path)
        known = [*_parameters(model)]
        self.all = {one.name: one for one in known if one.name.partition(".")[0] in fields}
        self.in_path = [one._replace(required=True) for one in known if one.name in in_path]

    def event(self, request: Request, **in_path: object) -> bytes:
        """The event that a URL describes, as JSON that is still to be parsed. Raises Problem."""
        return as_json(self.fields(request, **in_path))

    def fields(self, request: Request, **in_path: object) -> dict[str, Any]:
        """The fields of that event. What is none of them is the route's own, which takes no other parameters."""
        event: dict[str, Any] = {"type": self.type, **in_path}
        given = request.query_params
        for name, parameter in self.all.items():
            if name not in given:
                continue
            values = [parameter.value(text) for text in given.getlist(name)]
            part, _, field = name.rpartition(".")
            (event.setdefault(part, {}) if part else event)[field] = values if parameter.often else values[0]
        return event


def as_json(fields: Mapping[str, Any]) -> bytes:
    """Fields as JSON. Raises Problem."""
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # half a character, of bytes that are not UTF-8
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None


def _parameters(model: type[BaseModel]) -> Iterator[Parameter]:
    schema = model.model_json_schema()
    parts = schema.get("$defs", {})
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name in _NOT_OF_A_URL:
            continue
        part = _without_null(field).get("$ref", "").rpartition("/")[2]
        if part in parts:  # its fields, one level deep: conditions within conditions are for a body
            inner = parts[part]["properties"].items()
            yield from (one for field_name, found in inner for one in _parameter(f"{name}.{field_name}", found, False))
        else:
            yield from _parameter(name, field, name in required)


def _parameter(name: str, field: Mapping[str, Any], required: bool) -> Iterator[Parameter]:
    schema = _without_null(field)
    often = schema.get("type") == "array"
    if often:
        schema = schema["items"]
    if "$ref" not in str(schema) and schema.get("type") not in ("object", "array"):
        yield Parameter(name, schema, often, required)


def _without_null(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field's schema, as it is where it is given."""
    choices = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if not choices:
        return {name: value for name, value in field.items() if name not in ("title", "default")}
    return choices[0] if len(choices) == 1 else {"anyOf": choices}
