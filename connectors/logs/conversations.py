"""What exports of chats with an assistant share: `conversations.json`, alone or in a zip beside other files."""

import re
from collections.abc import Callable, Iterator, Set
from typing import Any

from recallflow.connectors.logs.building import exported, file_name, lenient
from recallflow.connectors.logs.documents import elements, first_objects
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
    source: LogSource, scope: Scope, events_of: Callable[[Any, Scope, str], Iterator[bytes]]
) -> Iterator[bytes]:
    """The events of one conversation after the other, each of which is told where it stands."""
    for file in exported(source, _FILE, scope):
        with file.open() as opened:
            for number, text in enumerate(elements(opened), start=1):
                yield from events_of(lenient(text), scope, f"{file.name}, conversation {number}")
