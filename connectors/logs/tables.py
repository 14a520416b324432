"""Rows of any table as events: a column for each field, named by whoever brings the table, or guessed."""

from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, tzinfo
from decimal import Decimal
from typing import Any

import orjson

from recallflow.connectors.logs.documents import elements, first_objects, is_document, parsed, written_lines
from recallflow.connectors.logs.encoding import EVENT_BYTES, encoded
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope, start_of
from recallflow.connectors.logs.openai import Conversations
from recallflow.fields import written_time
from recallflow.parsing import EVENT_TYPES

Columns = Mapping[str, str]  # field of an event → column

FIELDS = (
    "content", "role", "name", "timestamp", "id", "session_id", "user_id", "tenant_id", "environment", "project_id",
)  # fmt: skip
# Field → columns that mean it, where nobody says which. The first that there is counts.
_GUESSES: Mapping[str, tuple[str, ...]] = {
    "content": ("content", "text", "message", "body", "utterance"),
    "role": ("role",),
    "name": ("name", "author", "sender", "speaker"),
    "timestamp": ("timestamp", "created_at", "create_time", "created", "time", "datetime", "date", "ts"),
    "id": ("id", "message_id"),
    "session_id": ("session_id", "conversation_id", "thread_id", "chat_id", "channel_id", "channel"),
    "user_id": ("user_id",),
    "tenant_id": ("tenant_id",),
    "environment": ("environment",),
    "project_id": ("project_id",),
}
_JSON_FIELDS = ("metadata", "entities", "relations", "derived_from")  # as `export` writes them into a column of text
# Below it a number is in the unit; ×1000 each: seconds until the year 5138, as milliseconds from 1973 on, and so on.
_UNITS = ((1e11, 1e3), (1e14, 1.0), (1e17, 1e-3))
_NANOSECONDS = 1e-6


def mapped(names: Mapping[str, str], columns: Columns) -> dict[str, str]:
    """Column → field, for the columns that there are (by their names): those that were named, and guesses. A column
    called like a field that another one fills has a name of its own: it would take that one's place."""
    found = {column: field for field, column in columns.items()}
    by_name = {name.casefold(): name for name in names}
    for field, guesses in _GUESSES.items():
        if field not in columns:
            for guess in guesses:
                if (name := by_name.get(guess)) is not None and name not in found:
                    found[name] = field
                    break
    filled = {*found.values()}
    return found | {name: f"{name} (column)" for name in names if name in filled and name not in found}


def row_events(
    row: dict[str, Any], fields: Mapping[str, str], number: int, scope: Scope, conversations: Conversations
) -> Iterator[bytes]:
    """The events of a row: one, or as many as there are in its `messages`. `fields`: column → field. A column that
    is called like a field which another column was named for stays beside it."""
    named = {*fields.values()}
    element = {
        fields.get(column, f"{column} (column)" if column in named else column): plain(value, scope.zone)
        for column, value in row.items()
        if value is not None
    }
    if "timestamp" in element:
        element["timestamp"] = _time(element["timestamp"])
    if element.get("type") in EVENT_TYPES:  # an event, as `export` writes it
        for field in _JSON_FIELDS:
            if isinstance(text := element.get(field), str):
                element[field] = parsed(text.encode())
        cleared = dict.fromkeys(element.pop("cleared", ()))
        yield encoded(scope, element | cleared)
        return
    if "messages" not in element:
        element.setdefault("role", "user")
    yield from conversations.events(element, number)


def plain(value: Any, zone: tzinfo) -> Any:
    """A value as JSON has it: times in RFC 3339 (`zone`: of those without one), bytes as text."""
    match value:
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=zone)).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal():
            return float(value)
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return {str(key): plain(item, zone) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, zone) for item in value]
        case str() | int() | float() | None:
            return value
    return str(value)


def _time(value: object) -> object:
    """An epoch in seconds, milli-, micro- or nanoseconds → milliseconds; a day → its midnight; texts stay."""
    if isinstance(value, str):
        return f"{value}T00:00:00Z" if len(value) == len("2024-01-01") and value[4:5] == "-" else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    factor = next((factor for limit, factor in _UNITS if abs(value) < limit), _NANOSECONDS)
    return written_time(round(value * factor)) if factor == _UNITS[0][1] else round(value * factor)


def _recognises(head: Head) -> bool:
    return bool(first_objects(head.start))


def lines_format(columns: Columns) -> LogFormat:
    """JSON lines, or a JSON array, of rows whose columns somebody named."""

    def read(source: LogSource, scope: Scope) -> Iterator[bytes]:
        conversations = Conversations(source.name, scope)
        with source.open() as file:
            as_document = is_document(start_of(file))
        with source.open() as file:
            for number, text in enumerate(elements(file) if as_document else written_lines(file), start=1):
                row = parsed(text)
                if isinstance(row, dict):
                    yield from row_events(row, mapped(row, columns), number, scope, conversations)
                else:
                    yield text[:EVENT_BYTES] if row is None else orjson.dumps(row)

    return LogFormat("rows", "JSON lines of rows, with --column", _recognises, read)
