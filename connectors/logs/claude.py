"""Claude's export: `conversations.json`, alone or in the zip with `users.json` and `projects.json`.

    [{"uuid", "name", "created_at", "account": {"uuid"}, "current_leaf_message_uuid"?,
      "chat_messages": [{"uuid", "sender": "human" | "assistant", "text", "created_at", "parent_message_uuid"?,
                         "content": [{"type": "text" | "thinking" | "tool_use" | "tool_result", "text"?}],
                         "attachments": [{"file_name", "extracted_content"}], "files": [{"file_name"}]}]}]

Times are RFC 3339. The program documents none of it; the shape is as told by whychose.com
(seo/claude-conversation-export-format) and github.com/Sinity/polylogue (docs/providers/claude-ai.md).
"""

from collections.abc import Iterator
from typing import Any

from recallflow.connectors.logs.building import (
    EMPTY,
    OTHER_BRANCH,
    Said,
    author,
    branch,
    broken,
    file_name,
    leave_out,
    lenient,
    message_events,
    stamp,
    word,
)
from recallflow.connectors.logs.conversations import each_conversation, holds_conversations
from recallflow.connectors.logs.documents import elements
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope

_BESIDE = {"users.json", "projects.json", "memories.json"}
_ROLES = {"human": "user"}
_LEFT_OUT = {"thinking": "reasoning", "tool_use": "calls of tools", "tool_result": "results of tools"}


def _recognises(head: Head) -> bool:
    return holds_conversations(head, _BESIDE, "chat_messages", list)


def _read(source: LogSource, scope: Scope) -> Iterator[bytes]:
    return each_conversation(source, scope, conversation_events, "account", dict(_people(source)))


def _people(source: LogSource) -> Iterator[tuple[str, str]]:
    """The accounts of an organisation's export by what tells them apart: people share names, and no addresses."""
    for file in source.members():
        if file_name(file.name) == "users.json":
            with file.open() as opened:
                for text in elements(opened):
                    if isinstance(one := lenient(text), dict) and (
                        name := author(one.get("email_address")) or author(one.get("full_name"))
                    ):
                        yield word(one.get("uuid")), name


CLAUDE = LogFormat(
    "claude",
    "Claude's export",
    _recognises,
    _read,
    fields=(
        "uuid",
        "name",
        "created_at",
        "updated_at",
        "account",
        "chat_messages",
        "sender",
        "current_leaf_message_uuid",
    ),
)


def conversation_events(conversation: Any, scope: Scope, owner: str, where: str) -> Iterator[bytes]:
    """The messages of a conversation; of one with branches, those of the branch that is shown."""
    messages = conversation.get("chat_messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        yield broken(where, "is no conversation of Claude's export, which has chat_messages", conversation)
        return
    session = word(conversation.get("uuid")) or where
    about = {"title": title} if isinstance(title := conversation.get("name"), str) and title else {}
    shown = _shown(messages, conversation.get("current_leaf_message_uuid"))
    leave_out(scope, OTHER_BRANCH, len(messages) - len(shown))
    for number, message in enumerate(shown, start=1):
        if not isinstance(message, dict):
            yield broken(f"{where}, message {number}", "is no message", message)
            continue
        text, reasons = _text(message)
        for reason in reasons:
            leave_out(scope, reason)
        if not text:
            if not reasons:
                leave_out(scope, EMPTY)
            continue
        sender = message.get("sender")
        said = Said(
            id=word(message.get("uuid")) or f"{session}-{number}",
            session=session,
            role=_ROLES.get(sender, sender) if isinstance(sender, str) else None,
            content=text,
            time=stamp(message.get("created_at")) or stamp(conversation.get("created_at")),
            metadata={"source": "claude", **about},
        )
        about = {}  # with the first: were it with each, a conversation that is renamed would be refused as a whole
        yield from message_events(scope, owner, said)


def _shown(messages: list[Any], leaf: object) -> list[Any]:
    """The messages up to the leaf, where it is known and all messages say what they follow; else all."""
    by_id = {one["uuid"]: one for one in messages if isinstance(one, dict) and isinstance(one.get("uuid"), str)}
    parents = {key: one.get("parent_message_uuid") for key, one in by_id.items()}
    if not isinstance(leaf, str) or leaf not in parents or len(by_id) < len(messages) or not all(parents.values()):
        return messages
    return [by_id[key] for key in branch(parents, leaf)]


def _text(message: dict[str, Any]) -> tuple[str, list[str]]:
    """What was said, with the names of files, and why which of its blocks are left out."""
    blocks = message.get("content")
    found, reasons = [], []
    for block in blocks if isinstance(blocks, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("text", None) and isinstance(text := block.get("text") if isinstance(block, dict) else block, str):
            found.append(text.strip())
        elif kind is not None:
            reasons.append(_LEFT_OUT.get(word(kind), f"blocks of type {word(kind)}"))
    if not blocks and isinstance(text := message.get("text"), str):  # before there were blocks
        found.append(text.strip())
    for file in _files(message):
        if isinstance(file, dict) and isinstance(name := file.get("file_name"), str) and name:
            found.append(f"[file: {name}]")
        if isinstance(file, dict) and file.get("extracted_content"):
            reasons.append("texts of attached files")
    return "\n".join(text for text in found if text), reasons


def _files(message: dict[str, Any]) -> list[Any]:
    return [file for name in ("attachments", "files") if isinstance(given := message.get(name), list) for file in given]
