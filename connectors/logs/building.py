"""Memory events made of what other programs' exports say.

An export holds what its program shows today: a message has the id that it has there, so that the next export of the
same account adds what is new. One that was edited comes as the message with the latest text and as an update to it: the
first import stores it once, and a later one, in which the message was edited since, gives the memory a new version.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson

from recallflow.connectors.logs.model import LogSource, Scope
from recallflow.fields import written_time

EVENT_BYTES = 1024 * 1024 + 1  # one more than an event may have, so that a cut line is still rejected as too large
_WRITTEN_LEVELS = 250  # orjson writes 254, and an event may have 200


def encode_event(scope: Scope, event: dict[str, Any]) -> bytes:
    """An event as JSON, of the scope's owner where it names none."""
    owned = {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "environment": scope.environment} | event
    try:
        return orjson.dumps(owned)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes, though it reads it
        return orjson.dumps(_cut(owned, _WRITTEN_LEVELS))


def _cut(value: Any, levels: int) -> Any:
    """What is nested deeper is left out: what stays is still too deep for an event, and refused as that."""
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: _cut(item, levels - 1) for key, item in value.items()}
    return [_cut(item, levels - 1) for item in value] if isinstance(value, list) else value


_ID_CHARACTERS, _NAME_CHARACTERS = 128, 512
_SHOWN_CHARACTERS = 500  # of what is broken
_TIME_CHARACTERS = 64
_REASON_CHARACTERS, _REASONS_MAX = 64, 100
_SECONDS_BELOW = 10**12  # beyond it no year has four digits
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_HALVES = re.compile("[\ud800-\udfff]")
_BESIDE = re.compile(r"[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+")  # marks of direction, and of no width

OTHER_FILE = "files of another kind"
EMPTY_FILE = "empty files"
EMPTY = "empty messages"
OTHER_BRANCH = "messages of other branches"


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a log. `time`: epoch milliseconds, or a text as the event takes it. `edited`: what tells this edit
    from others, and when it was."""

    id: str
    session: str
    role: object
    content: str
    time: int | str | None = None
    name: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    edited: tuple[str, int | str | None] | None = None


def message_events(scope: Scope, owner: str, said: Said) -> Iterator[bytes]:
    """The message, and the update that an edit makes."""
    event = {
        "type": "message",
        "id": identifier(said.id),
        "session_id": identifier(said.session),
        "role": said.role if isinstance(said.role, str) else None,
        "content": said.content,
        **({} if said.time is None else {"timestamp": said.time}),
        **({} if said.name is None else {"name": said.name}),
        **({"metadata": dict(said.metadata)} if said.metadata else {}),
    }
    yield encode_owned_event(scope, owner, event)
    if said.edited is not None:
        yield edit(scope, owner, identifier(said.id), said.edited, {"content": said.content})


def edit(
    scope: Scope, owner: str, memory_id: str, edited: tuple[str, int | str | None], changed: Mapping[str, object]
) -> bytes:
    """The update that an edit makes of a memory."""
    key, time = edited
    event = {"type": "memory.update", "id": identifier(f"{memory_id}~{key}"), "memory_id": memory_id, **changed}
    return encode_owned_event(scope, owner, event | ({} if time is None else {"timestamp": time}))


def encode_owned_event(scope: Scope, owner: str, event: Mapping[str, object]) -> bytes:
    """The event of an owner as JSON; of one that is too large, no more than shows that. Half of a pair of surrogates,
    which JSON can write and UTF-8 cannot, becomes a replacement character."""
    owned = {**event, "user_id": owner}
    try:
        return encode_event(scope, owned)[:EVENT_BYTES]
    except orjson.JSONEncodeError:
        try:
            written = json.dumps(owned, ensure_ascii=False, default=str)
        except RecursionError:
            return broken(str(event.get("id")), "is nested too deeply")
        return encode_event(scope, json.loads(_sound(written)))[:EVENT_BYTES]


def broken(where: str, what: str, value: object = None) -> bytes:
    """What cannot be understood: no JSON, so that it is refused, and a text that says what it was."""
    shown = "" if value is None else f": {_shown(value)}"
    return f"{where}: {what}{shown}".encode(errors="replace")


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_CHARACTERS].decode(errors="replace")
    try:
        return json.dumps(value, ensure_ascii=False, default=str)[:_SHOWN_CHARACTERS]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that is nested too deeply"


def lenient(text: bytes) -> Any:
    """JSON as other programs write it: bytes that are no UTF-8 and halves of surrogates become replacement characters.
    What is no JSON all the same stays bytes."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return text


def word(value: object) -> str:
    """A text or a number of a log as text, nothing for null. What is neither is told by its type alone: it may be
    nested deeper than Python writes."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value) if isinstance(value, int | float) else f"({type(value).__name__})"


def identifier(text: object) -> str:
    """An id as events take them: what is too long, or has no place in one, is told apart by its digest."""
    given = _CONTROL.sub(" ", _sound(word(text))).strip()
    if given and len(given) <= _ID_CHARACTERS:
        return given
    digest = hashlib.sha256(word(text).encode(errors="replace")).hexdigest()[:32]
    return f"{given[: _ID_CHARACTERS - 33]}~{digest}"


def author(text: object) -> str | None:
    """A name as events take them; None for what names nobody."""
    if not isinstance(text, str):
        return None
    return " ".join(_CONTROL.sub(" ", _BESIDE.sub("", _sound(text))).split())[:_NAME_CHARACTERS] or None


def _sound(text: str) -> str:
    return _HALVES.sub("\ufffd", text)


def epoch_ms(seconds: object) -> int | str | None:
    """Epoch seconds, as a number or in digits → a time as events take it; None for none, what is no time as a text."""
    if seconds is None or isinstance(seconds, bool) or seconds in ("", 0, "0"):
        return None
    written = word(seconds)[:_TIME_CHARACTERS]
    try:
        return written_time(int(Decimal(written) * 1000)) if abs(Decimal(written)) < _SECONDS_BELOW else written
    except (ArithmeticError, ValueError):
        return written


def stamp(written: object) -> str | None:
    """A time that is written as RFC 3339, for the decode step to judge; None for none."""
    return None if written in (None, "") else word(written)[:_TIME_CHARACTERS]


def leave_out(scope: Scope, reason: str, count: int = 1) -> None:
    """Counts what is not passed on. Some reasons are words of the log, which has no bound, and memory does."""
    shown = author(reason[:_REASON_CHARACTERS]) or "without a reason"
    known = shown in scope.skipped or len(scope.skipped) < _REASONS_MAX
    if count:
        scope.skipped[shown if known else "for other reasons"] += count


def exported(source: LogSource, names: "re.Pattern[str]", scope: Scope) -> list[LogSource]:
    """The files of an export that are called so, or the one file that was given alone; others are counted."""
    members = source.members()
    if not members:
        return [source]
    found = [member for member in members if names.fullmatch(file_name(member.name))]
    if others := len(members) - len(found):
        leave_out(scope, OTHER_FILE, others)
    return found


def file_name(path: str) -> str:
    """The last part of a path within a folder or an archive."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def branch(parents: Mapping[str, object], leaf: object) -> list[str]:
    """The ids from the root of a tree of messages to a leaf. It ends where a parent is missing, or comes again."""
    found: dict[str, None] = {}
    while isinstance(leaf, str) and leaf in parents and leaf not in found:
        found[leaf] = None
        leaf = parents[leaf]
    return [*reversed(found)]
