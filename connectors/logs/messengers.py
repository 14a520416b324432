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
    12/31/25, 11:59 PM - Ann created group "Trip"          a line of the program: without a name, or with a mark

There are no ids and no zone. Days and months are in the phone's order, which the whole file or an option shows.
Sources of the format: importers in public repositories (bolsozap, koftezz/whatsapp-chat-analyzer's issue 18 on edited
messages, sepinf-inc/IPED's issue 1647 on the program's own lines); WhatsApp documents none."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, get_args

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.documents import EACH, first_objects, placed_elements
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead
from recallflow.errors import UsageError
from recallflow.limits import RECORD_BYTES

_TELEGRAM_FILE = re.compile(r"result\.json")
_OF_CHATS = ("personal_chat", "bot_chat", "saved_messages", "replies", "verification_codes")
_OF_GROUPS = ("private_group", "private_supergroup", "public_supergroup", "private_channel", "public_channel")
_OF_THE_ACCOUNT = ("bot_chat", "saved_messages", "replies", "verification_codes")  # chats without other people
_ABSENT = "(File"  # an export without files says so in their place
_FORWARD_CHARACTERS = 200


def _recognises_telegram(head: LogHead) -> bool:
    if head.members:
        return any(_TELEGRAM_FILE.fullmatch(log.file_name(name)) for name in head.members)
    return any(map(_is_export, first_objects(head.start)))


def _is_export(one: dict[str, Any]) -> bool:
    if one.get("type") in (*_OF_CHATS, *_OF_GROUPS):
        return "messages" in one
    return "about" in one and ("personal_information" in one or "chats" in one)


