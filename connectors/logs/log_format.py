"""Interface of log formats, and construction of memory events from exports of other programs.

An export holds the current state of its program. A message has the same id in every export, so the next export of an
account adds only new messages. An edited message becomes two events: a message with the latest text, and an update with
the same text, whose id contains the edit. So an import of a later export adds only the update of a newer edit."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import orjson

from recallflow.connectors.logs.sources import LogFile, LogHead
from recallflow.fields import wire_time

DateOrder = Literal["dmy", "mdy", "ymd"]
Edit = tuple[str, int | str | None]  # identity and time of the latest edit of a message

EVENT_BYTES = 1024 * 1024 + 1  # one more than an event may have, so that a cut line is still rejected as too large
_LEVELS_MAX = 250  # nested levels: orjson writes 254, and an event may have 200
_ID_CHARACTERS, _NAME_CHARACTERS = 128, 512
_SHOWN_CHARACTERS = 500  # quoted part of an invalid value
_TIME_CHARACTERS = 64
_REASON_CHARACTERS, _REASONS_MAX = 64, 100
_SECONDS_BELOW = 10**12  # larger numbers are invalid as epoch seconds
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SURROGATES = re.compile("[\ud800-\udfff]")
_INVISIBLE = re.compile(r"[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+")  # direction and zero-width marks

OTHER_FILE = "files of another kind"
EMPTY_FILE = "empty files"
EMPTY = "empty messages"
OTHER_BRANCH = "messages of other branches"


@dataclass(frozen=True, slots=True)
class ImportScope:
    """Defaults of an import, and encoder of its events.

    `user_given` means that `--user` was set: a group chat, which is an owner of its own otherwise, belongs to that
    user. `date_order` and `zone` apply to dates without month names or zone. Readers fill two fields: `skipped` counts
    omitted messages by reason; `columns` maps table columns to event fields, and to an empty text for metadata."""

    tenant_id: str = "default"
    user_id: str = "user"
    environment: str = "prod"
    user_given: bool = False
    date_order: DateOrder | None = None
    zone: tzinfo = UTC
    skipped: Counter[str] = field(default_factory=Counter, compare=False)
    columns: dict[str, str] = field(default_factory=dict, compare=False)

    def encode_event(self, event: dict[str, Any]) -> bytes:
        """Return an event as JSON. Owner fields that the event lacks are those of the import."""
        fields = {"tenant_id": self.tenant_id, "user_id": self.user_id, "environment": self.environment} | event
        try:
            return orjson.dumps(fields)
        except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
            return orjson.dumps(_cut(fields, _LEVELS_MAX))

    def encode_owned_event(self, owner: str, event: Mapping[str, object], time: int | str | None = None) -> bytes:
        """Return an owner's event as JSON; an event that is too large is cut just above the limit. Lone surrogates,
        which JSON can contain and UTF-8 cannot, become replacement characters."""
        fields = {**event, **({} if time is None else {"timestamp": time}), "user_id": owner}
        try:
            return self.encode_event(fields)[:EVENT_BYTES]
        except orjson.JSONEncodeError:
            try:
                written = json.dumps(fields, ensure_ascii=False, default=str)
            except RecursionError:
                return broken(str(event.get("id")), "is nested too deeply")
            return self.encode_event(json.loads(_without_surrogates(written)))[:EVENT_BYTES]

    def message_events(
        self,
        owner: str,
        *,
        message_id: str,
        session: str,
        role: object,
        content: str,
        time: int | str | None,
        metadata: Mapping[str, object],
        name: str | None = None,
        edited: Edit | None = None,
    ) -> list[bytes]:
        """Return a message, and the update of its latest edit. Times are epoch milliseconds or RFC 3339 texts."""
        event = {
            "type": "message",
            "id": valid_id(message_id),
            "session_id": valid_id(session),
            "role": role if isinstance(role, str) else None,
            "content": content,
            **({} if time is None else {"timestamp": time}),
            **({} if name is None else {"name": name}),
            "metadata": metadata,
        }
        message = self.encode_owned_event(owner, event)
        if edited is None:
            return [message]
        return [message, self.update_event(owner, valid_id(message_id), edited, {"content": content})]

    def update_event(self, owner: str, memory_id: str, edit: Edit, changed: Mapping[str, object]) -> bytes:
        key, time = edit
        event = {"type": "memory.update", "id": valid_id(f"{memory_id}~{key}"), "memory_id": memory_id, **changed}
        return self.encode_owned_event(owner, event, time)

    def leave_out(self, reason: str, count: int = 1) -> tuple[()]:
        """Count an omitted message, and return no events. A log may contain any reasons: limit their number."""
        shortened = valid_name(reason[:_REASON_CHARACTERS]) or "without a reason"
        has_room = shortened in self.skipped or len(self.skipped) < _REASONS_MAX
        if count:
            self.skipped[shortened if has_room else "for other reasons"] += count
        return ()


class LogFormat(NamedTuple):
    """Format of a program's logs. `read` yields memory events as JSON in a fixed order and in bounded memory, each with
    an id, so that a repeated import applies once. It drops nothing silently: an invalid message is yielded in a form
    that the decode step refuses with its reason."""

    name: str
    title: str
    recognises: Callable[[LogHead], bool]
    read: Callable[[LogFile, ImportScope], Iterator[bytes]]
    fields: tuple[str, ...] = ()  # JSON names by which an error suggests the nearest format


def _cut(value: Any, levels: int) -> Any:
    """Return a value without its deeper levels. The limit of an event is lower, so the event is still refused."""
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: _cut(item, levels - 1) for key, item in value.items()}
    return [_cut(item, levels - 1) for item in value] if isinstance(value, list) else value


def broken(where: str, problem: str, value: object = None) -> bytes:
    """Return an invalid record with a readable reason: it is not JSON, so the decode step refuses it."""
    quoted = "" if value is None else f": {_excerpt(value)}"
    return f"{where}: {problem}{quoted}".encode(errors="replace")


def _excerpt(value: object) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_CHARACTERS].decode(errors="replace")
    try:
        return json.dumps(value, ensure_ascii=False, default=str)[:_SHOWN_CHARACTERS]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that is nested too deeply"


def parse(text: bytes) -> Any:
    """Parse JSON, with replacement characters for invalid UTF-8; return other text as bytes."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return text


