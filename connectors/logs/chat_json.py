"""Chat messages in JSON: OpenAI's format, ShareGPT's and LoCoMo's.

OpenAI's format is JSON lines, or one JSON document, of messages or of objects with `messages`. ShareGPT's conversations
have other field names: `{"id", "conversations": [{"from": "human" | "gpt", "value"}]}`.

A conversation belongs to the person in a field (`user`, `user_id`, `customer`, …, also in `metadata`), or else to the
default owner. A log without such fields is refused if different people speak in its conversations.

A conversation without a name is named after its log, so that two logs do not share conversations. A message without an
id gets one from its conversation, its index and all earlier messages: a repeated or grown log keeps its ids, and two
logs of one name never share an id.

LoCoMo's samples have two people and many sessions:

    [{"sample_id": "conv-1", "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023",
                                              "session_1": [{"speaker", "dia_id", "text", "blip_caption"?}]}}]"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from recallflow.connectors.logs import owners
from recallflow.connectors.logs.documents import elements, first_objects, is_document, members, parsed, records
from recallflow.connectors.logs.log_format import EVENT_BYTES, ImportScope, LogFormat, as_text, field_of, valid_id
from recallflow.connectors.logs.sources import LogFile
from recallflow.errors import UsageError
from recallflow.fields import wire_time

_SHAREGPT_LISTS = ("conversations", "conversation", "items")  # ShareGPT's names of the messages of a conversation
_CONVERSATION_KEYS = ("session_id", "conversation_id", "thread_id")
_TIME_KEYS = ("timestamp", "created", "create_time", "created_at")
_TENANT_KEYS = ("tenant_id", "environment")
_MESSAGE_KEYS = ("id", "type", "role", "content", "name", "metadata")
_EVENT_FIELDS = frozenset(("user_id", *_CONVERSATION_KEYS, *_TIME_KEYS, *_TENANT_KEYS, *_MESSAGE_KEYS))
_SHAREGPT = ("from", "value")  # ShareGPT's names of role and content
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})
_CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "audio")  # such a message may have no content
_SECONDS_BELOW = 1e11  # a smaller time is in seconds: the limit is the year 5138 in seconds, 1973 in milliseconds


def messages_field(one: dict[str, Any]) -> str | None:
    """Return the field that holds the messages of a conversation."""
    if "messages" in one or "role" in one:
        return "messages" if "messages" in one else None
    return next((name for name in _SHAREGPT_LISTS if _holds_messages(one.get(name))), None)


def _holds_messages(items: object) -> bool:
    first = items[0] if isinstance(items, list) and items else None
    return isinstance(first, dict) and any({*names} <= first.keys() for names in (_SHAREGPT, ("role", "content")))


def _read_openai(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    start = source.start()
    first = first_objects(start)
    has_owners = any(owner_of(one, owners.field_roles(one)) for one in first)
    conversations = Conversations(source.name, scope, has_owners=has_owners, is_table=False)
    as_document = is_document(start)
    if as_document and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        name = next(filter(None, map(messages_field, first)), "messages")
        fields = members(source, without=name)  # read first, because they may follow any number of messages
        if "role" in fields:
            yield from conversations.events(fields, 1)
        else:
            yield from conversations.conversation_events(fields, 1, map(_parsed_or_cut, elements(source, name)))
        return
    for number, text in enumerate(records(source, as_document=as_document), start=1):
        element = _parsed_or_cut(text)
        if isinstance(element, bytes) or (element is None and not as_document):
            yield text[:EVENT_BYTES]
        else:
            yield from conversations.events(element, number)


def _parsed_or_cut(text: bytes) -> object:
    """Return parsed JSON. Return other text as bytes, cut above the limit of an event, to be refused."""
    value = parsed(text)
    return text[:EVENT_BYTES] if value is None and text != b"null" else value


_new_digest = partial(hashlib.blake2b, digest_size=8)


class Conversations:
    """Encoder of the conversations and messages of one log."""

    def __init__(self, name: str, scope: ImportScope, *, has_owners: bool = False, is_table: bool = True) -> None:
        """`name` is the log's. In a log with owners (`has_owners`), a record without an owner is refused.
        `is_table`: the keys of the elements are event fields already, and their owners were checked."""
        self._name, self.scope, self._has_owners, self._is_table = name, scope, has_owners, is_table
        self._first_speaker: tuple[str, object] | None = None
        self._digest = _new_digest()  # of the messages outside of conversations

    def events(self, element: object, number: int) -> Iterator[bytes]:
        """Yield the events of an element: a message, or a conversation with its messages."""
        if isinstance(element, dict) and (name := messages_field(element)) is not None:
            messages = element[name]
            yield from self.conversation_events(element, number, messages if isinstance(messages, list) else [messages])
        else:  # messages outside of conversations form one conversation, unless a field names theirs
            yield self._event(element, {"session_id": self._session(1)}, number, self._digest)

    def conversation_events(self, fields: dict[str, Any], number: int, messages: Iterable[object]) -> Iterator[bytes]:
        """Yield the events of the log's conversation `number`. Invalid messages are bytes: yield them unchanged."""
        roles, digest = None if self._is_table else owners.field_roles(fields), _new_digest()
        conversation = self._fields(fields, _first_filled(fields, ("id",), self._session(number)), roles)
        if roles is not None and roles.people:
            self._check_owner(fields, roles, ())
        for index, message in enumerate(messages, start=1):
            yield message if isinstance(message, bytes) else self._event(message, conversation, index, digest)

    def _fields(self, element: dict[str, Any], session_id: object, roles: owners.FieldRoles | None) -> dict[str, Any]:
        """Return the event fields that a conversation passes to its messages, or the fields of a message. `roles` are
        the roles of its keys; None for the row of a table."""
        fields = {key: element[key] for key in _TENANT_KEYS if element.get(key) is not None}
        owner = element.get("user_id") if roles is None else owner_of(element, roles)
        if owner is not None and not self.scope.user_given:
            self._has_owners = self._has_owners or roles is not None
            fields["user_id"] = owner
        if roles is not None and roles.sessions and (alias := owners.first_named(element, roles.sessions)) is not None:
            session_id = element[alias]
        fields["session_id"] = owners.identifier_text(_first_filled(element, _CONVERSATION_KEYS, session_id))
        time = _first_filled(element, _TIME_KEYS)
        return fields if time is None else fields | {"timestamp": _milliseconds(time)}

    def _message_fields(
        self, message: dict[str, Any], conversation: dict[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the event fields of a message in a conversation, and the key of its speaker."""
        roles = None if self._is_table else owners.field_roles(message)
        fields = conversation | self._fields(message, conversation["session_id"], roles)
        if roles is None:
            return fields, "name" if message.get("name") is not None else None
        if roles.people and ("user_id" not in fields or owners.first_named(message, roles.owners)):
            self._check_owner(message, roles, roles.speakers)
        return fields, owners.first_named(message, roles.speakers)

    def _check_owner(self, element: dict[str, Any], roles: owners.FieldRoles, used: tuple[str, ...]) -> None:
        """Raise UsageError where an unused field looks like the owner."""
        if self.scope.user_given:
            return
        owner = owners.first_named(element, roles.owners)
        people = roles.people if owner is None else owners.unclear_identities(roles.people, owner)
        if unclear := [key for key in people if key not in used and element[key] not in _EMPTY_VALUES]:
            raise UsageError(
                f"{self._name}: whose is a conversation? {', '.join([*filter(None, [owner]), *unclear])} may be "
                "its owner. Call that field user_id, or give --user NAME for one owner of all"
            )

    def _with_owner(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event. Raise UsageError where people of two conversations would share the default owner."""
        if self.scope.user_given or event.get("user_id") is not None:
            return event
        if self._has_owners:
            return event | {"user_id": ""}  # refused: the record belongs to a person that the log does not name
        name, session = event.get("name"), event["session_id"]
        if event["role"] == "user" and isinstance(name, str):
            first, first_session = self._first_speaker = self._first_speaker or (name, session)
            if name != first and session != first_session:
                raise UsageError(
                    f"{self._name}: {first!r} and {name!r} speak in two conversations; whose memories are they? Name "
                    "each one's owner in a field or column user_id, or give --user NAME for one owner of all"
                )
        return event

    def _session(self, number: int) -> str:
        return valid_id(f"{self._name}-{number}")

    def _event(self, message: object, conversation: dict[str, Any], index: int, digest: "hashlib.blake2b") -> bytes:
        """Return the event of a message, and add it to `digest`, which holds the conversation's earlier messages."""
        event = self._with_owner(self._message(message, conversation))
        digest.update(self.scope.encode_event(event) + b"\n")
        if event.get("id") in (None, ""):
            event["id"] = valid_id(f"{as_text(event['session_id'])}-{index}-{digest.hexdigest()}")
        return self.scope.encode_event(event)

    def _message(self, message: object, conversation: dict[str, Any]) -> dict[str, Any]:
        """Return a message as an event. The decode step refuses one without a role."""
        if not isinstance(message, dict):
            message = {"metadata": {"malformed": message}}
        if "role" not in message and _SHAREGPT[0] in message and _SHAREGPT[1] in message:
            message = _from_sharegpt(message)
        fields, speaker = self._message_fields(message, conversation)
        fields["id"] = owners.identifier_text(message.get("id"))
        event = {"type": "message", **fields, "role": message.get("role")}
        if "content" in message or any(message.get(key) for key in _CONTENT_SUBSTITUTES):
            event["content"] = message.get("content")
        if speaker is not None:
            event["name"] = message[speaker]
        metadata = _metadata(message, speaker)
        return event if metadata == {} else event | {"metadata": metadata}


def owner_of(element: dict[str, Any], roles: owners.FieldRoles) -> object:
    """Return the owner that a conversation or a message names, also in its `metadata`."""
    if roles.owners and (name := owners.first_named(element, roles.owners)) is not None:
        return owners.identifier_text(element[name])
    about = element.get("metadata")
    if isinstance(about, dict) and (name := owners.first_named(about, owners.field_roles(about).owners)) is not None:
        return owners.identifier_text(about[name])
    return element.get("user_id")


def _from_sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in message.items() if key not in _SHAREGPT}
    role, content = (message[name] for name in _SHAREGPT)
    standard_role = owners.ROLES.get(role.casefold(), role) if isinstance(role, str) else role
    return rest | {"role": standard_role, "content": content}


def _first_filled(element: dict[str, Any], keys: Iterable[str], default: object = None) -> object:
    """Return the first of the named fields that is not empty."""
    return next((element[key] for key in keys if element.get(key) not in (None, "")), default)


def _metadata(message: dict[str, Any], speaker: str | None) -> object:
    """Return the metadata, with the other fields of a message. The decode step refuses metadata that is no object."""
    own = message.get("metadata")
    rest = {key: value for key, value in message.items() if key not in _EVENT_FIELDS and key != speaker}
    return (own or {}) | rest if own is None or isinstance(own, dict) else own


def _milliseconds(value: object) -> object:
    """Convert epoch seconds to milliseconds; milliseconds and texts stay."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= _SECONDS_BELOW:
        return value
    return wire_time(round(value * 1000))


OPENAI = LogFormat(
    "openai",
    "OpenAI chat messages (role and content, or messages)",
    lambda head: any("messages" in one or "role" in one for one in first_objects(head.start)),
    _read_openai,
    fields=("messages", "role", "content", "tool_calls", "model", "choices"),
)
SHAREGPT = LogFormat(
    "sharegpt",
    "ShareGPT conversations (from and value)",
    lambda head: any(messages_field(one) not in (None, "messages") for one in first_objects(head.start)),
    _read_openai,
    fields=("conversations", "items", "from", "value"),
)


_SESSION = re.compile(r"session_(\d+)")


def _read_locomo(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    """Yield the events sample by sample, session by session in numeric order, turn by turn."""
    for text in elements(source):
        sample = _parsed_or_cut(text)
        if isinstance(sample, bytes):
            yield sample
        else:
            yield from map(scope.encode_event, _sample_events(sample, scope))


def _sample_events(sample: object, scope: ImportScope) -> Iterator[dict[str, Any]]:
    conversation = field_of(sample, "conversation")
    if not isinstance(sample, dict) or not isinstance(conversation, dict):
        yield _malformed({}, sample)
        return
    # Without `--user`, a sample without a name has no owner, and its events are refused.
    owner = {} if scope.user_given and "sample_id" not in sample else {"user_id": sample.get("sample_id")}
    matches = filter(None, map(_SESSION.fullmatch, conversation))
    for number, session in sorted((int(match[1]), match[0]) for match in matches):
        written = conversation.get(f"{session}_date_time")
        time = {} if written is None else {"timestamp": _locomo_time(written)}
        yield from _turns({**owner, "session_id": session, **time}, number, conversation[session])


def _locomo_time(written: object) -> object:
    """Convert `1:56 pm on 8 May, 2023` to RFC 3339 in UTC. Other values stay, and are refused as timestamps."""
    try:
        return datetime.strptime(str(written), "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return written


def _turns(fields: dict[str, Any], number: int, turns: object) -> Iterator[dict[str, Any]]:
    if not isinstance(turns, list):
        yield _malformed(fields, turns)
        return
    for index, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            yield _malformed(fields, turn)
            continue
        message = {"type": "message", "id": turn.get("dia_id", f"D{number}:{index}"), **fields, "role": "user"}
        yield message | {"name": turn.get("speaker")} | _turn_content(turn)


def _turn_content(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the content: the text and the caption of the image; no field if the turn has neither."""
    text, caption = turn.get("text"), turn.get("blip_caption")
    if not caption:
        return {"content": text} if text is not None else {}
    image = f"[image: {caption}]"
    return {"content": f"{text} {image}" if text else image}


def _malformed(fields: dict[str, Any], value: object) -> dict[str, Any]:
    return {"type": "message", **fields, "role": None, "metadata": {"malformed": value}}


LOCOMO = LogFormat(
    "locomo",
    "LoCoMo samples (sample_id and conversation)",
    lambda head: any("conversation" in one and "sample_id" in one for one in first_objects(head.start)),
    _read_locomo,
    fields=("sample_id", "conversation", "speaker_a", "speaker_b", "dia_id", "qa"),
)
