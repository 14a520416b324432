"""Exports of team chats: Slack and Discord.

Slack's export of a workspace is a zip, or the folder that it was unpacked to:

    channels.json, groups.json, mpims.json, dms.json   [{"id", "name"?, "members": [user]}]
    users.json (org_users.json)                        [{"id", "name", "profile": {"display_name", "real_name"}}]
    FOLDER/2025-01-31.json                             the messages of a day; the folder is a channel's name, a dm's id
    message: {"type": "message", "subtype"?, "user", "text", "ts", "thread_ts"?, "edited"?: {"ts"}, "username"?,
              "bot_id"?, "files"?: [{"name"}], "attachments"?, "blocks"?}

`ts` is epoch seconds with a number in place of microseconds, unique in a channel. Sources of the format:
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.documents import elements, first_objects, members
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead

_DAY = re.compile(r"(?:.*/)?(?P<folder>[^/]+)/\d{4}-\d{2}-\d{2}\.json")
_LISTS = ("channels.json", "groups.json", "mpims.json", "dms.json")
_USERS = ("users.json", "org_users.json")
_SUBTYPES = (None, "bot_message", "me_message", "thread_broadcast", "reply_broadcast", "file_share", "file_comment")
_REASONS = {"tombstone": "deleted messages", "message_deleted": "deleted messages"}
_MARKED = re.compile(r"<(?P<what>[^<>|]*)(?:\|(?P<label>[^<>]*))?>")
_BLOCK_TEXTS = 200  # limit of texts of one message


@dataclass(frozen=True, slots=True)
class _Channel:
    id: str
    name: str


def _recognises_slack(head: LogHead) -> bool:
    names = {log.file_name(name) for name in head.members}
    return bool(names & {*_LISTS}) and (bool(names & {*_USERS}) or any(map(_DAY.fullmatch, head.members)))


def _read_slack(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    members = source.members
    people = dict(_people(one for one in members if log.file_name(one.name) in _USERS))
    channels = dict(_channels((one for one in members if log.file_name(one.name) in _LISTS), people))
    for member in members:
        found = _DAY.fullmatch(member.name.replace("\\", "/"))
        if found is None:
            if log.file_name(member.name) not in (*_LISTS, *_USERS):
                scope.leave_out(log.OTHER_FILE)
            continue
        channel = channels.get(found["folder"], _Channel(found["folder"], found["folder"]))
        for number, text in enumerate(elements(member), start=1):
            yield from slack_message(log.parse_leniently(text), channel, people, scope, f"{member.name}, {number}")


SLACK = LogFormat("slack", "Slack's export of a workspace", _recognises_slack, _read_slack)


def _listed_by_id(files: Iterator[LogFile]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in files:
        for value in map(log.parse_leniently, elements(file)):
            if isinstance(value, dict) and isinstance(key := value.get("id"), str):
                yield key, value


def _people(files: Iterator[LogFile]) -> Iterator[tuple[str, str]]:
    """Yield user id and display name, deleted users included."""
    for key, user in _listed_by_id(files):
        if name := _person(user.get("profile")) or _person(user):
            yield key, name


def _person(given: object) -> str | None:
    fields = ("display_name", "real_name", "name")
    return next((name for field in fields if (name := log.author_name(log.field_of(given, field)))), None)


def _channels(files: Iterator[LogFile], people: Mapping[str, str]) -> Iterator[tuple[str, _Channel]]:
    """Yield channels by folder. A direct message is named after its users, and its id where names repeat."""
    direct: dict[str, str] = {}
    for key, one in _listed_by_id(files):
        if name := log.author_name(one.get("name")):
            yield name, _Channel(key, name)
        else:
            named = sorted(
                people.get(log.as_text(member), log.as_text(member)) for member in log.list_of(one, "members")
            )
            direct[key] = f"dm {', '.join(named)}" if named else key
    alike = Counter(direct.values())
    for key, name in direct.items():
        yield key, _Channel(key, f"{name} {key}" if alike[name] > 1 else name)


def slack_message(
    message: Any, channel: _Channel, people: Mapping[str, str], scope: ImportScope, where: str
) -> Iterator[bytes]:
    """Yield a message of a channel; events of the channel are counted by subtype."""
    if not isinstance(message, dict):
        yield log.broken(where, "is no message of Slack's export", message)
        return
    kind = message.get("subtype")
    if kind not in _SUBTYPES:
        scope.leave_out(_REASONS.get(log.as_text(kind), log.as_text(kind)))
        return
    if message.get("hidden"):
        scope.leave_out("hidden messages")
        return
    text = _slack_text(message, people, scope)
    if not text:
        scope.leave_out(log.EMPTY)
        return
    ts, thread, edited = message.get("ts"), message.get("thread_ts"), message.get("edited")
    if (time := log.time_from_seconds(ts)) is None:
        yield log.broken(where, "has no time (ts)", message)
        return
    answered = thread if isinstance(thread, str) and thread != ts else None
    yield from scope.message_events(
        scope.user_id if scope.user_given else log.valid_id(channel.name),
        message_id=f"{channel.id}-{log.as_text(ts)}",
        # The first message of a thread stays in the channel: before the first answer it was not in a thread.
        session=f"{channel.id}-{answered}" if answered else channel.id,
        role="assistant" if kind == "bot_message" or message.get("bot_id") else "user",
        content=text,
        time=time,
        name=_author(message, people),
        metadata={"source": "slack", "channel": channel.name}
        | ({"thread": f"{channel.id}-{answered}"} if answered else {}),
        edited=(log.as_text(edited["ts"]), log.time_from_seconds(edited["ts"]))
        if isinstance(edited, dict) and edited.get("ts")
        else None,
    )


def _author(message: dict[str, Any], people: Mapping[str, str]) -> str | None:
    user = log.as_text(message.get("user"))
    return (
        people.get(user)
        or _person(message.get("user_profile"))
        or log.author_name(message.get("username"))
        or _person(message.get("bot_profile"))
        or log.author_name(user)
        or log.author_name(message.get("bot_id"))
    )


def _slack_text(message: dict[str, Any], people: Mapping[str, str], scope: ImportScope) -> str:
    """Return the text and file names. Attachments and blocks count without a text only: next to one, they are
    previews."""
    found = [_plain(log.text_of(message, "text"), people)]
    attachments = log.list_of(message, "attachments")
    if not any(found):
        texts = [*_attached(attachments), *_in_blocks(message.get("blocks"))]
        found = [_plain(text, people) for text in texts[:_BLOCK_TEXTS]]
    else:
        scope.leave_out("attachments beside a message's own text", len(attachments))
    for file in log.list_of(message, "files"):
        name = log.field_of(file, "name") or log.field_of(file, "title")
        found.append(f"[file: {name}]" if isinstance(name, str) else "[file]")
    return "\n".join(text for text in found if text)


def _attached(attachments: list[Any]) -> Iterator[str]:
    for one in attachments:
        if isinstance(one, dict):
            texts = [text for field in ("pretext", "title", "text") if isinstance(text := one.get(field), str) and text]
            fallback = one.get("fallback")
            yield from texts or ([fallback] if isinstance(fallback, str) else [])


def _in_blocks(blocks: object) -> Iterator[str]:
    """Yield the texts of nested blocks in order."""
    ahead = [blocks]
    while ahead:
        one = ahead.pop()
        if isinstance(one, list):
            ahead += reversed(one)
        elif isinstance(one, dict):
            text = one.get("text")
            if isinstance(text, str):
                yield text
            nested = (one.get("elements"), one.get("fields"), text)
            ahead += [value for value in nested if isinstance(value, list | dict)]


def _plain(text: str, people: Mapping[str, str]) -> str:
    """Return readable text: names for ids, and link texts with their addresses."""

    def shown(found: "re.Match[str]") -> str:
        what, label = found["what"], found["label"]
        if what.startswith("@"):
            return f"@{people.get(what[1:]) or label or what[1:]}"
        if what.startswith("#"):
            return f"#{label or what[1:]}"
        if what.startswith("!"):
            return label if label else f"@{what[1:].partition('^')[0]}"
        address = what.removeprefix("mailto:")
        return f"{label} ({address})" if label and label not in (address, what) else address

    return html.unescape(_MARKED.sub(shown, text)).strip()


# The exporter has no names for the last two: answers of bots to commands.
_TYPES = ("Default", "Reply", "20", "23")
_DIRECT = "0"


def _read_discord(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    about = members(source, without="messages")
    guild, channel = (one if isinstance(one := about.get(name), dict) else {} for name in ("guild", "channel"))
    owner = scope.user_id if scope.user_given else _owner(guild, channel)
    for number, text in enumerate(elements(source, "messages"), start=1):
        yield from discord_message(
            log.parse_leniently(text), guild, channel, owner, scope, f"{source.name}, message {number}"
        )


DISCORD = LogFormat(
    "discord",
    "DiscordChatExporter's JSON",
    lambda head: (
        not head.members
        and any(
            isinstance(one.get("guild"), dict) and isinstance(one.get("channel"), dict)
            for one in first_objects(head.start)
        )
    ),
    _read_discord,
    fields=("guild", "channel", "dateRange", "exportedAt", "messages", "messageCount"),
)


def _owner(guild: dict[str, Any], channel: dict[str, Any]) -> str:
    """Return the owner of a channel: channel and guild. Direct messages use their id, because names may repeat."""
    name, channel_id = log.author_name(channel.get("name")) or "channel", log.as_text(channel.get("id"))
    if log.as_text(guild.get("id")) in (_DIRECT, ""):
        return log.valid_id(f"dm {name} {channel_id}".strip())
    if "Thread" in log.as_text(channel.get("type")):
        name = log.author_name(channel.get("category")) or name
    return log.valid_id(f"{log.author_name(guild.get('name')) or log.as_text(guild.get('id'))} #{name}")


def discord_message(
    message: Any, guild: dict[str, Any], channel: dict[str, Any], owner: str, scope: ImportScope, where: str
) -> Iterator[bytes]:
    """Yield a message of a channel; events of the channel are counted by type."""
    if not isinstance(message, dict):
        yield log.broken(where, "is no message of Discord's", message)
        return
    kind = log.as_text(message.get("type"))
    if kind not in _TYPES:
        scope.leave_out(f"service messages ({kind})")
        return
    text = _discord_text(message)
    if not text:
        scope.leave_out(log.EMPTY)
        return
    written = by if isinstance(by := message.get("author"), dict) else {}
    edited, answered = log.time_text(message.get("timestampEdited")), message.get("reference")
    session = log.as_text(channel.get("id")) or owner
    message_id = log.as_text(message.get("id"))
    metadata = {
        "source": "discord",
        "channel": log.as_text(channel.get("name")),
        "guild": log.as_text(guild.get("name")),
    }
    if isinstance(answered, dict) and kind == "Reply":
        metadata["reply_to"] = f"{session}-{log.as_text(answered.get('messageId'))}"
    if (time := log.time_text(message.get("timestamp"))) is None:
        yield log.broken(where, "has no timestamp", message)
        return
    yield from scope.message_events(
        owner,
        message_id=f"{session}-{message_id or where}",
        session=session,
        role="assistant" if written.get("isBot") is True else "user",
        content=text,
        time=time,
        name=log.author_name(written.get("nickname"))
        or log.author_name(written.get("name"))
        or log.author_name(log.as_text(written.get("id"))),
        metadata=metadata,
        edited=None if edited is None else (edited, edited),
    )


def _discord_text(message: dict[str, Any]) -> str:
    """Return the text, forwarded text and file names. Embeds count without a text only: next to one, they are
    previews."""
    found = [log.text_of(message, "content")]
    if forwarded := log.text_of(message.get("forwardedMessage"), "content"):
        found.append(f"[forwarded]\n{forwarded}")
    if not any(found):
        for embed in log.list_of(message, "embeds"):
            found += [text for field in ("title", "description") if isinstance(text := log.field_of(embed, field), str)]
    for kind, field, shown in (("attachments", "fileName", "file:"), ("stickers", "name", "sticker")):
        found += [
            f"[{shown} {name}]"
            for one in log.list_of(message, kind)
            if (name := log.author_name(log.field_of(one, field)))
        ]
    return "\n".join(text for text in found if text)
