"""Exports of team chats: Slack and Discord.

Slack's export of a workspace is a zip, or the folder that it was unpacked to:

    channels.json, groups.json, mpims.json, dms.json   [{"id", "name"?, "members": [user]}]
    users.json (org_users.json)                        [{"id", "name", "profile": {"display_name", "real_name"}}]
    FOLDER/2025-01-31.json                             the messages of a day; the folder is a channel's name, a dm's id
    message: {"type": "message", "subtype"?, "user", "text", "ts", "thread_ts"?, "edited"?: {"ts"}, "username"?,
              "bot_id"?, "files"?: [{"name"}], "attachments"?, "blocks"?}

`ts` is unique in a channel: epoch seconds, with a counter in place of the microseconds. Sources of the format:
slack.com/help/articles/220556107 (the files), docs.slack.dev/reference/events/message (subtypes),
docs.slack.dev/messaging/formatting-message-text and gist.github.com/viccro/734581d3c9777f9733d1f665279e5b54.

A Discord channel is one file in the JSON of DiscordChatExporter:

    {"guild": {"id", "name"}, "channel": {"id", "type", "categoryId", "category", "name"},
     "messages": [{"id", "type": "Default" | "Reply" | …, "timestamp", "timestampEdited" | null, "content",
                   "author": {"id", "name", "nickname"?, "isBot"}, "attachments": [{"fileName"}],
                   "embeds": [{"title", "url", "description"}], "stickers": [{"name"}], "reference"?: {"messageId"},
                   "forwardedMessage"?: {"content"}}]}

Times are RFC 3339. A direct message is in the guild `Direct Messages`, whose id is 0. A thread has its channel as
`category`."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.documents import elements, first_objects, members
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead

_DAY_FILE = re.compile(r"(?:.*/)?(?P<folder>[^/]+)/\d{4}-\d{2}-\d{2}\.json")
_CHANNEL_FILES = ("channels.json", "groups.json", "mpims.json", "dms.json")
_USER_FILES = ("users.json", "org_users.json")
_SUBTYPES = (None, "bot_message", "me_message", "thread_broadcast", "reply_broadcast", "file_share", "file_comment")
_OMISSIONS = {"tombstone": "deleted messages", "message_deleted": "deleted messages"}
_MARKUP = re.compile(r"<(?P<target>[^<>|]*)(?:\|(?P<label>[^<>]*))?>")
_BLOCK_TEXTS_MAX = 200  # limit of texts of one message


class _Channel(NamedTuple):
    id: str
    name: str


def _recognises_slack(head: LogHead) -> bool:
    names = {log.file_name(name) for name in head.members}
    has_days = any(map(_DAY_FILE.fullmatch, head.members))
    return not names.isdisjoint(_CHANNEL_FILES) and (has_days or not names.isdisjoint(_USER_FILES))


def _read_slack(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    people = dict(_display_names(one for one in source.members if log.file_name(one.name) in _USER_FILES))
    channels = dict(_channels((one for one in source.members if log.file_name(one.name) in _CHANNEL_FILES), people))
    for member in source.members:
        found = _DAY_FILE.fullmatch(member.name.replace("\\", "/"))
        if found is None:
            if log.file_name(member.name) not in (*_CHANNEL_FILES, *_USER_FILES):
                scope.leave_out(log.OTHER_FILE)
            continue
        channel = channels.get(found["folder"], _Channel(found["folder"], found["folder"]))
        for number, text in enumerate(elements(member), start=1):
            yield from slack_message(log.parse(text), channel, people, scope, f"{member.name}, {number}")


SLACK = LogFormat("slack", "Slack's export of a workspace", _recognises_slack, _read_slack)


def _objects_by_id(files: Iterator[LogFile]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in files:
        for value in map(log.parse, elements(file)):
            if isinstance(value, dict) and isinstance(key := value.get("id"), str):
                yield key, value


def _display_names(files: Iterator[LogFile]) -> Iterator[tuple[str, str]]:
    """Yield user id and display name, deleted users included."""
    for key, user in _objects_by_id(files):
        if name := _display_name(user.get("profile")) or _display_name(user):
            yield key, name


def _display_name(user: object) -> str | None:
    return log.valid_name(*(log.field_of(user, field) for field in ("display_name", "real_name", "name")))


def _channels(files: Iterator[LogFile], people: Mapping[str, str]) -> Iterator[tuple[str, _Channel]]:
    """Yield folder and channel. A direct message is named after its users; its id is added if that name repeats."""
    direct: dict[str, str] = {}
    for key, one in _objects_by_id(files):
        if name := log.valid_name(one.get("name")):
            yield name, _Channel(key, name)
        else:
            users = sorted(people.get(user, user) for user in map(log.as_text, log.list_of(one, "members")))
            direct[key] = f"dm {', '.join(users)}" if users else key
    counts = Counter(direct.values())
    for key, name in direct.items():
        yield key, _Channel(key, f"{name} {key}" if counts[name] > 1 else name)


def slack_message(
    message: Any, channel: _Channel, people: Mapping[str, str], scope: ImportScope, where: str
) -> Iterable[bytes]:
    """Return the events of a message of a channel. Events of the channel itself are counted by subtype."""
    if not isinstance(message, dict):
        return [log.broken(where, "is no message of Slack's export", message)]
    kind = message.get("subtype")
    if kind not in _SUBTYPES:
        return scope.leave_out(_OMISSIONS.get(log.as_text(kind), log.as_text(kind)))
    if message.get("hidden"):
        return scope.leave_out("hidden messages")
    text = _slack_text(message, people, scope)
    if not text:
        return scope.leave_out(log.EMPTY)
    ts, thread_ts, edited_ts = message.get("ts"), message.get("thread_ts"), log.field_of(message.get("edited"), "ts")
    if (time := log.time_from_seconds(ts)) is None:
        return [log.broken(where, "has no time (ts)", message)]
    # The first message of a thread stays in the channel: before the first answer it was not in a thread.
    thread = f"{channel.id}-{thread_ts}" if isinstance(thread_ts, str) and thread_ts not in ("", ts) else None
    return scope.message_events(
        scope.user_id if scope.user_given else log.valid_id(channel.name),
        message_id=f"{channel.id}-{log.as_text(ts)}",
        session=thread or channel.id,
        role="assistant" if kind == "bot_message" or message.get("bot_id") else "user",
        content=text,
        time=time,
        name=_slack_author(message, people),
        metadata={"source": "slack", "channel": channel.name, **({"thread": thread} if thread else {})},
        edited=(log.as_text(edited_ts), log.time_from_seconds(edited_ts)) if edited_ts else None,
    )


def _slack_author(message: dict[str, Any], people: Mapping[str, str]) -> str | None:
    user = log.as_text(message.get("user"))
    return (
        people.get(user)
        or _display_name(message.get("user_profile"))
        or log.valid_name(message.get("username"))
        or _display_name(message.get("bot_profile"))
        or log.valid_name(user, message.get("bot_id"))
    )


def _slack_text(message: dict[str, Any], people: Mapping[str, str], scope: ImportScope) -> str:
    """Return the text and file names. If it has a text, attachments and blocks are previews, and omitted."""
    texts = [_without_markup(log.text_of(message, "text"), people)]
    attachments = log.list_of(message, "attachments")
    if texts[0]:
        scope.leave_out("attachments beside a message's own text", len(attachments))
    else:
        marked_up = [*_attachment_texts(attachments), *_block_texts(message.get("blocks"))][:_BLOCK_TEXTS_MAX]
        texts = [_without_markup(text, people) for text in marked_up]
    for file in log.list_of(message, "files"):
        name = log.field_of(file, "name") or log.field_of(file, "title")
        texts.append(f"[file: {name}]" if isinstance(name, str) else "[file]")
    return "\n".join(filter(None, texts))


def _attachment_texts(attachments: list[Any]) -> Iterator[str]:
    for one in attachments:
        if isinstance(one, dict):
            texts = [text for field in ("pretext", "title", "text") if isinstance(text := one.get(field), str) and text]
            fallback = one.get("fallback")
            yield from texts or ([fallback] if isinstance(fallback, str) else [])


def _block_texts(blocks: object) -> Iterator[str]:
    """Yield the texts of nested blocks in order."""
    stack = [blocks]
    while stack:
        block = stack.pop()
        if isinstance(block, list):
            stack += reversed(block)
        elif isinstance(block, dict):
            text = block.get("text")
            if isinstance(text, str):
                yield text
            stack += [block.get("elements"), block.get("fields"), text]


def _without_markup(text: str, people: Mapping[str, str]) -> str:
    """Return readable text: names for ids, and link texts with their addresses."""

    def replace(found: "re.Match[str]") -> str:
        target, label = found["target"], found["label"]
        if target.startswith("@"):
            return f"@{people.get(target[1:]) or label or target[1:]}"
        if target.startswith("#"):
            return f"#{label or target[1:]}"
        if target.startswith("!"):
            return label or f"@{target[1:].partition('^')[0]}"
        address = target.removeprefix("mailto:")
        return f"{label} ({address})" if label and label not in (address, target) else address

    return html.unescape(_MARKUP.sub(replace, text)).strip()


# The last two are answers of bots to commands, for which the exporter has no names.
_MESSAGE_TYPES = ("Default", "Reply", "20", "23")


def _read_discord(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    about = members(source, without="messages")
    guild, channel = (one if isinstance(one := about.get(name), dict) else {} for name in ("guild", "channel"))
    owner = scope.user_id if scope.user_given else _discord_owner(guild, channel)
    for number, text in enumerate(elements(source, "messages"), start=1):
        yield from discord_message(log.parse(text), guild, channel, owner, scope, f"{source.name}, message {number}")


DISCORD = LogFormat(
    "discord",
    "DiscordChatExporter's JSON",
    lambda head: any(
        isinstance(one.get("guild"), dict) and isinstance(one.get("channel"), dict) for one in first_objects(head.start)
    ),
    _read_discord,
    fields=("guild", "channel", "dateRange", "exportedAt", "messages", "messageCount"),
)


def _discord_owner(guild: dict[str, Any], channel: dict[str, Any]) -> str:
    """Return the owner of a channel: guild and channel. A direct message also has its id, because names may repeat."""
    name, channel_id = log.valid_name(channel.get("name")) or "channel", log.as_text(channel.get("id"))
    if log.as_text(guild.get("id")) in ("0", ""):
        return log.valid_id(f"dm {name} {channel_id}".strip())
    if "Thread" in log.as_text(channel.get("type")):
        name = log.valid_name(channel.get("category")) or name
    return log.valid_id(f"{log.valid_name(guild.get('name')) or log.as_text(guild.get('id'))} #{name}")


def discord_message(
    message: Any, guild: dict[str, Any], channel: dict[str, Any], owner: str, scope: ImportScope, where: str
) -> Iterable[bytes]:
    """Return the events of a message of a channel. Events of the channel itself are counted by type."""
    if not isinstance(message, dict):
        return [log.broken(where, "is no message of Discord's", message)]
    kind = log.as_text(message.get("type"))
    if kind not in _MESSAGE_TYPES:
        return scope.leave_out(f"service messages ({kind})")
    text = _discord_text(message)
    if not text:
        return scope.leave_out(log.EMPTY)
    if (time := log.time_text(message.get("timestamp"))) is None:
        return [log.broken(where, "has no timestamp", message)]
    sender, edited = message.get("author"), log.time_text(message.get("timestampEdited"))
    session = log.as_text(channel.get("id")) or owner
    names = {"channel": log.as_text(channel.get("name")), "guild": log.as_text(guild.get("name"))}
    target = message.get("reference") if kind == "Reply" else None
    reply = {"reply_to": f"{session}-{log.as_text(target.get('messageId'))}"} if isinstance(target, dict) else {}
    senders = log.field_of(sender, "nickname"), log.field_of(sender, "name"), log.as_text(log.field_of(sender, "id"))
    return scope.message_events(
        owner,
        message_id=f"{session}-{log.as_text(message.get('id')) or where}",
        session=session,
        role="assistant" if log.field_of(sender, "isBot") is True else "user",
        content=text,
        time=time,
        name=log.valid_name(*senders),
        metadata={"source": "discord", **names, **reply},
        edited=None if edited is None else (edited, edited),
    )


def _discord_text(message: dict[str, Any]) -> str:
    """Return text, forwarded text and file names. If it has a text, embeds are previews, and omitted."""
    texts = [log.text_of(message, "content")]
    if forwarded := log.text_of(message.get("forwardedMessage"), "content"):
        texts.append(f"[forwarded]\n{forwarded}")
    if not any(texts):
        for embed in log.list_of(message, "embeds"):
            texts += [text for field in ("title", "description") if isinstance(text := log.field_of(embed, field), str)]
    for kind, field, label in (("attachments", "fileName", "file:"), ("stickers", "name", "sticker")):
        names = (log.valid_name(log.field_of(one, field)) for one in log.list_of(message, kind))
        texts += [f"[{label} {name}]" for name in names if name]
    return "\n".join(filter(None, texts))
