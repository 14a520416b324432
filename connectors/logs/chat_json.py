"""Chat messages in JSON: OpenAI's format, ShareGPT's and LoCoMo's.

OpenAI's format is JSON lines, or one JSON document, of messages or of objects with `messages`. ShareGPT's conversations
have other field names: `{"id", "conversations": [{"from": "human" | "gpt", "value"}]}`.

A conversation belongs to the person that it names (`user`, `user_id`, `customer`, …, also in `metadata`), or else to
the default owner. A log without owners whose conversations have different people is refused.

A conversation without a name is named after its log, so that two logs do not share conversations. A message without an
id gets one from its conversation, its index and all earlier messages: a repeated or grown log keeps its ids, and two
logs of one name never share an id.

LoCoMo's samples have two people and many sessions:

    [{"sample_id": "conv-1", "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023",
                                              "session_1": [{"speaker", "dia_id", "text", "blip_caption"?}]}}]

Invalid data becomes an invalid event, which is refused with its wrong fields, and never left out."""

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

_SHARED_LISTS = ("conversations", "conversation", "items")  # ShareGPT's names of the messages of a conversation
_CONVERSATION_KEYS = ("session_id", "conversation_id", "thread_id")
_TIME_KEYS = ("timestamp", "created", "create_time", "created_at")
_OWNER_KEYS = ("tenant_id", "environment")
_MESSAGE_KEYS = ("id", "type", "role", "content", "name", "metadata")
_PLACED = frozenset(("user_id", *_CONVERSATION_KEYS, *_TIME_KEYS, *_OWNER_KEYS, *_MESSAGE_KEYS))
_SHARED = ("from", "value")  # ShareGPT's names of role and content
_NOTHING: tuple[object, ...] = (None, "", [], {})
_SPOKEN_ELSEWHERE = ("tool_calls", "function_call", "refusal", "audio")  # such a message may have no content
_SECONDS_BELOW = 1e11  # a smaller time is in seconds: the limit is the year 5138 in seconds, 1973 in milliseconds


def listed(one: dict[str, Any]) -> str | None:
    """Return the field that holds the messages of a conversation."""
    if "messages" in one or "role" in one:
        return "messages" if "messages" in one else None
    return next((name for name in _SHARED_LISTS if _holds_messages(one.get(name))), None)


def _holds_messages(items: object) -> bool:
    first = items[0] if isinstance(items, list) and items else None
    return isinstance(first, dict) and any({*names} <= first.keys() for names in (_SHARED, ("role", "content")))


