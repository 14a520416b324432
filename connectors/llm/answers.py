"""Answers of language models as values of a schema, also where a model writes more or less around the value."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

# A block of Markdown, which models without a JSON mode put around JSON. Its end may be missing, as models stop there.
_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def read_answer(content: str, schema: Mapping[str, Any]) -> object:
    """Return the value that a model wrote, unchecked.

    Beside the JSON of the schema these are accepted: JSON in one fenced block; and where the schema is an object of one
    field, the bare value of that field: a list, or a truth value, as JSON or as the word YES or NO. Raises ValueError
    for anything else that is not JSON.
    """
    blocks = _FENCED.findall(content)
    text = (blocks[0] if len(blocks) == 1 else content).strip()
    field, kind = _only_field(schema)
    word = _WORDS.get(text.strip("*.!\"' ").lower())
    if kind == "boolean" and word is not None:
        return {field: word}
    value: object = orjson.loads(text)
    return {field: value} if kind == "array" and isinstance(value, list) else value


def _only_field(schema: Mapping[str, Any]) -> tuple[str, object]:
    """Return name and type of the only field of a schema's object; of another schema, nothing."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if len(properties) != 1:
        return "", None
    ((name, inner),) = properties.items()
    return name, inner.get("type")
