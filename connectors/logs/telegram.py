"""Telegram Desktop's export in JSON: `result.json`, of one chat or of the account.

    {"name", "type", "id", "messages": [...]}
    {"about", "personal_information", "chats": {"list": [{"name", "type", "id", "messages": [...]}]}, "left_chats"}
    message: {"id", "type": "message" | "service", "date", "date_unixtime", "edited_unixtime"?, "from": text | null,
              "from_id", "reply_to_message_id"?, "forwarded_from"?, "text": text | [text | {"type", "text", "href"?}],
              "photo"?, "file"?, "file_name"?, "media_type"?, "sticker_emoji"?, "poll"?, "action"?}

`date` is the local time of the exporting machine, `date_unixtime` (since 2021) is epoch seconds. Sources of
the format: tg-parser (docs/TELEGRAM_FORMAT.md on PyPI) and importers in public repositories.
"""

import re
from collections.abc import Iterator, Set
from contextlib import suppress
from datetime import datetime
from typing import Any

from recallflow.connectors.logs.building import (
    EMPTY,
    LoggedMessage,
    author,
    broken,
    epoch_ms,
    exported,
    file_name,
    identifier,
    leave_out,
    lenient,
    message_events,
    word,
)
from recallflow.connectors.logs.documents import EACH, first_objects, placed_elements
from recallflow.connectors.logs.model import ImportScope, LogFormat, LogHead, LogSource, start_of

_FILE = re.compile(r"result\.json")
_OF_CHATS = ("personal_chat", "bot_chat", "saved_messages", "replies", "verification_codes")
_OF_GROUPS = ("private_group", "private_supergroup", "public_supergroup", "private_channel", "public_channel")
_OF_THE_ACCOUNT = ("bot_chat", "saved_messages", "replies", "verification_codes")  # chats without other people
_NOT_INCLUDED = "(File"  # an export without files says so in their place
_FORWARD_CHARACTERS = 200


def _recognises(head: LogHead) -> bool:
    if head.members:
        return any(_FILE.fullmatch(file_name(name)) for name in head.members)
    return any(map(_is_export, first_objects(head.start)))


def _is_export(one: dict[str, Any]) -> bool:
    if one.get("type") in (*_OF_CHATS, *_OF_GROUPS):
        return "messages" in one
    return "about" in one and ("personal_information" in one or "chats" in one)


def _read(source: LogSource, scope: ImportScope) -> Iterator[bytes]:
    for file in exported(source, _FILE, scope):
        paths = _paths(file)
        alike = frozenset[str]() if scope.user_given else _shared_names(file, paths)
        for path in paths:
            with file.open() as opened:
                for number, (chat, text) in enumerate(placed_elements(opened, *path), start=1):
                    where = f"{file.name}, message {number}"
                    yield from message_of(lenient(text), chat, _owner(chat, alike, scope), scope, where)


def _shared_names(file: LogSource, paths: list[tuple[str, ...]]) -> frozenset[str]:
    """Return the names that a person's chats share with other chats of the account."""
    ids: dict[str, str] = {}
    shared: set[str] = set()
    people: set[str] = set()
    for path in paths:
        with file.open() as opened:
            for chat, text in placed_elements(opened, *path[:-2], "id"):
                if name := author(chat.get("name")):
                    chat_id = word(lenient(text))
                    shared |= {name} if ids.setdefault(name, chat_id) != chat_id else set()
                    people |= set() if chat.get("type") in _OF_GROUPS else {name}
    return frozenset(shared & people)


def _paths(file: LogSource) -> list[tuple[str, ...]]:
    """Return the paths of messages: in an account, under current and left chats."""
    with file.open() as opened:
        start = first_objects(start_of(opened, 64 * 1024))
    if any("messages" in one for one in start):
        return [("messages", EACH)]
    return [("chats", "list", EACH, "messages", EACH), ("left_chats", "list", EACH, "messages", EACH)]


TELEGRAM = LogFormat(
    "telegram",
    "Telegram's export",
    _recognises,
    _read,
    fields=(
        "about",
        "personal_information",
        "chats",
        "left_chats",
        "date_unixtime",
        "from",
        "from_id",
        "text_entities",
    ),
)


