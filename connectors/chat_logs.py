"""Conversation logs as memory events: one JSON event a value, in file order.

| format | file | an event is |
|---|---|---|
| `events` | JSON lines of memory events | the line, byte for byte |
| `openai` | JSON lines or one JSON document of chat messages or of objects with `messages` | a message |
| `locomo` | one JSON document of LoCoMo samples | a turn |

Nothing in a log is dropped unseen: what cannot be read is passed on in a form that the decode step rejects
with its reason. Only a file that cannot be used at all is a `UsageError`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from recallflow.connectors.lines import bounded_lines
from recallflow.connectors.locomo import locomo_events
from recallflow.errors import UsageError
from recallflow.fields import written_time
from recallflow.parsing import EVENT_TYPES, unmarked, wrapping

EVENT_BYTES = 1024 * 1024 + 1  # one more than an event may have, so that a cut line is still rejected as too large
CONVERSATION_BYTES = 64 * 1024 * 1024  # a line of `openai` holds a whole conversation
_CHUNK_BYTES = 1024 * 1024
_SNIFFED_LINES = 20  # a log may start with broken lines; its format shows in the first good one

_UNDERSTOOD = (
    "understood are JSON lines of memory events (with type and tenant_id), "
    "OpenAI chat messages (role and content, or messages) and LoCoMo samples (sample_id and conversation)"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose the conversations are where the log names nobody."""

    tenant_id: str = "default"
    user_id: str = "user"
    environment: str = "prod"


class LogFormat(StrEnum):
    """How a conversation log is written."""

    EVENTS = "events"
    OPENAI = "openai"
    LOCOMO = "locomo"


def detect_format(path: Path) -> LogFormat:
    """The format of a log, from its content. Raises UsageError that says what was found and what is understood."""
    _check_usable(path)
    first = _first_line(path)
    ways = [_format_of_lines, _format_of_document]
    if first.startswith(b"["):  # only a document does; elsewhere lines come first, as a document is read whole
        ways.reverse()
    for way in ways:
        if found := way(path):
            return found
    raise UsageError(f"{path}: not a conversation log: starts with {_describe(first)}; {_UNDERSTOOD}")


def read_log(path: Path, scope: Scope, log_format: LogFormat | None = None, skip: int = 0) -> Iterator[bytes]:
    """The log's events as JSON, without the first `skip` of them.

    `events` and JSON lines of `openai` are streamed; documents are read whole. Raises UsageError at the call, not
    at the first value, if the file cannot be used.
    """
    return islice(_values(path, scope, log_format or detect_format(path)), skip, None)


def count_log(path: Path, scope: Scope | None = None, log_format: LogFormat | None = None) -> int:
    """How many values `read_log` yields. Counts line ends for `events`; other formats are read once to know."""
    log_format = log_format or detect_format(path)
    if log_format is LogFormat.EVENTS:
        return _count_lines(path)
    return sum(1 for _ in _values(path, scope or Scope(), log_format))


def _values(path: Path, scope: Scope, log_format: LogFormat) -> Iterator[bytes]:
    _check_usable(path)
    if log_format is LogFormat.EVENTS:
        return _unmarked_lines(path, EVENT_BYTES)
    if log_format is LogFormat.LOCOMO:
        samples = _document(path)
        if samples is None:
            raise UsageError(f"{path}: not one JSON document, as a LoCoMo file is; check that it is complete")
        return (_encode(scope, event) for event in locomo_events(samples))
    return _openai_values(scope, _openai_elements(path))


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_usable(path: Path) -> None:
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a directory; give the log files in it")
        if not path.exists():
            raise UsageError(f"{path}: no such file; check the path")
        if not path.is_file():
            raise UsageError(f"{path}: not a regular file; a log is read twice, so save it to a file first")
        with path.open("rb") as file:
            if not file.read(1):
                raise UsageError(f"{path}: empty; give a file that holds a conversation")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None


def _unmarked_lines(path: Path, limit_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file, limit_bytes)):
            yield line if number else unmarked(line)


def _count_lines(path: Path) -> int:
    _check_usable(path)
    count, last = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            count, last = count + chunk.count(b"\n"), chunk
    return count + (not last.endswith(b"\n"))


def _written_lines(path: Path) -> Iterator[bytes]:
    """Lines that hold more than white space, without a byte order mark."""
    return (line for line in _unmarked_lines(path, CONVERSATION_BYTES) if line.strip())


def _first_line(path: Path) -> bytes:
    """The first written line, or empty where all are blank."""
    return next(_written_lines(path), b"").lstrip()


