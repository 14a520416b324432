"""Chat messages in OpenAI's shape: JSON lines, or one JSON document, of messages or of objects with `messages`.

A conversation that has no name is called after its log, so that those of two logs are two. A message that has no id
gets one of its conversation, its place and all that was said until then: a log that is read twice, or that grew, gives
its messages the ids that they had, and two logs of one name never give one id to two messages."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from recallflow.connectors.logs.building import identifier
from recallflow.connectors.logs.documents import elements, first_objects, is_document, members, parsed, written_lines
from recallflow.connectors.logs.encoding import EVENT_BYTES, encoded
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope, start_of
from recallflow.fields import written_time

_CONVERSATION_KEYS = ("conversation_id", "session_id", "thread_id")
_TIME_KEYS = ("timestamp", "created", "create_time", "created_at")
_OWNER_KEYS = ("tenant_id", "user_id", "environment")
_MESSAGE_KEYS = ("id", "type", "role", "content", "name", "metadata")
_PLACED = frozenset(_CONVERSATION_KEYS + _TIME_KEYS + _OWNER_KEYS + _MESSAGE_KEYS)
_SPOKEN_ELSEWHERE = ("tool_calls", "function_call", "refusal", "audio")  # such a message may have no content
_SECONDS_BELOW = 1e11  # as seconds the year 5138, as milliseconds 1973: below it, a time is in seconds


def _recognises(head: Head) -> bool:
    return any("messages" in one or "role" in one for one in first_objects(head.start))


def _read(source: LogSource, scope: Scope) -> Iterator[bytes]:
    conversations = Conversations(source.name, scope)
    with source.open() as file:
        start = start_of(file)
    as_document = is_document(start)
    if as_document and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        yield from _one_object(source, conversations)
        return
    with source.open() as file:
        for number, text in enumerate(elements(file) if as_document else written_lines(file), start=1):
            element = parsed(text)
            if element is None and not (as_document and text == b"null"):
                yield text[:EVENT_BYTES]
            else:
                yield from conversations.events(element, number)


class Conversations:
    """The conversations of a log, element by element."""

    def __init__(self, log: str, scope: Scope) -> None:
        """`log`: its name."""
        self._log, self._scope = log, scope
        self._bare = self.said()

    def events(self, element: object, number: int) -> Iterator[bytes]:
        """The events of an element of a log: a message, or a conversation with its messages."""
        if isinstance(element, dict) and "messages" in element:
            messages = element["messages"]
            conversation, said = self.named(element, number), self.said()
            for place, message in enumerate(messages if isinstance(messages, list) else [messages], start=1):
                yield said.event(message, conversation, place)
        else:  # a bare message: all of a file are one conversation unless they say otherwise
            yield self._bare.event(element, {"session_id": self._session(1)}, number)

    def named(self, element: dict[str, Any], number: int) -> dict[str, Any]:
        """What a conversation says of itself. `number`: its place in the log."""
        return _conversation(element, _given(element, ("id",), self._session(number)))

    def said(self) -> "Said":
        return Said(self._scope)

    def _session(self, number: int) -> str:
        return identifier(f"{self._log}-{number}")


class Said:
    """What was said in a conversation so far."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._digest = hashlib.blake2b(digest_size=8)

    def event(self, message: object, conversation: dict[str, Any], place: int) -> bytes:
        event = _event(message, conversation)
        self._digest.update(encoded(self._scope, event) + b"\n")
        if event.get("id") in (None, ""):
            event["id"] = identifier(f"{event['session_id']}-{place}-{self._digest.hexdigest()}")
        return encoded(self._scope, event)


def _one_object(source: LogSource, conversations: Conversations) -> Iterator[bytes]:
    """What is said of a conversation may stand behind messages without end, and so is read first."""
    with source.open() as file:
        fields = members(file, without=frozenset(("messages",)))
    if "role" in fields:
        yield from conversations.events(fields, 1)
        return
    conversation, said = conversations.named(fields, 1), conversations.said()
    with source.open() as file:
        for place, text in enumerate(elements(file, "messages"), start=1):
            message = parsed(text)
            if message is None and text != b"null":
                yield text[:EVENT_BYTES]
            else:
                yield said.event(message, conversation, place)


def _conversation(element: dict[str, Any], session_id: object) -> dict[str, Any]:
    """The event fields that a conversation gives to its messages, and a message to itself."""
    fields = {key: element[key] for key in _OWNER_KEYS if element.get(key) is not None}
    fields["session_id"] = _text_if_number(_given(element, _CONVERSATION_KEYS, session_id))
    time = _given(element, _TIME_KEYS)
    return fields if time is None else fields | {"timestamp": _time(time)}


def _given(element: dict[str, Any], keys: Iterable[str], default: object = None) -> object:
    """The first of the named fields that is not empty."""
    return next((element[key] for key in keys if element.get(key) not in (None, "")), default)


def _event(message: object, conversation: dict[str, Any]) -> dict[str, Any]:
    """A message event with the role as given: none is made up, so a message without one is rejected."""
    if not isinstance(message, dict):
        message = {"metadata": {"malformed": message}}
    fields = conversation | _conversation(message, conversation["session_id"])
    fields["id"] = _text_if_number(message.get("id"))
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


OPENAI = LogFormat("openai", "OpenAI chat messages (role and content, or messages)", _recognises, _read)
