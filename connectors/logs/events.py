"""Memory events as they are: JSON lines, byte for byte, or a JSON array of them."""

from collections.abc import Iterator

from recallflow.connectors.lines import bounded_lines
from recallflow.connectors.logs.documents import elements, first_objects, is_document
from recallflow.connectors.logs.encoding import EVENT_BYTES
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope, start_of
from recallflow.parsing import EVENT_TYPES, unmarked


def _recognises(head: Head) -> bool:
    for one in first_objects(head.start):
        kind = one.get("type")
        if isinstance(kind, str) and kind in EVENT_TYPES:
            return True
        if "tenant_id" in one and "messages" not in one and "role" not in one:
            return True
    return False


def _read(source: LogSource, scope: Scope) -> Iterator[bytes]:  # noqa: ARG001 - events name their owners
    with source.open() as file:
        as_document = is_document(start_of(file))
    with source.open() as file:
        if as_document:
            yield from elements(file, most_bytes=EVENT_BYTES - 1)
            return
        for number, line in enumerate(bounded_lines(file, EVENT_BYTES)):
            yield line if number else unmarked(line)


EVENTS = LogFormat(
    "events",
    "JSON lines of memory events (with type and tenant_id)",
    _recognises,
    _read,
    fields=("type", "tenant_id", "user_id", "session_id", "environment", "project_id", "timestamp"),
)
