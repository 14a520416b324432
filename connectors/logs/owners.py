"""Fields of records that name the owner, the session, the speaker or the role.

The owner of a record is the person to whose memory it belongs. A reader takes the owner from the fields in OWNER_NAMES.
It refuses a log with another field that looks like a person, because several people could share one owner."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

# In order of preference. A display name is the owner only without an id.
OWNER_NAMES = (
    "user_id", "userid", "user", "user_uuid", "user_key", "username", "user_name", "user_email", "owner_id", "owner",
    "customer_id", "customer", "customer_name", "customer_email", "member_id", "member", "person_id", "person",
    "author_id",
)  # fmt: skip
SESSION_NAMES = (
    "session_id", "session", "conversation_id", "conversation", "thread_id", "thread", "chat_id", "chat", "channel_id",
    "channel", "room_id", "room",
)  # fmt: skip
SPEAKER_NAMES = ("name", "author", "author_name", "sender", "sender_name", "speaker", "speaker_name", "from", "who")
# Session fields of a message; its `channel` may mean something else.
_SESSION_ALIASES = ("session", "conversation", "thread", "chat_id", "channel_id", "room_id")
_ROLE_NAMES = (OWNER_NAMES, _SESSION_ALIASES, SPEAKER_NAMES)
ROLES: Mapping[str, str] = {
    "user": "user", "human": "user", "customer": "user",
    "assistant": "assistant", "ai": "assistant", "bot": "assistant", "chatbot": "assistant", "model": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "agent": "assistant",
    "function_call": "assistant",
    "system": "system", "tool": "tool", "function": "tool", "observation": "tool",
}  # fmt: skip
ZEP_ROLES = {"norole": "user", "ai": "assistant", "human": "user"}  # role of Zep's and LangChain's clients → our role

_PEOPLE = frozenset((
    "user", "customer", "member", "person", "author", "participant", "patient", "student", "employee", "subscriber",
    "visitor", "player", "sender", "speaker", "usuario", "usuário", "utente", "utilisateur", "benutzer", "nutzer",
    "gebruiker", "kunde", "klant", "cliente", "autor", "auteur", "autore", "absender",
    "afzender", "remitente", "remetente", "mittente", "expéditeur",
))  # fmt: skip
_PERSON_WORDS = _PEOPLE | frozenset((
    "owner", "account", "client", "agent", "actor", "contact", "email", "mail", "phone", "mobile", "tel", "telephone",
    "msisdn", "handle", "login", "nick", "nickname", "profile", "uid", "userid", "username", "usr", "guest",
    "recipient", "receiver", "from", "to", "by", "who", "people", "host", "operator", "caller", "callee",
    "participants", "users", "customers", "members",
))  # fmt: skip
_QUALIFIERS = frozenset((
    "id", "ids", "name", "uuid", "guid", "key", "hash", "no", "nr", "number", "address", "first", "last", "full",
    "display", "screen", "ref", "code", "external", "internal", "primary", "original", "reply", "in", "created",
    "posted", "written", "sent", "said", "message", "msg", "chat",
))  # fmt: skip
_NO_PERSON = frozenset(("user_agent", "reply_to", "reply_to_id", "in_reply_to", "reply_to_message_id"))
_NAME_CHARACTERS = 64  # longer keys have no role, and are not cached
_KEYS_MAX = 64  # limit of keys of a record whose roles are cached
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^\w]+")


@lru_cache(maxsize=10_000)
def snake_case(name: str) -> str:
    """Return a field name in lower case with underscores: `userId`, `User ID` and `user-id` are `user_id`."""
    return _WORD_ENDS.sub("_", name.strip()).casefold().strip("_")


class FieldRoles(NamedTuple):
    """Keys that may name owner, session and speaker, in order of preference, and keys that look like a person."""

    owners: tuple[str, ...]
    sessions: tuple[str, ...]
    speakers: tuple[str, ...]
    people: tuple[str, ...]


def field_roles(record: Mapping[str, object]) -> FieldRoles:
    """Return the roles of a record's keys: cached for few and short keys, because the records of a log repeat them."""
    keys = tuple(record)
    is_small = len(keys) <= _KEYS_MAX and max(map(len, keys), default=0) <= _NAME_CHARACTERS
    return _cached_roles(keys) if is_small else _roles(keys)


def _roles(keys: tuple[str, ...]) -> FieldRoles:
    by_name = {snake_case(key): key for key in reversed(keys) if len(key) <= _NAME_CHARACTERS}
    owners, sessions, speakers = (tuple(by_name[name] for name in names if name in by_name) for names in _ROLE_NAMES)
    return FieldRoles(owners, sessions, speakers, tuple(unclear_identities(keys)))


_cached_roles = lru_cache(maxsize=1_000)(_roles)


def first_named(record: Mapping[str, object], keys: tuple[str, ...]) -> str | None:
    """Return the first of the record's keys whose value is a text or a number."""
    return next((key for key in keys if is_scalar(record[key])), None)


def is_scalar(value: object) -> bool:
    """Return whether a value can be a name or an id: a text, empty or not, or a number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def identifier_text(value: object) -> object:
    """Return a whole number as text, in the form of event ids. A column with missing values may have 7.0 for 7."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if isinstance(value, int) or value.is_integer() else value


def unclear_identities(fields: Iterable[str], owner: str | None = None) -> list[str]:
    """Return the fields that look like a person. None of `fields` is an event field. If the field `owner` names the
    owner, only another kind of person counts: `customer` next to `user`, but not `user_email` or `account`."""
    people = _PERSON_WORDS if owner is None else _PEOPLE
    own = frozenset() if owner is None else _words(owner)
    found = []
    for field in (field for field in fields if len(field) <= _NAME_CHARACTERS and snake_case(field) not in _NO_PERSON):
        words = _words(field)
        # A name looks like a person if it has a word for people, and all its other words are qualifiers.
        if words & people and words <= _PERSON_WORDS | _QUALIFIERS and not words & own & _PERSON_WORDS:
            found.append(field)
    return found


def _words(name: str) -> frozenset[str]:
    return frozenset(snake_case(name).split("_"))
