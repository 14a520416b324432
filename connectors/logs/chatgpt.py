"""ChatGPT's export: `conversations.json`, or `conversations-000.json` and so on, alone or in the zip.

    [{"title", "create_time", "current_node", "conversation_id",
      "mapping": {node: {"message": {"id", "author": {"role"}, "create_time", "content": {"content_type", "parts"},
                                     "recipient", "metadata"} | null, "parent": node | null}}}]

A conversation is a tree: an edited question and an answer given anew begin branches, and `current_node` is the end of
the one that is shown. Times are epoch seconds. The program documents none of it; the shape is as told by
github.com/mitkury/chatgpt-export-parser (docs/chatgpt-data-export-format.md), difegam.github.io/chatgpt-to-markdown and
whychose.com (seo/chatgpt-conversations-json-format).
"""

import re
from collections.abc import Iterator
from typing import Any

from recallflow.connectors.logs.building import (
    EMPTY,
    OTHER_BRANCH,
    Said,
    branch,
    broken,
    epoch_ms,
    leave_out,
    message_events,
    word,
)
from recallflow.connectors.logs.conversations import each_conversation, holds_conversations
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope

_BESIDE = {"chat.html", "user.json", "message_feedback.json", "shared_conversations.json"}  # Claude's has others
# What the program shows as a link to a source, now and until 2025.
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201|【\\d+(?::\\d+)?†[^【】\n]{1,200}】")
_INSTRUCTIONS = ("user_editable_context", "model_editable_context")
_REASONING = ("thoughts", "reasoning_recap")


def _recognises(head: Head) -> bool:
    return holds_conversations(head, _BESIDE, "mapping", dict)


def _read(source: LogSource, scope: Scope) -> Iterator[bytes]:
    return each_conversation(source, scope, conversation_events, "user_id")


CHATGPT = LogFormat(
    "chatgpt",
    "ChatGPT's export",
    _recognises,
    _read,
    fields=("title", "create_time", "update_time", "mapping", "current_node", "conversation_id"),
)


def conversation_events(conversation: Any, scope: Scope, owner: str, where: str) -> Iterator[bytes]:
    """The messages of the branch that is shown. Everything else is counted."""
    mapping = conversation.get("mapping") if isinstance(conversation, dict) else None
    if not isinstance(mapping, dict):
        yield broken(where, "is no conversation of ChatGPT's export, which has a mapping", conversation)
        return
    session = conversation.get("conversation_id") or conversation.get("id") or where
    shown = branch({key: _field(node, "parent") for key, node in mapping.items()}, _leaf(conversation, mapping))
    if others := sum(_field(mapping[key], "message") is not None for key in mapping.keys() - {*shown}):
        leave_out(scope, OTHER_BRANCH, others)
    about = {"title": title} if isinstance(title := conversation.get("title"), str) and title else {}
    time = epoch_ms(conversation.get("create_time"))
    for key in shown:
        message = _field(mapping[key], "message")
        if message is None and isinstance(mapping[key], dict):  # the root holds none
            continue
        if not isinstance(message, dict):
            yield broken(f"{where}, {key}", "is no message", mapping[key])
            continue
        time = epoch_ms(message.get("create_time")) or time  # one without a time was said after the one before it
        text = _text(message)
        if reason := _left_out(message, text):
            leave_out(scope, reason)
            continue
        said = Said(
            id=word(message.get("id")) or key,
            session=word(session),
            role=_field(message.get("author"), "role"),
            content=text,
            time=time,
            metadata={"source": "chatgpt", **about, **_model(message)},
        )
        about = {}  # with the first: were it with each, a conversation that is renamed would be refused as a whole
        yield from message_events(scope, owner, said)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _leaf(conversation: dict[str, Any], mapping: dict[str, Any]) -> object:
    """The end of the branch that is shown; where it is not said, of the one that was written last."""
    if isinstance(current := conversation.get("current_node"), str) and current in mapping:
        return current
    parents = {_field(node, "parent") for node in mapping.values() if isinstance(_field(node, "parent"), str)}
    ends = [key for key in mapping if key not in parents] or [*mapping]
    return max(ends, key=lambda key: _seconds(_field(mapping[key], "message")), default=None)


def _seconds(message: object) -> float:
    time = _field(message, "create_time")
    return float(time) if isinstance(time, int | float) else 0.0


def _left_out(message: dict[str, Any], text: str) -> str | None:
    role, content_type = _field(message.get("author"), "role"), _field(message.get("content"), "content_type")
    metadata = message.get("metadata")
    if content_type in _INSTRUCTIONS or _field(metadata, "is_user_system_message"):
        return "custom instructions"
    if content_type in _REASONING:
        return "reasoning"
    if _field(metadata, "is_visually_hidden_from_conversation"):
        return "hidden messages"
    if role == "system":
        return "system messages"
    if role == "tool":
        return "results of tools"
    if role == "assistant" and message.get("recipient") not in (None, "all"):
        return "calls of tools"
    return None if text else EMPTY


def _text(message: dict[str, Any]) -> str:
    """The parts of a message as one text; what is no text by its kind."""
    content = message.get("content")
    parts = _field(content, "parts")
    if not isinstance(parts, list):
        parts = [_field(content, "text") or _field(content, "result")]
    transcribed = any(_field(part, "content_type") == "audio_transcription" for part in parts)
    found = [_part(part, transcribed) for part in parts]
    attachments = _field(message.get("metadata"), "attachments")
    for attachment in attachments if isinstance(attachments, list) else ():
        if (name := _field(attachment, "name")) and isinstance(name, str):
            found.append(f"[file: {name}]")
    return "\n".join(text for text in found if text)


def _part(part: object, transcribed: bool) -> str:
    if isinstance(part, str):
        return _CITATION.sub("", part).strip()
    if isinstance(text := _field(part, "text"), str):
        return text.strip()
    kind = _field(part, "content_type")
    if not isinstance(kind, str):
        return ""
    if transcribed and ("audio" in kind or "video" in kind):
        return ""  # its words are there
    return f"[{kind.removesuffix('_asset_pointer').replace('_', ' ')}]"


def _model(message: dict[str, Any]) -> dict[str, object]:
    model = _field(message.get("metadata"), "model_slug")
    return {"model": model} if isinstance(model, str) else {}