def field_of(value: object, name: str) -> Any:
    """Return a field of a parsed value; None if the value is no object or lacks the field."""
    return value.get(name) if isinstance(value, dict) else None


def text_of(value: object, name: str) -> str:
    """Return a text field, stripped; an empty text for other values."""
    return found.strip() if isinstance(found := field_of(value, name), str) else ""


def list_of(value: object, name: str) -> list[Any]:
    """Return a list field; an empty list for other values."""
    return found if isinstance(found := field_of(value, name), list) else []


def as_text(value: object) -> str:
    """Return a text or number as text, and "" for null. Other values may be nested too deeply: return their type."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value) if isinstance(value, int | float) else f"({type(value).__name__})"


def valid_id(text: object) -> str:
    """Return a valid id: control characters become spaces, and a digest replaces the end of a long text."""
    valid = _CONTROL.sub(" ", _without_surrogates(as_text(text))).strip()
    if valid and len(valid) <= _ID_CHARACTERS:
        return valid
    digest = hashlib.sha256(as_text(text).encode(errors="replace")).hexdigest()[:32]
    return f"{valid[: _ID_CHARACTERS - 33]}~{digest}"


def valid_name(*texts: object) -> str | None:
    """Return the first text that is not empty as a valid name; None without one."""
    for text in (_without_surrogates(text) for text in texts if isinstance(text, str)):
        if name := " ".join(_CONTROL.sub(" ", _INVISIBLE.sub("", text)).split()):
            return name[:_NAME_CHARACTERS]
    return None


def _without_surrogates(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def time_from_seconds(seconds: object) -> int | str | None:
    """Convert epoch seconds (number or digits) to an event time; None if there is none. Invalid values stay text."""
    if seconds is None or isinstance(seconds, bool) or seconds in ("", 0, "0"):
        return None
    written = as_text(seconds)[:_TIME_CHARACTERS]
    try:
        return wire_time(int(Decimal(written) * 1000)) if abs(Decimal(written)) < _SECONDS_BELOW else written
    except (ArithmeticError, ValueError):
        return written


def time_text(written: object) -> str | None:
    """Return a time as text, which the decode step checks; None if there is none."""
    return None if written in (None, "") else as_text(written)[:_TIME_CHARACTERS]


def file_name(path: str) -> str:
    """Return the last part of a path within a folder or an archive."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def has_file(head: LogHead, names: "re.Pattern[str]") -> bool:
    """Return whether a folder or an archive has a file with a matching name."""
    return any(names.fullmatch(file_name(member)) for member in head.members)


def exported_files(source: LogFile, names: "re.Pattern[str]", scope: ImportScope) -> list[LogFile]:
    """Return the files with matching names of a folder or an archive, and count its others; or the single file."""
    if not source.members:
        return [source]
    found = [member for member in source.members if names.fullmatch(file_name(member.name))]
    scope.leave_out(OTHER_FILE, len(source.members) - len(found))
    return found


def branch(parents: Mapping[str, object], leaf: object) -> list[str]:
    """Return the ids from the root of a message tree to a leaf. The path ends at a missing or repeated parent."""
    found: dict[str, None] = {}
    while isinstance(leaf, str) and leaf in parents and leaf not in found:
        found[leaf] = None
        leaf = parents[leaf]
    return [*reversed(found)]
