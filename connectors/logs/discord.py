"""Discord channels in the JSON of DiscordChatExporter, one file per channel.

    {"guild": {"id", "name"}, "channel": {"id", "type", "categoryId", "category", "name"},
     "messages": [{"id", "type": "Default" | "Reply" | …, "timestamp", "timestampEdited" | null, "content",
                   "author": {"id", "name", "nickname"?, "isBot"}, "attachments": [{"fileName"}],
                   "embeds": [{"title", "url", "description"}], "stickers": [{"name"}], "reference"?: {"messageId"},
                   "forwardedMessage"?: {"content"}}]}

Times are RFC 3339. A direct message is in the guild `Direct Messages`, whose id is 0. A thread has its channel as
`category`.
"""

from collections.abc import Iterator
from typing import Any

from recallflow.connectors.logs.building import (
    EMPTY,
    LoggedMessage,
    author,
    broken,
    identifier,
    leave_out,
    lenient,
    message_events,
    stamp,
    word,
)
from recallflow.connectors.logs.documents import elements, first_objects, members
from recallflow.connectors.logs.model import ImportScope, LogFormat, LogHead, LogSource

_SAID = ("Default", "Reply", "20", "23")  # the last two are answers of bots to commands, which have no name there
_DIRECT = "0"


def _recognises(head: LogHead) -> bool:
    return not head.members and any(map(_is_channel, first_objects(head.start)))


def _is_channel(one: dict[str, Any]) -> bool:
    return all(isinstance(one.get(name), dict) for name in ("guild", "channel"))


def _read(source: LogSource, scope: ImportScope) -> Iterator[bytes]:
    with source.open() as file:
        about = members(file, without=frozenset(("messages",)))
    guild, channel = (one if isinstance(one := about.get(name), dict) else {} for name in ("guild", "channel"))
    owner = scope.user_id if scope.user_given else _owner(guild, channel)
    with source.open() as file:
        for number, text in enumerate(elements(file, "messages"), start=1):
            yield from message_of(lenient(text), guild, channel, owner, scope, f"{source.name}, message {number}")


DISCORD = LogFormat(
    "discord",
    "DiscordChatExporter's JSON",
    _recognises,
    _read,
    fields=("guild", "channel", "dateRange", "exportedAt", "messages", "messageCount"),
)


def _owner(guild: dict[str, Any], channel: dict[str, Any]) -> str:
    """Return the owner of a channel: channel and guild. Direct messages use their id, because names may repeat."""
    name, channel_id = author(channel.get("name")) or "channel", word(channel.get("id"))
    if word(guild.get("id")) in (_DIRECT, ""):
        return identifier(f"dm {name} {channel_id}".strip())
    if "Thread" in word(channel.get("type")):
        name = author(channel.get("category")) or name
    return identifier(f"{author(guild.get('name')) or word(guild.get('id'))} #{name}")


def message_of(
    message: Any, guild: dict[str, Any], channel: dict[str, Any], owner: str, scope: ImportScope, where: str
) -> Iterator[bytes]:
    """Yield a message of a channel; events of the channel are counted by type."""
    if not isinstance(message, dict):
        yield broken(where, "is no message of Discord's", message)
        return
    kind = word(message.get("type"))
    if kind not in _SAID:
        leave_out(scope, f"service messages ({kind})")
        return
    text = _text(message)
    if not text:
        leave_out(scope, EMPTY)
        return
    written = by if isinstance(by := message.get("author"), dict) else {}
    edited, answered = stamp(message.get("timestampEdited")), message.get("reference")
    session = word(channel.get("id")) or owner
    message_id = word(message.get("id"))
    metadata = {"source": "discord", "channel": word(channel.get("name")), "guild": word(guild.get("name"))}
    if isinstance(answered, dict) and kind == "Reply":
        metadata["reply_to"] = f"{session}-{word(answered.get('messageId'))}"
    said = LoggedMessage(
        id=f"{session}-{message_id or where}",
        session=session,
        role="assistant" if written.get("isBot") is True else "user",
        content=text,
        time=stamp(message.get("timestamp")),
        name=author(written.get("nickname")) or author(written.get("name")) or author(word(written.get("id"))),
        metadata=metadata,
        edited=None if edited is None else (edited, edited),
    )
    if said.time is None:
        yield broken(where, "has no timestamp", message)
        return
    yield from message_events(scope, owner, said)


def _text(message: dict[str, Any]) -> str:
    """Return the text, the forwarded text, and file names. Bots often use embeds without text; with a text, embeds
    are link previews and left out."""
    found = [content.strip()] if isinstance(content := message.get("content"), str) else []
    forwarded = message.get("forwardedMessage")
    if isinstance(forwarded, dict) and isinstance(text := forwarded.get("content"), str) and text.strip():
        found.append(f"[forwarded]\n{text.strip()}")
    if not any(found):
        for embed in _objects(message, "embeds"):
            found += [text for field in ("title", "description") if isinstance(text := embed.get(field), str)]
    found += [f"[file: {name}]" for one in _objects(message, "attachments") if (name := author(one.get("fileName")))]
    found += [f"[sticker {name}]" for one in _objects(message, "stickers") if (name := author(one.get("name")))]
    return "\n".join(text for text in found if text)


def _objects(message: dict[str, Any], field: str) -> list[dict[str, Any]]:
    listed = message.get(field)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