def _parsed(text: bytes) -> object:
    """None for what is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _document(path: Path) -> list[Any] | None:
    """The file as one JSON array; an object counts as an array of one. None if it is neither."""
    value = _parsed(unmarked(path.read_bytes()))
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) else None


# ── which format ──────────────────────────────────────────────────────────────────────────────────────────────────


def _format_of(value: object) -> LogFormat | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if isinstance(kind, str) and kind in EVENT_TYPES:
        return LogFormat.EVENTS
    if "messages" in value:
        return LogFormat.OPENAI
    if "tenant_id" in value:
        return LogFormat.EVENTS
    if "role" in value:
        return LogFormat.OPENAI
    return LogFormat.LOCOMO if "conversation" in value and "sample_id" in value else None


def _format_of_lines(path: Path) -> LogFormat | None:
    return _first_format(_parsed(line) for line in islice(_written_lines(path), _SNIFFED_LINES))


def _format_of_document(path: Path) -> LogFormat | None:
    found = _first_format(islice(_document(path) or (), _SNIFFED_LINES))
    if found is LogFormat.EVENTS:
        raise UsageError(f"{path}: one JSON document of events; write one a line (for an array: jq -c '.[]')")
    return found


def _first_format(values: Iterable[object]) -> LogFormat | None:
    return next(filter(None, map(_format_of, values)), None)


def _describe(line: bytes) -> str:
    """What a file starts with, in a few words."""
    if not line:
        return "blank lines only"
    if wrong := wrapping(line):
        return f"what {wrong}"
    value = _parsed(line)
    if isinstance(value, dict):
        return f"a JSON object with the fields {', '.join(list(value)[:6]) or '(none)'}"
    return repr(line[:40].decode(errors="replace"))


# ── OpenAI chat messages ──────────────────────────────────────────────────────────────────────────────────────────

_CONVERSATION_KEYS = ("conversation_id", "session_id", "thread_id")
_TIME_KEYS = ("timestamp", "created", "create_time", "created_at")
_OWNER_KEYS = ("tenant_id", "user_id", "environment")
_MESSAGE_KEYS = ("id", "type", "role", "content", "name", "metadata")
_PLACED = frozenset(_CONVERSATION_KEYS + _TIME_KEYS + _OWNER_KEYS + _MESSAGE_KEYS)
_SPOKEN_ELSEWHERE = ("tool_calls", "function_call", "refusal", "audio")  # such a message may have no content
_WRITTEN_LEVELS = 250  # orjson writes 254, and an event may have 200
_SECONDS_BELOW = 1e11  # as seconds the year 5138, as milliseconds 1973: below it, a time is in seconds


def _openai_elements(path: Path) -> Iterator[object]:
    """Messages or conversations; a line that is not JSON stays bytes."""
    # An object that is complete in its line makes the file JSON lines: a file of gigabytes is not loaded to find out.
    document = None if isinstance(_parsed(_first_line(path)), dict) else _document(path)
    if document is not None:
        return iter(document)
    sniffed = islice(_written_lines(path), _SNIFFED_LINES)
    if not any(isinstance(_parsed(line), dict) for line in sniffed):
        raise UsageError(f"{path}: neither JSON lines nor one JSON document; check that it is complete")
    return (line if (value := _parsed(line)) is None else value for line in _written_lines(path))


def _openai_values(scope: Scope, elements: Iterable[object]) -> Iterator[bytes]:
    for number, element in enumerate(elements, start=1):
        if isinstance(element, bytes):
            yield element[:EVENT_BYTES]
        elif isinstance(element, dict) and "messages" in element:
            messages = element["messages"]
            conversation = _conversation(element, _given(element, ("id",), f"conversation-{number}"))
            for place, message in enumerate(messages if isinstance(messages, list) else [messages], start=1):
                yield _encode(scope, _openai_event(message, conversation, place))
        else:  # a bare message: all of a file are one conversation unless they say otherwise
            yield _encode(scope, _openai_event(element, {"session_id": "conversation-1"}, number))


def _conversation(element: dict[str, Any], session_id: object) -> dict[str, Any]:
    """The event fields that a conversation gives to its messages, and a message to itself."""
    fields = {key: element[key] for key in _OWNER_KEYS if element.get(key) is not None}
    fields["session_id"] = _text_if_number(_given(element, _CONVERSATION_KEYS, session_id))
    time = _given(element, _TIME_KEYS)
    return fields if time is None else fields | {"timestamp": _time(time)}


def _given(element: dict[str, Any], keys: Iterable[str], default: object = None) -> object:
    """The first of the named fields that is not empty."""
    return next((element[key] for key in keys if element.get(key) not in (None, "")), default)


def _openai_event(message: object, conversation: dict[str, Any], place: int) -> dict[str, Any]:
    """A message event with the role as given: none is made up, so a message without one is rejected."""
    if not isinstance(message, dict):
        message = {"metadata": {"malformed": message}}
    fields = conversation | _conversation(message, conversation["session_id"])
    fields["id"] = _text_if_number(_given(message, ("id",), f"{fields['session_id']}-{place}"))
    event = {"type": "message", **fields, "role": message.get("role")}
    if "content" in message or any(message.get(key) for key in _SPOKEN_ELSEWHERE):
        event["content"] = message.get("content")
    if message.get("name") is not None:
        event["name"] = message["name"]
    metadata = _metadata(message)
    return event if metadata == {} else event | {"metadata": metadata}


def _metadata(message: dict[str, Any]) -> object:
    """The message's own metadata with all fields that have no place in an event. One that is no object is rejected."""
    own = message.get("metadata")
    rest = {key: value for key, value in message.items() if key not in _PLACED}
    return (own or {}) | rest if own is None or isinstance(own, dict) else own


def _time(value: object) -> object:
    """Epoch seconds → epoch milliseconds; milliseconds and texts stay as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= _SECONDS_BELOW:
        return value
    return written_time(round(value * 1000))


def _text_if_number(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _encode(scope: Scope, event: dict[str, Any]) -> bytes:
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