def _read_openai(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    start = source.start()
    first = first_objects(start)
    owned = any(owner_of(one, owners.field_roles(one)) for one in first)
    conversations = Conversations(source.name, scope, owned=owned, is_table=False)
    as_document = is_document(start)
    if as_document and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        yield from _one_object(source, conversations, next(filter(None, map(listed, first)), "messages"))
        return
    for number, text in enumerate(records(source, as_document=as_document), start=1):
        element = parsed(text)
        if element is None and not (as_document and text == b"null"):
            yield text[:EVENT_BYTES]
        else:
            yield from conversations.events(element, number)


new_digest = partial(hashlib.blake2b, digest_size=8)


class Conversations:
    def __init__(self, log: str, scope: ImportScope, *, owned: bool = False, is_table: bool = True) -> None:
        """`log` is the log's name. `owned` tells whether it names owners, so that a record without one is refused;
        `is_table` whether its columns were checked and mapped."""
        self._log, self.scope, self._owned, self._is_table = log, scope, owned, is_table
        self._first_speaker: tuple[str, object] | None = None
        self._bare = new_digest()

    def events(self, element: object, number: int) -> Iterator[bytes]:
        """Yield the events of an element: a message, or a conversation with its messages."""
        if isinstance(element, dict) and (name := listed(element)) is not None:
            messages = element[name]
            conversation, digest = self.named(element, number), new_digest()
            for place, message in enumerate(messages if isinstance(messages, list) else [messages], start=1):
                yield self.event(message, conversation, place, digest)
        else:  # a bare message: those of a file are one conversation unless they name others
            yield self.event(element, {"session_id": self._session(1)}, number, self._bare)

    def named(self, element: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the fields of a conversation. `number` is its index in the log."""
        roles = None if self._is_table else owners.field_roles(element)
        fields = self.fields(element, _given(element, ("id",), self._session(number)), roles)
        if roles is not None and roles.people:
            self._check_owner(element, roles, ())
        return fields

    def fields(
        self, element: dict[str, Any], session_id: object, roles: owners.FieldRoles | None = None
    ) -> dict[str, Any]:
        """Return the event fields that a conversation passes to its messages, or the fields of a message. `roles` are
        the roles of its keys, empty for a table's row, whose columns were mapped."""
        fields = {key: element[key] for key in _OWNER_KEYS if element.get(key) is not None}
        owner = element.get("user_id") if roles is None else owner_of(element, roles)
        if owner is not None and not self.scope.user_given:
            self._owned = self._owned or roles is not None
            fields["user_id"] = owner
        if roles is not None and roles.sessions and (alias := owners.first_named(element, roles.sessions)) is not None:
            session_id = element[alias]
        fields["session_id"] = owners.identifier_text(_given(element, _CONVERSATION_KEYS, session_id))
        time = _given(element, _TIME_KEYS)
        return fields if time is None else fields | {"timestamp": _time(time)}

    def _message_fields(
        self, message: dict[str, Any], conversation: dict[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the event fields of a message in a conversation, and the key of its speaker."""
        roles = None if self._is_table else owners.field_roles(message)
        fields = conversation | self.fields(message, conversation["session_id"], roles)
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
        if unclear := [key for key in people if key not in used and element[key] not in _NOTHING]:
            raise UsageError(
                f"{self._log}: whose memory is a conversation? {', '.join([*filter(None, [owner]), *unclear])} may say "
                "it. Call it user_id, or give --user NAME for one owner of all"
            )

    def _checked(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event. Raise UsageError where people of two conversations would share the default owner."""
        if self.scope.user_given or event.get("user_id") is not None:
            return event
        if self._owned:
            return event | {"user_id": ""}  # refused: the record belongs to a person that the log does not name
        name, session = event.get("name"), event["session_id"]
        if event["role"] == "user" and isinstance(name, str):
            first, first_session = self._first_speaker = self._first_speaker or (name, session)
            if name != first and session != first_session:
                raise UsageError(
                    f"{self._log}: {first!r} and {name!r} speak in two conversations; whose memories are they? Name "
                    "each one's owner in a field or column user_id, or give --user NAME for one owner of all"
                )
        return event

    def _session(self, number: int) -> str:
        return valid_id(f"{self._log}-{number}")

    def event(self, message: object, conversation: dict[str, Any], place: int, digest: "hashlib.blake2b") -> bytes:
        """Return the event of a message. `digest` is that of the conversation's earlier messages."""
        event = self._checked(self._event(message, conversation))
        digest.update(self.scope.encode_event(event) + b"\n")
        if event.get("id") in (None, ""):
            event["id"] = valid_id(f"{as_text(event['session_id'])}-{place}-{digest.hexdigest()}")
        return self.scope.encode_event(event)

    def _event(self, message: object, conversation: dict[str, Any]) -> dict[str, Any]:
        """Return a message event with the given role. A message without a role is refused later."""
        if not isinstance(message, dict):
            message = {"metadata": {"malformed": message}}
        if "role" not in message and _SHARED[0] in message and _SHARED[1] in message:
            message = _unshared(message)
        fields, speaker = self._message_fields(message, conversation)
        fields["id"] = owners.identifier_text(message.get("id"))
        event = {"type": "message", **fields, "role": message.get("role")}
        if "content" in message or any(message.get(key) for key in _SPOKEN_ELSEWHERE):
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


def _unshared(message: dict[str, Any]) -> dict[str, Any]:
    """Return a ShareGPT message under OpenAI's names."""
    rest = {key: value for key, value in message.items() if key not in _SHARED}
    role, content = (message[name] for name in _SHARED)
    known = owners.ROLES.get(role.casefold(), role) if isinstance(role, str) else role
    return rest | {"role": known, "content": content}


def _one_object(source: LogFile, conversations: Conversations, name: str) -> Iterator[bytes]:
    """Read the fields of a conversation first, because they may follow any number of messages."""
    fields = members(source, without=name)
    if "role" in fields:
        yield from conversations.events(fields, 1)
        return
    conversation, digest = conversations.named(fields, 1), new_digest()
    for place, text in enumerate(elements(source, name), start=1):
        message = parsed(text)
        if message is None and text != b"null":
            yield text[:EVENT_BYTES]
        else:
            yield conversations.event(message, conversation, place, digest)


def _given(element: dict[str, Any], keys: Iterable[str], default: object = None) -> object:
    """Return the first of the named fields that is not empty."""
    return next((element[key] for key in keys if element.get(key) not in (None, "")), default)


def _metadata(message: dict[str, Any], speaker: str | None) -> object:
    """Return the metadata with all other fields of a message. Metadata that is no object is refused later."""
    own = message.get("metadata")
    rest = {key: value for key, value in message.items() if key not in _PLACED and key != speaker}
    return (own or {}) | rest if own is None or isinstance(own, dict) else own


def _time(value: object) -> object:
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
    lambda head: any(listed(one) not in (None, "messages") for one in first_objects(head.start)),
    _read_openai,
    fields=("conversations", "items", "from", "value"),
)


_SESSION = re.compile(r"session_(\d+)")
_TIME = "%I:%M %p on %d %B, %Y"


def _read_locomo(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    """Yield the events sample by sample, session by session in numeric order, turn by turn."""
    for text in elements(source):
        sample = parsed(text)
        if sample is None and text != b"null":
            yield text[:EVENT_BYTES]
        else:
            yield from (scope.encode_event(event) for event in _events(sample, scope))


def _events(sample: object, scope: ImportScope) -> Iterator[dict[str, Any]]:
    conversation = field_of(sample, "conversation")
    if not isinstance(sample, dict) or not isinstance(conversation, dict):
        yield _misfit({}, sample)
        return
    # Without a name, none of several samples belongs to the default owner: its events have no owner, and are refused.
    owner = {} if scope.user_given and "sample_id" not in sample else {"user_id": sample.get("sample_id")}
    found = ((_SESSION.fullmatch(key), key) for key in conversation)
    for number, session in sorted((int(match[1]), key) for match, key in found if match):
        written = conversation.get(f"{session}_date_time")
        time = {} if written is None else {"timestamp": _locomo_time(written)}
        yield from _turns({**owner, "session_id": session, **time}, number, conversation[session])


def _locomo_time(written: object) -> object:
    """Convert `1:56 pm on 8 May, 2023` to RFC 3339 in UTC. Other values stay, and are refused as timestamps."""
    try:
        return datetime.strptime(str(written), _TIME).replace(tzinfo=UTC).isoformat()
    except ValueError:
        return written


def _turns(fields: dict[str, Any], number: int, turns: object) -> Iterator[dict[str, Any]]:
    if not isinstance(turns, list):
        yield _misfit(fields, turns)
        return
    for place, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            yield _misfit(fields, turn)
            continue
        message = {"type": "message", "id": turn.get("dia_id", f"D{number}:{place}"), **fields, "role": "user"}
        yield message | {"name": turn.get("speaker")} | _content(turn)


def _content(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the text and the caption of the image; an empty content if the turn has neither."""
    text, caption = turn.get("text"), turn.get("blip_caption")
    if not caption:
        return {"content": text} if text is not None else {}
    image = f"[image: {caption}]"
    return {"content": f"{text} {image}" if text else image}


def _misfit(fields: dict[str, Any], value: object) -> dict[str, Any]:
    return {"type": "message", **fields, "role": None, "metadata": {"malformed": value}}


LOCOMO = LogFormat(
    "locomo",
    "LoCoMo samples (sample_id and conversation)",
    lambda head: any("conversation" in one and "sample_id" in one for one in first_objects(head.start)),
    _read_locomo,
    fields=("sample_id", "conversation", "speaker_a", "speaker_b", "dia_id", "qa"),
)
