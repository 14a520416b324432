"""Exports of Telegram and WhatsApp.

Telegram Desktop's export in JSON is `result.json`, of one chat or of the account:

    {"name", "type", "id", "messages": [...]}
    {"about", "personal_information", "chats": {"list": [{"name", "type", "id", "messages": [...]}]}, "left_chats"}
    message: {"id", "type": "message" | "service", "date", "date_unixtime", "edited_unixtime"?, "from": text | null,
              "from_id", "reply_to_message_id"?, "forwarded_from"?, "text": text | [text | {"type", "text", "href"?}],
              "photo"?, "file"?, "file_name"?, "media_type"?, "sticker_emoji"?, "poll"?, "action"?}

`date` is the local time of the exporting machine, `date_unixtime` (since 2021) is epoch seconds. Sources of
the format: tg-parser (docs/TELEGRAM_FORMAT.md on PyPI) and importers in public repositories.

WhatsApp's export of a chat is `_chat.txt` (iOS) or `WhatsApp Chat with NAME.txt` (Android), alone or in its zip:

    [31/12/2025, 23:59:58] Ann: Happy new year!            iOS
    31/12/2025, 23:59 - Ann: Happy new year!               Android
    12/31/25, 11:59 PM - Ann created group "Trip"          a line by WhatsApp: without a name, or with an invisible mark

There are no ids and no zone. Days and months are in the phone's order, which the whole file or an option shows.
Sources of the format: importers in public repositories (bolsozap, koftezz/whatsapp-chat-analyzer's issue 18 on edited
messages, sepinf-inc/IPED's issue 1647 on the program's own lines); WhatsApp documents none."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, get_args

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.documents import EACH, elements_with_fields, first_objects
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead
from recallflow.errors import UsageError
from recallflow.limits import RECORD_BYTES

_TELEGRAM_FILE = re.compile(r"result\.json")
_PERSONAL_TYPES = ("personal_chat", "bot_chat", "saved_messages", "replies", "verification_codes")
_GROUP_TYPES = ("private_group", "private_supergroup", "public_supergroup", "private_channel", "public_channel")
_ACCOUNT_TYPES = ("bot_chat", "saved_messages", "replies", "verification_codes")  # chats without other people
_NOT_EXPORTED = "(File"  # start of the text in place of a file's name in an export without files
_FORWARD_CHARACTERS = 200


def _is_export(one: dict[str, Any]) -> bool:
    if one.get("type") in (*_PERSONAL_TYPES, *_GROUP_TYPES):
        return "messages" in one
    return "about" in one and ("personal_information" in one or "chats" in one)


def _read_telegram(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    for file in log.exported_files(source, _TELEGRAM_FILE, scope):
        paths = _paths(file)
        repeated_names = frozenset[str]() if scope.user_given else _repeated_names(file, paths)
        for path in paths:
            for number, (chat, text) in enumerate(elements_with_fields(file, *path), start=1):
                message, owner = log.parse(text), _chat_owner(chat, repeated_names, scope)
                yield from telegram_message(message, chat, owner, scope, f"{file.name}, message {number}")


def _repeated_names(file: LogFile, paths: list[tuple[str, ...]]) -> frozenset[str]:
    """Return the names of personal chats that other chats of the account also have."""
    ids: dict[str, str] = {}
    shared, people = set[str](), set[str]()
    for path in paths:
        for chat, text in elements_with_fields(file, *path[:-2], "id"):
            if name := log.valid_name(chat.get("name")):
                chat_id = log.as_text(log.parse(text))
                shared |= {name} if ids.setdefault(name, chat_id) != chat_id else set()
                people |= set() if chat.get("type") in _GROUP_TYPES else {name}
    return frozenset(shared & people)


def _paths(file: LogFile) -> list[tuple[str, ...]]:
    """Return the paths of messages: in an account, under current and left chats."""
    if any("messages" in one for one in first_objects(file.start(64 * 1024))):
        return [("messages", EACH)]
    return [("chats", "list", EACH, "messages", EACH), ("left_chats", "list", EACH, "messages", EACH)]


TELEGRAM = LogFormat(
    "telegram",
    "Telegram's export",
    lambda head: log.has_file(head, _TELEGRAM_FILE) or any(map(_is_export, first_objects(head.start))),
    _read_telegram,
    ("about", "personal_information", "chats", "left_chats", "date_unixtime", "from", "from_id", "text_entities"),
)


def telegram_message(message: Any, chat: dict[str, Any], owner: str, scope: ImportScope, where: str) -> Iterable[bytes]:
    """Return the events of a message of a chat. Service messages are counted by their action."""
    if not isinstance(message, dict):
        return [log.broken(where, "is no message of Telegram's export", message)]
    if message.get("type") == "service":
        return scope.leave_out(f"service messages ({log.as_text(message.get('action'))})")
    text = _telegram_text(message)
    if not text:
        return scope.leave_out(log.EMPTY)
    if not owner:
        return [log.broken(where, "is of a chat without name and id: give --user NAME", message)]
    if (time := _telegram_time(message, "date", scope)) is None:
        return [log.broken(where, "has no date", message)]
    written_id, edited = log.as_text(chat.get("id")), _telegram_time(message, "edited", scope)
    chat_id, answered = written_id or "chat", message.get("reply_to_message_id")
    reply_to = {} if answered is None else {"reply_to": f"{chat_id}-{log.as_text(answered)}"}
    # A bot's messages in its own chat have the chat's id.
    is_bot = chat.get("type") == "bot_chat" and log.as_text(message.get("from_id")) == f"user{written_id}"
    return scope.message_events(
        owner,
        message_id=f"{chat_id}-{log.as_text(message.get('id')) or where}",
        session=chat_id,
        role="assistant" if is_bot else "user",
        content=text,
        time=time,
        name=log.valid_name(message.get("from"), f"deleted account {log.as_text(message.get('from_id'))}"),
        metadata={"source": "telegram", **reply_to},
        edited=None if edited is None else (str(edited), edited),
    )


def _chat_owner(chat: dict[str, Any], repeated_names: Set[str], scope: ImportScope) -> str:
    """Return the owner: the account; or the chat's name, with its id if the name is repeated; or its id.
    Empty for a chat without name and id."""
    if scope.user_given or chat.get("type") in _ACCOUNT_TYPES:
        return scope.user_id
    name, chat_id = log.valid_name(chat.get("name")), log.as_text(chat.get("id"))
    if name is None:
        return log.valid_id(f"chat {chat_id}") if chat_id else ""
    # The owner of a group has no id in its name, because the id changes when the group becomes a supergroup.
    is_repeated = name in repeated_names and chat.get("type") not in _GROUP_TYPES
    return log.valid_id(f"{name} {chat_id}" if is_repeated else name)


def _telegram_time(message: dict[str, Any], field: str, scope: ImportScope) -> int | str | None:
    if seconds := message.get(f"{field}_unixtime"):
        return log.time_from_seconds(seconds)
    written = message.get(field)
    if not isinstance(written, str):
        return None
    with suppress(ValueError):
        return int(datetime.fromisoformat(written).replace(tzinfo=scope.zone).timestamp() * 1000)
    return written[:64]


def _telegram_text(message: dict[str, Any]) -> str:
    text = "\n".join(filter(None, (*_attachments(message), _joined_text(message.get("text")))))
    forwarded = log.valid_name(message.get("forwarded_from"))
    return f"[forwarded from {forwarded[:_FORWARD_CHARACTERS]}]\n{text}" if text and forwarded else text


def _joined_text(text: object) -> str:
    """Return a text, or the joined pieces of one. The address of a link follows its text."""
    if isinstance(text, str):
        return text.strip()
    pieces = []
    for piece in text if isinstance(text, list) else ():
        if isinstance(piece, str):
            pieces.append(piece)
        elif isinstance(shown := log.field_of(piece, "text"), str):
            address = piece.get("href")
            pieces.append(f"{shown} ({address})" if isinstance(address, str) and address != shown else shown)
    return "".join(pieces).strip()


def _attachments(message: dict[str, Any]) -> Iterator[str]:
    if "photo" in message:
        yield "[photo]"
    kind, emoji = message.get("media_type"), message.get("sticker_emoji")
    if "file" in message or isinstance(kind, str):
        name = message.get("file_name") or message.get("file")
        is_exported = isinstance(name, str) and not name.startswith(_NOT_EXPORTED)
        has_name = is_exported and (kind is None or "file_name" in message)
        if isinstance(kind, str) and not has_name:
            yield f"[{kind.replace('_', ' ')}{f' {emoji}' if isinstance(emoji, str) else ''}]"
        else:
            yield f"[file: {log.file_name(log.as_text(name))}]" if has_name else "[file]"
    if isinstance(question := log.field_of(poll := message.get("poll"), "question"), str):
        texts = [text for one in log.list_of(poll, "answers") if isinstance(text := log.field_of(one, "text"), str)]
        yield f"[poll: {question}{': ' if texts else ''}{', '.join(texts)}]"
    if "location_information" in message:
        yield f"[location{f': {place}' if isinstance(place := message.get('place_name'), str) else ''}]"
    if "contact_information" in message:
        yield "[contact]"


_ORDERS: tuple[log.DateOrder, ...] = get_args(log.DateOrder)


class Dates:
    """Detector of the order of day, month and year in a file, whose lines are in time order. An order fits if every
    date is valid and none lies over a day before that of an earlier line. Without
    `order`, an option of the user, exactly one must fit."""

    def __init__(self, name: str, order: log.DateOrder | None) -> None:
        self._name, self._order = name, order
        self._latest: dict[log.DateOrder, date] = dict.fromkeys(_ORDERS, date.min)
        self._seen: tuple[str, str, str] | None = None

    def note(self, a: str, separator: str, b: str, c: str) -> None:
        if self._order is not None or (a, b, c) == self._seen:
            return
        self._seen = a, b, c
        for order in [*self._latest]:
            # No country writes 12.31.2025.
            found = _valid_date(order, a, b, c) if separator != "." or order != "mdy" else None
            if found is None or (self._latest[order] - found).days > 1:
                del self._latest[order]
            else:
                self._latest[order] = max(found, self._latest[order])

    def decide(self) -> None:
        """Raise UsageError where the dates do not show their order."""
        if self._order is not None or self._seen is None:
            return
        if len(self._latest) != 1:
            shown = "/".join(self._seen)
            why = "could be day or month first" if self._latest else "are in no order that fits all of them"
            raise UsageError(f"{self._name}: its dates ({shown}) {why}; give --date-order dmy, mdy or ymd")
        (self._order,) = self._latest

    def read(self, a: str, b: str, c: str) -> tuple[int, int, int]:
        """Return year, month and day; the day may be invalid."""
        return _year_month_day(self._order or "dmy", a, b, c)


def _valid_date(order: log.DateOrder, a: str, b: str, c: str) -> date | None:
    # A year that comes first has four digits.
    fits = len(a) == 4 if order == "ymd" else len(a) <= 2 and len(c) in (2, 4)
    with suppress(ValueError):
        return date(*_year_month_day(order, a, b, c)) if fits else None
    return None


def _year_month_day(order: log.DateOrder, a: str, b: str, c: str) -> tuple[int, int, int]:
    year, month, day = {"dmy": (c, b, a), "mdy": (c, a, b), "ymd": (a, b, c)}[order]
    return int(year) + (2000 if len(year) <= 2 else 0), int(month), int(day)


_DIRECTION_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\ufeff"
_STAMP = (
    r"(?P<a>\d{1,4})(?P<sep>[./-])\s?(?P<b>\d{1,2})(?P=sep)\s?(?P<c>\d{1,4})\.?[,،]?\s+"
    r"(?:(?:klo|kl|at|um|om|alle|a las)\.?\s+)?"
    r"(?P<before>[上下]午|오[전후])?\s?(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?(?:\s?(?P<half>[AaPp](?=\.?\s?[Mm])|[صم])(?:\.?\s?[Mm]\.?)?)?"
)
_SECOND_HALF = ("P", "p", "م", "下午", "오후")
IOS_LINE = re.compile(rf"\[{_STAMP}\]\s?(?P<rest>.*)", re.DOTALL)
ANDROID_LINE = re.compile(rf"{_STAMP} [-–] (?P<rest>.*)", re.DOTALL)
_NAME_AND_TEXT = re.compile(r"(?P<name>[^:\"“”«»\n]{1,100}):(?:\s(?P<text>.*))?", re.DOTALL)
_TILDE = re.compile(r"^~ ?(?=\S)")
_WHATSAPP_FILE = re.compile(r"_chat\.txt|.*WhatsApp[ _-].*\.txt", re.IGNORECASE)
# English, German, Dutch and others with `WhatsApp Chat with`; Italian, French, Spanish, Portuguese.
_CHAT = re.compile(
    r"(?:WhatsApp[ -]\S+ \S+|Chat WhatsApp con|(?:Chat|Discussion) WhatsApp avec|Chat de WhatsApp con|"
    r"Conversa do WhatsApp com) (?P<name>.+?)(?: ?\(\d+\))?\.(?:txt|zip)"
)
_FIRST_LINES = 50  # a file of this format has a message within these lines

_ATTACHED_IOS = re.compile(r"\s*\u200e<[^<>:\n]{1,40}: (?P<file>[^<>\n]+)>")
_ATTACHED_ANDROID = re.compile(r"(?P<file>[^\n]{1,200}?\.\w{2,5}) \([^()\n]{4,40}\)(?=\n|$)")
_OMITTED = re.compile(r"<[^<>\n]{3,60}>")  # <Media omitted>, in the phone's language
_KINDS_OMITTED = re.compile(r"(image|video|audio|sticker|GIF|document|Contact card) omitted")
_DELETED = re.compile(r"(You deleted this message|This message was deleted)( by .+)?\.?")
_EDITED = re.compile(r"(?<=\S)\s*(?:\u200e<[^<>:\n]+>|<This message was edited>)$")
MEDIA, DELETED, PROGRAM_LINES = "media that are not in the export", "deleted messages", "lines of the program's own"


@dataclass(slots=True)
class _Message:
    local_time: datetime
    lines: list[str]
    characters: int = 0


def _recognises_whatsapp(head: LogHead) -> bool:
    lines = head.start.decode("utf-8", "replace").splitlines()[:_FIRST_LINES]
    has_message = any(message_start(line, form) for line in lines for form in (IOS_LINE, ANDROID_LINE))
    return has_message or log.has_file(head, _WHATSAPP_FILE)


def _read_whatsapp(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    files = log.exported_files(source, _WHATSAPP_FILE, scope)
    chats = [(file, _chat_name(file.name, "" if len(files) > 1 else source.name)) for file in files]
    unnamed = next((file.name for file, name in chats if name is None), None)
    if len(files) > 1 and unnamed is not None and not scope.user_given:
        raise UsageError(
            f"{source.name}: holds {len(files)} chats, and the name of {unnamed} shows no chat: call its folder "
            "or file WhatsApp Chat with NAME, or import each file by itself with --user NAME"
        )
    for file, name in chats:
        yield from chat_events(file, name, scope)


def _chat_name(path: str, archive: str) -> str | None:
    """Return the name of a chat: from its file name, or else from a folder's or the archive's."""
    for part in (*reversed(path.replace("\\", "/").split("/")), archive):
        found = _CHAT.fullmatch(part if part.endswith((".txt", ".zip")) else f"{part}.zip")
        if found and (name := _name_of_person(found["name"])):
            return name
    return None


WHATSAPP = LogFormat("whatsapp", "WhatsApp's export of a chat", _recognises_whatsapp, _read_whatsapp)


def chat_events(file: LogFile, chat: str | None, scope: ImportScope) -> Iterator[bytes]:
    """Yield the events of a chat. Raise UsageError if the order of its dates is unclear."""
    dates = Dates(file.name, scope.date_order)
    form = None
    for line in _lines(file):
        form = form or next((one for one in (IOS_LINE, ANDROID_LINE) if message_start(line, one)), None)
        if form and (found := message_start(line, form)):
            dates.note(found["a"], found["sep"], found["b"], found["c"])
    dates.decide()
    owner = scope.user_id if scope.user_given or chat is None else log.valid_id(chat)
    repeats: Counter[str] = Counter()  # content → its number of messages on a day, which distinguishes their ids
    day = None
    for message in _messages(file, form, dates):
        if isinstance(message, bytes):
            yield message
            continue
        if message.local_time.date() != day:
            day, repeats = message.local_time.date(), Counter()
        yield from _whatsapp_events(message, form is IOS_LINE, chat or "chat", owner, repeats, scope)


def _lines(file: LogFile) -> Iterator[str]:
    with file.open() as opened:
        for line in bounded_lines(opened, RECORD_BYTES):
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def message_start(line: str, form: "re.Pattern[str]") -> "re.Match[str] | None":
    """Match the beginning of a message in a line, without direction marks and special spaces."""
    return form.match(line.lstrip(_DIRECTION_MARKS).replace("\u202f", " ").replace("\xa0", " "))


def _messages(file: LogFile, form: "re.Pattern[str] | None", dates: Dates) -> Iterator[_Message | bytes]:
    """Yield messages with all their lines. Other lines are yielded as invalid records."""
    message: _Message | None = None
    for number, line in enumerate(_lines(file), start=1):
        found = message_start(line, form) if form else None
        if found:
            if message:
                yield message
            moment = local_time(found, dates)
            message = _Message(moment, [found["rest"]]) if moment else None
            if moment is None:
                yield log.broken(f"{file.name}, line {number}", "has an invalid date or time", line)
        elif message:
            message.characters += len(line) + 1
            if message.characters <= RECORD_BYTES + len(line):  # a longer message is refused without its other lines
                message.lines.append(line)
        elif line.strip(_DIRECTION_MARKS + " \t"):
            yield log.broken(f"{file.name}, line {number}", "is no message of a WhatsApp chat", line)
    if message:
        yield message


def local_time(found: "re.Match[str]", dates: Dates) -> datetime | None:
    """Return the local time; None for an invalid date or time."""
    hour = int(found["hour"])
    if half := found["half"] or found["before"]:
        hour = hour % 12 + (12 if half in _SECOND_HALF else 0)
    year, month, day = dates.read(found["a"], found["b"], found["c"])
    try:
        return datetime(year, month, day, hour, int(found["minute"]), int(found["second"] or 0))
    except ValueError:
        return None


def _whatsapp_events(
    message: _Message, is_ios: bool, chat: str, owner: str, repeats: "Counter[str]", scope: ImportScope
) -> Iterable[bytes]:
    found = _NAME_AND_TEXT.fullmatch("\n".join(message.lines))
    name = _name_of_person(found["name"]) if found else None
    if found is None or name is None:
        return scope.leave_out(PROGRAM_LINES)
    text, reason = _whatsapp_text(found["text"] or "", is_ios)
    if reason:
        return scope.leave_out(reason)
    content = f"{message.local_time.isoformat()}\n{name}\n{text}"
    repeats[content] += 1
    key = hashlib.sha256(f"{chat}\n{content}\n{repeats[content]}".encode(errors="replace")).hexdigest()[:32]
    return scope.message_events(
        owner,
        message_id=f"whatsapp-{key}",
        session=chat,
        role="user",
        content=text,
        time=int(message.local_time.replace(tzinfo=scope.zone).timestamp() * 1000),
        name=name,
        metadata={"source": "whatsapp"},
    )


def _name_of_person(written: str) -> str | None:
    """Return a name without the tilde of self-chosen names: `~ Bob` and `Bob` are one person."""
    return log.valid_name(_TILDE.sub("", log.valid_name(written) or ""))


def _whatsapp_text(text: str, is_ios: bool) -> tuple[str, str | None]:
    """Return the text, or the reason for an omission. iOS begins the program's own lines with a direction mark."""
    text = text.strip(" \t\r\n")
    bare = _without_marks(_EDITED.sub("", text))
    if not bare:
        return "", log.EMPTY
    if _DELETED.fullmatch(bare):
        return "", DELETED
    if is_ios and _ATTACHED_IOS.search(text):
        return _without_marks(_ATTACHED_IOS.sub(lambda found: f"\n[file: {found['file']}]", text)), None
    if _OMITTED.fullmatch(bare) or (is_ios and _KINDS_OMITTED.fullmatch(bare)):
        return "", MEDIA
    if is_ios and text.startswith("\u200e"):
        return "", PROGRAM_LINES
    attached = None if is_ios else _ATTACHED_ANDROID.match(bare)
    return (f"[file: {attached['file']}]{bare[attached.end() :]}" if attached else bare), None


def _without_marks(text: str) -> str:
    return "".join(one for one in text if one not in _DIRECTION_MARKS).strip()