def message_of(message: Any, chat: dict[str, Any], owner: str, scope: ImportScope, where: str) -> Iterator[bytes]:
    """Yield a message of a chat. Service messages are counted by their action."""
    if not isinstance(message, dict):
        yield broken(where, "is no message of Telegram's export", message)
        return
    if message.get("type") == "service":
        leave_out(scope, f"service messages ({word(message.get('action'))})")
        return
    text = _text(message)
    if not text:
        leave_out(scope, EMPTY)
        return
    if not owner:
        yield broken(where, "is of a chat without name and id: give --user NAME", message)
        return
    chat_id = word(chat.get("id")) or "chat"
    if (time := _time(message, "date", scope)) is None:
        yield broken(where, "has no date", message)
        return
    answered = message.get("reply_to_message_id")
    said = LoggedMessage(
        id=f"{chat_id}-{word(message.get('id')) or where}",
        session=chat_id,
        role="assistant" if _is_bot(message, chat) else "user",
        content=text,
        time=time,
        name=_name(message),
        metadata={"source": "telegram", **({} if answered is None else {"reply_to": f"{chat_id}-{word(answered)}"})},
        edited=_edited(message, scope),
    )
    yield from message_events(scope, owner, said)


def _owner(chat: dict[str, Any], alike: Set[str], scope: ImportScope) -> str:
    """Return the owner: the account or the chat by name; a chat without a unique name by its id. Return an empty
    text for a chat without both."""
    if scope.user_given or chat.get("type") in _OF_THE_ACCOUNT:
        return scope.user_id
    name, chat_id = author(chat.get("name")), word(chat.get("id"))
    if name is None:
        return identifier(f"chat {chat_id}") if chat_id else ""
    is_alike = name in alike and chat.get("type") not in _OF_GROUPS  # a group that became larger has another id
    return identifier(f"{name} {chat_id}" if is_alike else name)


def _is_bot(message: dict[str, Any], chat: dict[str, Any]) -> bool:
    """Return whether a message in a chat with a bot comes from the bot, which uses the chat's id."""
    return chat.get("type") == "bot_chat" and word(message.get("from_id")) == f"user{word(chat.get('id'))}"


def _name(message: dict[str, Any]) -> str:
    """Return the author; a deleted account has an id only."""
    return author(message.get("from")) or author(f"deleted account {word(message.get('from_id'))}") or ""


def _time(message: dict[str, Any], field: str, scope: ImportScope) -> int | str | None:
    if given := message.get(f"{field}_unixtime"):
        return epoch_ms(given)
    written = message.get(field)
    if not isinstance(written, str):
        return None
    with suppress(ValueError):
        return int(datetime.fromisoformat(written).replace(tzinfo=scope.zone).timestamp() * 1000)
    return written[:64]


def _edited(message: dict[str, Any], scope: ImportScope) -> tuple[str, int | str | None] | None:
    time = _time(message, "edited", scope)
    return None if time is None else (str(time), time)


def _text(message: dict[str, Any]) -> str:
    """Return the text, with names of files and other attachments."""
    found = [*_sent(message), _words(message.get("text"))]
    text = "\n".join(part for part in found if part)
    forwarded = author(message.get("forwarded_from"))
    return f"[forwarded from {forwarded[:_FORWARD_CHARACTERS]}]\n{text}" if text and forwarded else text


def _words(text: object) -> str:
    """Return text or joined pieces; the address of a link follows its text."""
    if isinstance(text, str):
        return text.strip()
    pieces = []
    for piece in text if isinstance(text, list) else ():
        if isinstance(piece, str):
            pieces.append(piece)
        elif isinstance(piece, dict) and isinstance(words := piece.get("text"), str):
            address = piece.get("href")
            pieces.append(f"{words} ({address})" if isinstance(address, str) and address != words else words)
    return "".join(pieces).strip()


def _sent(message: dict[str, Any]) -> Iterator[str]:
    if "photo" in message:
        yield "[photo]"
    kind, emoji = message.get("media_type"), message.get("sticker_emoji")
    if "file" in message or isinstance(kind, str):
        name = message.get("file_name") or message.get("file")
        named = (
            isinstance(name, str) and not name.startswith(_NOT_INCLUDED) and (kind is None or "file_name" in message)
        )
        if isinstance(kind, str) and not named:
            yield f"[{kind.replace('_', ' ')}{f' {emoji}' if isinstance(emoji, str) else ''}]"
        else:
            yield f"[file: {file_name(word(name))}]" if named else "[file]"
    if isinstance(poll := message.get("poll"), dict) and isinstance(question := poll.get("question"), str):
        answers = poll.get("answers")
        texts = (
            [one["text"] for one in answers if isinstance(one, dict) and isinstance(one.get("text"), str)]
            if (isinstance(answers, list))
            else []
        )
        yield f"[poll: {question}{': ' if texts else ''}{', '.join(texts)}]"
    if "location_information" in message:
        yield f"[location{f': {place}' if isinstance(place := message.get('place_name'), str) else ''}]"
    if "contact_information" in message:
        yield "[contact]"
