"""Chat messages as programs have them, in OpenAI's shape, as `message` events."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from recallflow.errors import UsageError

# What a message says beside its content: it has no place of its own in an event, and is kept with the metadata.
BESIDE = ("tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations", "reasoning_content")


def message_fields(message: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """The fields of the event that a message is. Raises UsageError for what is no message."""
    given: object = message.model_dump(exclude_none=True) if isinstance(message, BaseModel) else message
    if not isinstance(given, Mapping):
        kind = type(message).__name__
        raise UsageError(f"add: give a text, a message ({{'role': …, 'content': …}}) or a list of messages, not {kind}")
    if "role" not in given:
        raise UsageError("add: a message needs its role: user, assistant, system, developer, tool or function")
    fields = {name: value for name, value in given.items() if name not in BESIDE}
    beside = {name: given[name] for name in BESIDE if given.get(name) is not None}
    if fields.get("name") is None:
        fields.pop("name", None)
    if beside:  # such a message may have no content, which some APIs write as ""
        fields["content"] = fields.get("content") or None
        fields["metadata"] = {**(fields.get("metadata") or {}), **beside}
    return fields