def _read_telegram(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    for file in log.exported(source, _TELEGRAM_FILE, scope):
        paths = _paths(file)
        alike = frozenset[str]() if scope.user_given else _shared_names(file, paths)
        for path in paths:
            for number, (chat, text) in enumerate(placed_elements(file, *path), start=1):
                where = f"{file.name}, message {number}"
                yield from telegram_message(log.lenient(text), chat, _owner(chat, alike, scope), scope, where)


def _shared_names(file: LogFile, paths: list[tuple[str, ...]]) -> frozenset[str]:
    """Return the names that a person's chats share with other chats of the account."""
    ids: dict[str, str] = {}
    shared: set[str] = set()
    people: set[str] = set()
    for path in paths:
        for chat, text in placed_elements(file, *path[:-2], "id"):
            if name := log.author(chat.get("name")):
                chat_id = log.word(log.lenient(text))
                shared |= {name} if ids.setdefault(name, chat_id) != chat_id else set()
                people |= set() if chat.get("type") in _OF_GROUPS else {name}
    return frozenset(shared & people)


def _paths(file: LogFile) -> list[tuple[str, ...]]:
    """Return the paths of messages: in an account, under current and left chats."""
    if any("messages" in one for one in first_objects(file.start(64 * 1024))):
        return [("messages", EACH)]
    return [("chats", "list", EACH, "messages", EACH), ("left_chats", "list", EACH, "messages", EACH)]


TELEGRAM = LogFormat(
    "telegram",
    "Telegram's export",
    _recognises_telegram,
    _read_telegram,
    ("about", "personal_information", "chats", "left_chats", "date_unixtime", "from", "from_id", "text_entities"),
)


def telegram_message(message: Any, chat: dict[str, Any], owner: str, scope: ImportScope, where: str) -> Iterator[bytes]:
    """Yield a message of a chat. Service messages are counted by their action."""
    if not isinstance(message, dict):
        yield log.broken(where, "is no message of Telegram's export", message)
        return
    if message.get("type") == "service":
        scope.leave_out(f"service messages ({log.word(message.get('action'))})")
        return
    text = _telegram_text(message)
    if not text:
        scope.leave_out(log.EMPTY)
        return
    if not owner:
        yield log.broken(where, "is of a chat without name and id: give --user NAME", message)
        return
    chat_id = log.word(chat.get("id")) or "chat"
    if (time := _time(message, "date", scope)) is None:
        yield log.broken(where, "has no date", message)
        return
    answered, edited = message.get("reply_to_message_id"), _time(message, "edited", scope)
    reply_to = {} if answered is None else {"reply_to": f"{chat_id}-{log.word(answered)}"}
    # A bot's messages in its own chat have the chat's id.
    is_bot = chat.get("type") == "bot_chat" and log.word(message.get("from_id")) == f"user{log.word(chat.get('id'))}"
    yield from scope.message_events(
        owner,
        message_id=f"{chat_id}-{log.word(message.get('id')) or where}",
        session=chat_id,
        role="assistant" if is_bot else "user",
        content=text,
        time=time,
        name=log.author(message.get("from")) or log.author(f"deleted account {log.word(message.get('from_id'))}"),
        metadata={"source": "telegram", **reply_to},
        edited=None if edited is None else (str(edited), edited),
    )


def _owner(chat: dict[str, Any], alike: Set[str], scope: ImportScope) -> str:
    """Return the owner: the account, or the chat by its name, or its id if the name repeats; empty without both."""
    if scope.user_given or chat.get("type") in _OF_THE_ACCOUNT:
        return scope.user_id
    name, chat_id = log.author(chat.get("name")), log.word(chat.get("id"))
    if name is None:
        return log.identifier(f"chat {chat_id}") if chat_id else ""
    is_alike = name in alike and chat.get("type") not in _OF_GROUPS  # a group that became larger has another id
    return log.identifier(f"{name} {chat_id}" if is_alike else name)


def _time(message: dict[str, Any], field: str, scope: ImportScope) -> int | str | None:
    if given := message.get(f"{field}_unixtime"):
        return log.epoch_ms(given)
    written = message.get(field)
    if not isinstance(written, str):
        return None
    with suppress(ValueError):
        return int(datetime.fromisoformat(written).replace(tzinfo=scope.zone).timestamp() * 1000)
    return written[:64]


def _telegram_text(message: dict[str, Any]) -> str:
    """Return the text, with names of files and other attachments."""
    found = [*_sent(message), _words(message.get("text"))]
    text = "\n".join(part for part in found if part)
    forwarded = log.author(message.get("forwarded_from"))
    return f"[forwarded from {forwarded[:_FORWARD_CHARACTERS]}]\n{text}" if text and forwarded else text


def _words(text: object) -> str:
    """Return text or joined pieces; the address of a link follows its text."""
    if isinstance(text, str):
        return text.strip()
    pieces = []
    for piece in text if isinstance(text, list) else ():
        if isinstance(piece, str):
            pieces.append(piece)
        elif isinstance(words := log.field_of(piece, "text"), str):
            address = piece.get("href")
            pieces.append(f"{words} ({address})" if isinstance(address, str) and address != words else words)
    return "".join(pieces).strip()


def _sent(message: dict[str, Any]) -> Iterator[str]:
    if "photo" in message:
        yield "[photo]"
    kind, emoji = message.get("media_type"), message.get("sticker_emoji")
    if "file" in message or isinstance(kind, str):
        name = message.get("file_name") or message.get("file")
        named = isinstance(name, str) and not name.startswith(_ABSENT) and (kind is None or "file_name" in message)
        if isinstance(kind, str) and not named:
            yield f"[{kind.replace('_', ' ')}{f' {emoji}' if isinstance(emoji, str) else ''}]"
        else:
            yield f"[file: {log.file_name(log.word(name))}]" if named else "[file]"
    if isinstance(question := log.field_of(poll := message.get("poll"), "question"), str):
        texts = [text for one in log.list_of(poll, "answers") if isinstance(text := log.field_of(one, "text"), str)]
        yield f"[poll: {question}{': ' if texts else ''}{', '.join(texts)}]"
    if "location_information" in message:
        yield f"[location{f': {place}' if isinstance(place := message.get('place_name'), str) else ''}]"
    if "contact_information" in message:
        yield "[contact]"


_ORDERS: tuple[log.DateOrder, ...] = get_args(log.DateOrder)


class Dates:
    """Detector of the date order in a file in time order. An order fits if every date is valid and none lies more
    than a day before an earlier one. If several orders fit, or none, an option has to name it."""

    def __init__(self, name: str, order: log.DateOrder | None) -> None:
        self._name, self._order = name, order
        self._latest: dict[log.DateOrder, date] = dict.fromkeys(_ORDERS, date.min)
        self._seen: tuple[str, str, str] | None = None

    def note(self, a: str, separator: str, b: str, c: str) -> None:
        if self._order is not None or (a, b, c) == self._seen:
            return
        self._seen = a, b, c
        for order in [*self._latest]:
            found = _date(order, a, b, c) if separator != "." or order != "mdy" else None  # 12.31.2025 is no format
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
        return _parts(self._order or "dmy", a, b, c)


def _date(order: log.DateOrder, a: str, b: str, c: str) -> date | None:
    # A year of four digits shows its place; one of two digits comes last.
    fits = len(a) == 4 if order == "ymd" else len(a) <= 2 and len(c) in (2, 4)
    with suppress(ValueError):
        return date(*_parts(order, a, b, c)) if fits else None
    return None


def _parts(order: log.DateOrder, a: str, b: str, c: str) -> tuple[int, int, int]:
    year, month, day = {"dmy": (c, b, a), "mdy": (c, a, b), "ymd": (a, b, c)}[order]
    return int(year) + (2000 if len(year) <= 2 else 0), int(month), int(day)


_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\ufeff"
_STAMP = (
    r"(?P<a>\d{1,4})(?P<sep>[./-])\s?(?P<b>\d{1,2})(?P=sep)\s?(?P<c>\d{1,4})\.?[,،]?\s+"
    r"(?:(?:klo|kl|at|um|om|alle|a las)\.?\s+)?"
    r"(?P<before>[上下]午|오[전후])?\s?(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?(?:\s?(?P<half>[AaPp](?=\.?\s?[Mm])|[صم])(?:\.?\s?[Mm]\.?)?)?"
)
_SECOND_HALF = ("P", "p", "م", "下午", "오후")
IOS_LINE = re.compile(rf"\[{_STAMP}\]\s?(?P<rest>.*)", re.DOTALL)
ANDROID_LINE = re.compile(rf"{_STAMP} [-–] (?P<rest>.*)", re.DOTALL)
_SPOKEN_LINE = re.compile(r"(?P<name>[^:\"“”«»\n]{1,100}):(?:\s(?P<text>.*))?", re.DOTALL)
_UNSAVED = re.compile(r"^~ ?(?=\S)")
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
class _Entry:
    """Message with its local time and its lines."""

    wall: datetime
    lines: list[str]
    characters: int = 0


def _recognises_whatsapp(head: LogHead) -> bool:
    if head.members:
        return any(_WHATSAPP_FILE.fullmatch(log.file_name(name)) for name in head.members)
    lines = head.start.decode("utf-8", "replace").splitlines()[:_FIRST_LINES]
    return any(started(line, form) for line in lines for form in (IOS_LINE, ANDROID_LINE))


def _read_whatsapp(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    chats = log.exported(source, _WHATSAPP_FILE, scope)
    named = [_chat_of(chat.name, "" if len(chats) > 1 else source.name) for chat in chats]
    if len(chats) > 1 and None in named and not scope.user_given:
        first = next(chat.name for chat, name in zip(chats, named, strict=True) if name is None)
        raise UsageError(
            f"{source.name}: holds {len(chats)} chats, and {first} has no name of its own: call its folder or file "
            "WhatsApp Chat with NAME, or import each by itself with --user NAME"
        )
    for chat, name in zip(chats, named, strict=True):
        yield from chat_events(chat, name, scope)


def _chat_of(path: str, archive: str) -> str | None:
    """Return the chat of a file by its name, or by its folder or archive."""
    parts = [*path.replace("\\", "/").split("/"), archive]
    for one in (parts[-2], *reversed(parts[:-2]), archive):
        found = _CHAT.fullmatch(one if one.endswith((".txt", ".zip")) else f"{one}.zip")
        if found and (name := _person(found["name"])):
            return name
    return None


WHATSAPP = LogFormat("whatsapp", "WhatsApp's export of a chat", _recognises_whatsapp, _read_whatsapp)


def chat_events(file: LogFile, chat: str | None, scope: ImportScope) -> Iterator[bytes]:
    """Yield the messages of a chat. Raise UsageError where its dates fit two orders and no option decides."""
    dates = Dates(file.name, scope.date_order)
    form = None
    for line in _lines(file):
        form = form or next((one for one in (IOS_LINE, ANDROID_LINE) if started(line, one)), None)
        if form and (found := started(line, form)):
            dates.note(found["a"], found["sep"], found["b"], found["c"])
    dates.decide()
    owner = scope.user_id if scope.user_given or chat is None else log.identifier(chat)
    same: Counter[str] = Counter()
    day = None
    for entry in _entries(file, form, dates):
        if isinstance(entry, bytes):
            yield entry
            continue
        if entry.wall.date() != day:  # a number distinguishes equal texts of the same minute
            day, same = entry.wall.date(), Counter()
        yield from _events(entry, form is IOS_LINE, chat or "chat", owner, same, scope)


def _lines(file: LogFile) -> Iterator[str]:
    with file.open() as opened:
        for line in bounded_lines(opened, RECORD_BYTES):
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def started(line: str, form: "re.Pattern[str]") -> "re.Match[str] | None":
    """Return the beginning of a message in a line, ignoring direction marks and special spaces."""
    return form.match(line.lstrip(_MARKS).replace("\u202f", " ").replace("\xa0", " "))


def _entries(file: LogFile, form: "re.Pattern[str] | None", dates: Dates) -> Iterator[_Entry | bytes]:
    """Yield messages with all their lines; other text is passed on, to be refused."""
    entry: _Entry | None = None
    for number, line in enumerate(_lines(file), start=1):
        found = started(line, form) if form else None
        if found:
            if entry:
                yield entry
            moment = wall(found, dates)
            entry = _Entry(moment, [found["rest"]]) if moment else None
            if moment is None:
                yield log.broken(f"{file.name}, line {number}", "has no such date or time", line)
        elif entry:
            entry.characters += len(line) + 1
            if entry.characters <= RECORD_BYTES + len(line):  # beyond it the message is refused as it is
                entry.lines.append(line)
        elif line.strip(_MARKS + " \t"):
            yield log.broken(f"{file.name}, line {number}", "is no message of a WhatsApp chat", line)
    if entry:
        yield entry


def wall(found: "re.Match[str]", dates: Dates) -> datetime | None:
    """Return the local time; None for an invalid date or time."""
    hour = int(found["hour"])
    if half := found["half"] or found["before"]:
        hour = hour % 12 + (12 if half in _SECOND_HALF else 0)
    year, month, day = dates.read(found["a"], found["b"], found["c"])
    try:
        return datetime(year, month, day, hour, int(found["minute"]), int(found["second"] or 0))
    except ValueError:
        return None


def _events(
    entry: _Entry, is_ios: bool, chat: str, owner: str, same: "Counter[str]", scope: ImportScope
) -> Iterator[bytes]:
    found = _SPOKEN_LINE.fullmatch("\n".join(entry.lines))
    name = _person(found["name"]) if found else None
    if found is None or name is None:
        scope.leave_out(PROGRAM_LINES)
        return
    text, reason = _content(found["text"] or "", is_ios)
    if reason:
        scope.leave_out(reason)
        return
    content = f"{entry.wall.isoformat()}\n{name}\n{text}"
    same[content] += 1
    key = hashlib.sha256(f"{chat}\n{content}\n{same[content]}".encode(errors="replace")).hexdigest()[:32]
    yield from scope.message_events(
        owner,
        message_id=f"whatsapp-{key}",
        session=chat,
        role="user",
        content=text,
        time=int(entry.wall.replace(tzinfo=scope.zone).timestamp() * 1000),
        name=name,
        metadata={"source": "whatsapp"},
    )


def _person(written: str) -> str | None:
    """Return a name without the tilde of self-chosen names: `~ Bob` and `Bob` are one person."""
    return log.author(_UNSAVED.sub("", log.author(written) or ""))


def _content(text: str, is_ios: bool) -> tuple[str, str | None]:
    """Return the text, or the reason for leaving it out. iOS marks lines of the program itself."""
    text = text.strip(" \t\r\n")
    bare = _plain(_EDITED.sub("", text))
    if not bare:
        return "", log.EMPTY
    if _DELETED.fullmatch(bare):
        return "", DELETED
    if is_ios and _ATTACHED_IOS.search(text):
        return _plain(_ATTACHED_IOS.sub(lambda found: f"\n[file: {found['file']}]", text)), None
    if _OMITTED.fullmatch(bare) or (is_ios and _KINDS_OMITTED.fullmatch(bare)):
        return "", MEDIA
    if is_ios and text.startswith("\u200e"):
        return "", PROGRAM_LINES
    attached = None if is_ios else _ATTACHED_ANDROID.match(bare)
    return (f"[file: {attached['file']}]{bare[attached.end() :]}" if attached else bare), None


def _plain(text: str) -> str:
    return "".join(one for one in text if one not in _MARKS).strip()
