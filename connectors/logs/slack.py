"""Slack's export of a workspace: a zip, or the folder that it was unpacked to.

    channels.json, groups.json, mpims.json, dms.json   [{"id", "name"?, "members": [user]}]
    users.json (org_users.json)                        [{"id", "name", "profile": {"display_name", "real_name"}}]
    FOLDER/2025-01-31.json                             the messages of a day; the folder is a channel's name, a dm's id
    message: {"type": "message", "subtype"?, "user", "text", "ts", "thread_ts"?, "edited"?: {"ts"}, "username"?,
              "bot_id"?, "files"?: [{"name"}], "attachments"?, "blocks"?}

`ts` is epoch seconds with a number in place of microseconds, unique in a channel. Sources of the format:
slack.com/help/articles/220556107 (the files), docs.slack.dev/reference/events/message (subtypes),
docs.slack.dev/messaging/formatting-message-text and gist.github.com/viccro/734581d3c9777f9733d1f665279e5b54.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recallflow.connectors.logs.building import (
    EMPTY,
    OTHER_FILE,
    LoggedMessage,
    author,
    broken,
    epoch_ms,
    file_name,
    identifier,
    leave_out,
    lenient,
    message_events,
    word,
)
from recallflow.connectors.logs.documents import elements
from recallflow.connectors.logs.model import ImportScope, LogFormat, LogHead, LogSource

_DAY = re.compile(r"(?:.*/)?(?P<folder>[^/]+)/\d{4}-\d{2}-\d{2}\.json")
_LISTS = ("channels.json", "groups.json", "mpims.json", "dms.json")
_USERS = ("users.json", "org_users.json")
_SAID = (None, "bot_message", "me_message", "thread_broadcast", "reply_broadcast", "file_share", "file_comment")
_REASONS = {"tombstone": "deleted messages", "message_deleted": "deleted messages"}
_MARKED = re.compile(r"<(?P<what>[^<>|]*)(?:\|(?P<label>[^<>]*))?>")
_BLOCK_TEXTS = 200  # of one message


@dataclass(frozen=True, slots=True)
class _Channel:
    id: str
    name: str


def _recognises(head: LogHead) -> bool:
    names = {file_name(name) for name in head.members}
    return bool(names & {*_LISTS}) and (bool(names & {*_USERS}) or any(map(_DAY.fullmatch, head.members)))


def _read(source: LogSource, scope: ImportScope) -> Iterator[bytes]:
    members = source.members()
    people = dict(_people(one for one in members if file_name(one.name) in _USERS))
    channels = dict(_channels((one for one in members if file_name(one.name) in _LISTS), people))
    for member in members:
        found = _DAY.fullmatch(member.name.replace("\\", "/"))
        if found is None:
            if file_name(member.name) not in (*_LISTS, *_USERS):
                leave_out(scope, OTHER_FILE)
            continue
        channel = channels.get(found["folder"], _Channel(found["folder"], found["folder"]))
        with member.open() as opened:
            for number, text in enumerate(elements(opened), start=1):
                yield from message_of(
                    lenient(text), channel.id, channel.name, people, scope, f"{member.name}, {number}"
                )


SLACK = LogFormat("slack", "Slack's export of a workspace", _recognises, _read)


def _objects(files: Iterator[LogSource]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in files:
        with file.open() as opened:
            for text in elements(opened):
                if isinstance(value := lenient(text), dict) and isinstance(key := value.get("id"), str):
                    yield key, value


def _people(files: Iterator[LogSource]) -> Iterator[tuple[str, str]]:
    """Yield user id and display name, deleted users included."""
    for key, user in _objects(files):
        if name := _person(user.get("profile")) or _person(user):
            yield key, name


def _person(given: object) -> str | None:
    fields = ("display_name", "real_name", "name") if isinstance(given, dict) else ()
    return (
        next((name for field in fields if (name := author(given.get(field)))), None)
        if isinstance(given, dict)
        else None
    )


def _channels(files: Iterator[LogSource], people: Mapping[str, str]) -> Iterator[tuple[str, _Channel]]:
    """Yield channels by folder. A direct message has no name, and is named after its users; duplicates get their id
    added."""
    direct: dict[str, str] = {}
    for key, one in _objects(files):
        if name := author(one.get("name")):
            yield name, _Channel(key, name)
        else:
            members = one.get("members")
            named = (
                sorted(people.get(word(member), word(member)) for member in members)
                if isinstance(members, list)
                else []
            )
            direct[key] = f"dm {', '.join(named)}" if named else key
    alike = Counter(direct.values())
    for key, name in direct.items():
        yield key, _Channel(key, f"{name} {key}" if alike[name] > 1 else name)


def message_of(
    message: Any, channel_id: str, channel: str, people: Mapping[str, str], scope: ImportScope, where: str
) -> Iterator[bytes]:
    """Yield a message of a channel; events of the channel are counted by subtype."""
    if not isinstance(message, dict):
        yield broken(where, "is no message of Slack's export", message)
        return
    kind = message.get("subtype")
    if kind not in _SAID:
        leave_out(scope, _REASONS.get(word(kind), word(kind)))
        return
    if message.get("hidden"):
        leave_out(scope, "hidden messages")
        return
    text = _text(message, people, scope)
    if not text:
        leave_out(scope, EMPTY)
        return
    ts, thread, edited = message.get("ts"), message.get("thread_ts"), message.get("edited")
    if (time := epoch_ms(ts)) is None:
        yield broken(where, "has no time (ts)", message)
        return
    answered = thread if isinstance(thread, str) and thread != ts else None
    said = LoggedMessage(
        id=f"{channel_id}-{word(ts)}",
        # The first message of a thread stays in the channel: before the first answer it was not in a thread.
        session=f"{channel_id}-{answered}" if answered else channel_id,
        role="assistant" if kind == "bot_message" or message.get("bot_id") else "user",
        content=text,
        time=time,
        name=_author(message, people),
        metadata={"source": "slack", "channel": channel} | ({"thread": f"{channel_id}-{answered}"} if answered else {}),
        edited=(word(edited["ts"]), epoch_ms(edited["ts"])) if isinstance(edited, dict) and edited.get("ts") else None,
    )
    yield from message_events(scope, scope.user_id if scope.user_given else identifier(channel), said)


def _author(message: dict[str, Any], people: Mapping[str, str]) -> str | None:
    user = word(message.get("user"))
    return (
        people.get(user)
        or _person(message.get("user_profile"))
        or author(message.get("username"))
        or _person(message.get("bot_profile"))
        or author(user)
        or author(message.get("bot_id"))
    )


def _text(message: dict[str, Any], people: Mapping[str, str], scope: ImportScope) -> str:
    """Return the text and file names. Bots often use attachments or blocks without text; with a text, these are
    mostly link previews and left out."""
    said = message.get("text")
    found = [_plain(said, people)] if isinstance(said, str) else []
    attachments, blocks = message.get("attachments"), message.get("blocks")
    if not any(found):
        found = [_plain(text, people) for text in [*_attached(attachments), *_in_blocks(blocks)][:_BLOCK_TEXTS]]
    elif isinstance(attachments, list) and attachments:
        leave_out(scope, "attachments beside a message's own text", len(attachments))
    for file in files if isinstance(files := message.get("files"), list) else ():
        name = file.get("name") or file.get("title") if isinstance(file, dict) else None
        found.append(f"[file: {name}]" if isinstance(name, str) else "[file]")
    return "\n".join(text for text in found if text)


def _attached(attachments: object) -> Iterator[str]:
    for one in attachments if isinstance(attachments, list) else ():
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
            ahead += [
                value for value in (one.get("elements"), one.get("fields"), text) if isinstance(value, list | dict)
            ]


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
