"""What exports of chats with an assistant share: `conversations.json`, alone or in a zip beside other files."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from recallflow.connectors.logs.building import broken, exported, file_name, identifier, lenient
from recallflow.connectors.logs.documents import EACH, elements, first_objects, placed_elements
from recallflow.connectors.logs.model import Head, LogSource, Scope

_FILE = re.compile(r"conversations(-\d+)?\.json")


def holds_conversations(head: Head, beside: Set[str], field: str, kind: type[object]) -> bool:
    """Whether it is an export of the program that has one of the files `beside` in its archives, and in each of its
    conversations a `field` of that `kind`."""
    if head.members:
        names = {file_name(name) for name in head.members}
        return any(map(_FILE.fullmatch, names)) and bool(names & beside)
    return any(isinstance(one.get(field), kind) for one in first_objects(head.start))


def each_conversation(
    source: LogSource,
    scope: Scope,
    events_of: Callable[[Any, Scope, str, str], Iterator[bytes]],
    account_field: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[bytes]:
    """The events of one conversation after the other, each with its owner and where it stands.

    An export of one account is the default owner's. In that of an organisation each account is an owner of its own, by
    its name in `names` or else by its id; a conversation without one is refused.
    """
    files = exported(source, _FILE, scope)
    is_shared = not scope.user_given and _has_several(files, account_field)
    for file in files:
        with file.open() as opened:
            for number, text in enumerate(elements(opened), start=1):
                conversation, where = lenient(text), f"{file.name}, conversation {number}"
                account = _account(conversation, account_field) if is_shared else ""
                if is_shared and not account:
                    yield broken(where, f"has no {account_field}, in an export of several", conversation)
                else:
                    owner = identifier(names.get(account, account)) if is_shared else scope.user_id
                    yield from events_of(conversation, scope, owner, where)


def _has_several(files: Sequence[LogSource], field: str) -> bool:
    """Whether conversations of more than one account are in the files. Reads no more of them than it has to."""
    first = ""
    for file in files:
        with file.open() as opened:
            for _, text in placed_elements(opened, EACH, field):
                account = _account(lenient(text), field)
                first = first or account
                if account not in ("", first):
                    return True
    return False


def _account(value: object, field: str) -> str:
    """The id of an account, or of the account of a conversation."""
    if isinstance(value, dict):
        value = value.get(field, value)
    found = value.get("uuid") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""
