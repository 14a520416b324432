"""Exports of chats with an assistant (ChatGPT, Claude): `conversations.json`, alone or in a zip with other files."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.documents import EACH, elements, elements_with_fields, first_objects
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead

_FILE = re.compile(r"conversations(-\d+)?\.json")


def holds_conversations(head: LogHead, other_files: Set[str], field: str, kind: type[object]) -> bool:
    """Return whether an archive has one of the `other_files`, or any conversation has a `field` of type `kind`."""
    if log.has_file(head, _FILE) and not other_files.isdisjoint(map(log.file_name, head.members)):
        return True
    return any(isinstance(one.get(field), kind) for one in first_objects(head.start))


def each_conversation(
    source: LogFile,
    scope: ImportScope,
    events_of: Callable[[Any, ImportScope, str, str], Iterator[bytes]],
    account_field: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[bytes]:
    """Yield the events of each conversation.

    The export of one account belongs to the default owner. In the export of an organisation, each account is an owner:
    its name in `names`, or else its id. There, a conversation without an account is refused."""
    files = log.exported_files(source, _FILE, scope)
    is_shared = not scope.user_given and _has_several(files, account_field)
    for file in files:
        for number, text in enumerate(elements(file), start=1):
            conversation, where = log.parse(text), f"{file.name}, conversation {number}"
            account = _account(conversation, account_field) if is_shared else ""
            if is_shared and not account:
                yield log.broken(where, f"has no {account_field}, in an export of several accounts", conversation)
            else:
                owner = log.valid_id(names.get(account, account)) if is_shared else scope.user_id
                yield from events_of(conversation, scope, owner, where)


def _has_several(files: Sequence[LogFile], field: str) -> bool:
    """Return whether the files hold conversations of several accounts. Read only as much as needed."""
    values = (log.parse(text) for file in files for _, text in elements_with_fields(file, EACH, field))
    accounts = filter(None, (_account(value, field) for value in values))
    first = next(accounts, "")
    return any(account != first for account in accounts)


def _account(value: object, field: str) -> str:
    """Return the id of an account, or of the account of a conversation."""
    if isinstance(value, dict):
        value = value.get(field, value)
    found = value.get("uuid") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


def _title(conversation: dict[str, Any], name: str) -> dict[str, str]:
    """Return the title as metadata of the first message. If every message had it, the next import of a renamed
    conversation would be refused: all its messages would have other metadata under the same ids."""
    return {"title": title} if isinstance(title := conversation.get(name), str) and title else {}


_CHATGPT_FILES = {"chat.html", "user.json", "message_feedback.json", "shared_conversations.json"}  # not in Claude's
# Markers of sources, in the current format and in the format before 2025.
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201|【\\d+(?::\\d+)?†[^【】\n]{1,200}】")
_INSTRUCTIONS = ("user_editable_context", "model_editable_context")
_REASONING = ("thoughts", "reasoning_recap")


CHATGPT = LogFormat(
    "chatgpt",
    "ChatGPT's export",
    lambda head: holds_conversations(head, _CHATGPT_FILES, "mapping", dict),
    lambda source, scope: each_conversation(source, scope, chatgpt_events, "user_id"),
    fields=("title", "create_time", "update_time", "mapping", "current_node", "conversation_id"),
)


def chatgpt_events(conversation: Any, scope: ImportScope, owner: str, where: str) -> Iterator[bytes]:
    """Yield the messages of the displayed branch, and count all others."""
    mapping = log.field_of(conversation, "mapping")
    if not isinstance(mapping, dict):
        yield log.broken(where, "is no conversation of ChatGPT's export: it has no object `mapping`", conversation)
        return
    session = conversation.get("conversation_id") or conversation.get("id") or where
    parents = {key: log.field_of(node, "parent") for key, node in mapping.items()}
    displayed = log.branch(parents, _leaf(conversation, mapping, parents))
    others = mapping.keys() - {*displayed}
    scope.leave_out(log.OTHER_BRANCH, sum(log.field_of(mapping[key], "message") is not None for key in others))
    title = _title(conversation, "title")
    time = log.time_from_seconds(conversation.get("create_time"))
    for key in displayed:
        message = log.field_of(mapping[key], "message")
        if message is None and isinstance(mapping[key], dict):  # the root has no message
            continue
        if not isinstance(message, dict):
            yield log.broken(f"{where}, {key}", "is no message", mapping[key])
            continue
        time = log.time_from_seconds(message.get("create_time")) or time  # or else that of the previous message
        text = _chatgpt_text(message)
        if reason := _omission(message, text):
            scope.leave_out(reason)
            continue
        model = log.field_of(message.get("metadata"), "model_slug")
        yield from scope.message_events(
            owner,
            message_id=log.as_text(message.get("id")) or key,
            session=log.as_text(session),
            role=log.field_of(message.get("author"), "role"),
            content=text,
            time=time,
            metadata={"source": "chatgpt", **title, **({"model": model} if isinstance(model, str) else {})},
        )
        title = {}


def _leaf(conversation: dict[str, Any], mapping: dict[str, Any], parents: dict[str, object]) -> object:
    """Return the id of the last message of the displayed branch, or else of the newest branch."""
    if isinstance(current := conversation.get("current_node"), str) and current in mapping:
        return current
    inner = {parent for parent in parents.values() if isinstance(parent, str)}
    ends = [key for key in mapping if key not in inner] or [*mapping]
    times = {key: log.field_of(log.field_of(mapping[key], "message"), "create_time") for key in ends}
    return max(ends, key=lambda key: time if isinstance(time := times[key], int | float) else 0.0, default=None)


def _omission(message: dict[str, Any], text: str) -> str | None:
    """Return the reason for omitting a message; None if it is imported."""
    role, metadata = log.field_of(message.get("author"), "role"), message.get("metadata")
    content_type = log.field_of(message.get("content"), "content_type")
    if content_type in _INSTRUCTIONS or log.field_of(metadata, "is_user_system_message"):
        return "custom instructions"
    if content_type in _REASONING:
        return "reasoning"
    if log.field_of(metadata, "is_visually_hidden_from_conversation"):
        return "hidden messages"
    if role == "system":
        return "system messages"
    if role == "tool":
        return "results of tools"
    if role == "assistant" and message.get("recipient") not in (None, "all"):
        return "calls of tools"
    return None if text else log.EMPTY


def _chatgpt_text(message: dict[str, Any]) -> str:
    """Return the parts of a message as one text, with the type of each part that has no text."""
    content = message.get("content")
    parts = log.field_of(content, "parts")
    if not isinstance(parts, list):
        parts = [log.field_of(content, "text") or log.field_of(content, "result")]
    has_transcription = any(log.field_of(part, "content_type") == "audio_transcription" for part in parts)
    texts = [_part_text(part, has_transcription) for part in parts]
    for attachment in log.list_of(message.get("metadata"), "attachments"):
        if (name := log.field_of(attachment, "name")) and isinstance(name, str):
            texts.append(f"[file: {name}]")
    return "\n".join(filter(None, texts))


def _part_text(part: object, has_transcription: bool) -> str:
    if isinstance(part, str):
        return _CITATION.sub("", part).strip()
    if isinstance(text := log.field_of(part, "text"), str):
        return text.strip()
    kind = log.field_of(part, "content_type")
    if not isinstance(kind, str):
        return ""
    if has_transcription and ("audio" in kind or "video" in kind):
        return ""  # another part is its transcription
    return f"[{kind.removesuffix('_asset_pointer').replace('_', ' ')}]"


_CLAUDE_FILES = {"users.json", "projects.json", "memories.json"}
_ROLES = {"human": "user"}
_OMITTED_BLOCKS = {"thinking": "reasoning", "tool_use": "calls of tools", "tool_result": "results of tools"}


def _account_names(source: LogFile) -> Iterator[tuple[str, str]]:
    """Yield the id of each account of an organisation with its address, or else with its name, which may repeat."""
    for file in source.members:
        if log.file_name(file.name) == "users.json":
            for one in map(log.parse, elements(file)):
                if name := log.valid_name(log.field_of(one, "email_address"), log.field_of(one, "full_name")):
                    yield log.as_text(one.get("uuid")), name


CLAUDE = LogFormat(
    "claude",
    "Claude's export",
    lambda head: holds_conversations(head, _CLAUDE_FILES, "chat_messages", list),
    lambda source, scope: each_conversation(source, scope, claude_events, "account", dict(_account_names(source))),
    ("uuid", "name", "created_at", "updated_at", "account", "chat_messages", "sender", "current_leaf_message_uuid"),
)


def claude_events(conversation: Any, scope: ImportScope, owner: str, where: str) -> Iterator[bytes]:
    """Yield the messages of a conversation; with branches, the messages of the displayed branch."""
    messages = log.field_of(conversation, "chat_messages")
    if not isinstance(messages, list):
        yield log.broken(where, "is no conversation of Claude's export: it has no list `chat_messages`", conversation)
        return
    session = log.as_text(conversation.get("uuid")) or where
    title = _title(conversation, "name")
    displayed = _displayed(messages, conversation.get("current_leaf_message_uuid"))
    scope.leave_out(log.OTHER_BRANCH, len(messages) - len(displayed))
    for number, message in enumerate(displayed, start=1):
        if not isinstance(message, dict):
            yield log.broken(f"{where}, message {number}", "is no message", message)
            continue
        text, reasons = _claude_text(message)
        for reason in reasons:
            scope.leave_out(reason)
        if not text:
            if not reasons:
                scope.leave_out(log.EMPTY)
            continue
        sender = message.get("sender")
        yield from scope.message_events(
            owner,
            message_id=log.as_text(message.get("uuid")) or f"{session}-{number}",
            session=session,
            role=_ROLES.get(sender, sender) if isinstance(sender, str) else None,
            content=text,
            time=log.time_text(message.get("created_at")) or log.time_text(conversation.get("created_at")),
            metadata={"source": "claude", **title},
        )
        title = {}


def _displayed(messages: list[Any], leaf: object) -> list[Any]:
    """Return the messages of the branch that ends at the leaf; all messages if the leaf or a parent is missing."""
    by_id = {one["uuid"]: one for one in messages if isinstance(one, dict) and isinstance(one.get("uuid"), str)}
    parents = {key: one.get("parent_message_uuid") for key, one in by_id.items()}
    if not isinstance(leaf, str) or leaf not in parents or len(by_id) < len(messages) or not all(parents.values()):
        return messages
    return [by_id[key] for key in log.branch(parents, leaf)]


def _claude_text(message: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the text with file names, and the reasons for omitted blocks."""
    texts, reasons = [], []
    for block in log.list_of(message, "content"):
        kind = log.field_of(block, "type")
        if kind in ("text", None) and isinstance(text := block.get("text") if isinstance(block, dict) else block, str):
            texts.append(text.strip())
        elif kind is not None:
            reasons.append(_OMITTED_BLOCKS.get(log.as_text(kind), f"blocks of type {log.as_text(kind)}"))
    if not message.get("content"):  # older exports have no blocks
        texts.append(log.text_of(message, "text"))
    for file in (*log.list_of(message, "attachments"), *log.list_of(message, "files")):
        if isinstance(name := log.field_of(file, "file_name"), str) and name:
            texts.append(f"[file: {name}]")
        if log.field_of(file, "extracted_content"):
            reasons.append("texts of attached files")
    return "\n".join(filter(None, texts)), reasons
