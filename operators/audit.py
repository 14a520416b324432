"""Entries of the access log, for answers, refusals and erasures."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from recallflow.credentials import contains_credential
from recallflow.errors import InvalidRecord
from recallflow.events import PRODUCTION, UserErase
from recallflow.fields import Identifier, format_time
from recallflow.operators.events import Ask, Decoded, Refused, Write, key_of
from recallflow.outputs import AuditEntry, AuditRecord
from recallflow.parsing import raw_event
from recallflow.responses import Response

OUTPUT_NUMBER = 20  # of an entry; unique among the outputs of its record
ACCESS_CODES = ("unauthenticated", "forbidden")  # error codes of unauthorised senders
_IDS: TypeAdapter[str] = TypeAdapter(Identifier)


def answered(ask: Ask, response: Response) -> AuditEntry:
    code = None if response.error is None else response.error.code
    return _entry(ask, response.status, code, None if code is not None else _memory_count(response))


def refused(item: Decoded, error: InvalidRecord) -> list[AuditEntry]:
    """Return the entry of a refused query, or of an event of an unauthorised sender; none for other records."""
    is_query = isinstance(item, Refused) and item.query_id is not None
    return [_entry(item, "error", error.code)] if is_query or error.code in ACCESS_CODES else []


def erased(write: Write, error: InvalidRecord | None) -> AuditEntry:
    return _entry(write, "ok") if error is None else _entry(write, "error", error.code)


def _entry(item: Decoded, status: str, code: str | None = None, memories: int | None = None) -> AuditEntry:
    record = item.record
    sender = record.principal
    entry = AuditRecord(
        **_subject(item),
        time=format_time(record.append_ms),
        principal=None if sender is None else sender.name,
        position=str(record.position),
        status=status,  # type: ignore[arg-type]
        code=code,
        memories=memories,
    )
    return AuditEntry(record.position, OUTPUT_NUMBER, key_of(item), entry.model_dump_json().encode())


def _subject(item: Decoded) -> dict[str, Any]:
    """Return the type, owner and id of an item's event, with None for unreadable ones."""
    if isinstance(item, Refused):
        raw = raw_event(item.record.value) or {}
        names = ("type", "tenant_id", "user_id", "environment", "id")
        subject: dict[str, Any] = {name: _valid_id(raw.get(name)) for name in names}
        if subject["environment"] is None and subject["tenant_id"] is not None and subject["type"] != "user.erase":
            subject["environment"] = PRODUCTION
        return subject | ({} if item.query_id is None else {"id": _valid_id(item.query_id)})
    event = item.query if isinstance(item, Ask) else item.event
    environment = event.environment if isinstance(event, UserErase) else item.owner.environment
    return {
        "type": event.type,
        "tenant_id": event.tenant_id,
        "user_id": event.user_id,
        "environment": environment,
        "id": event.id or str(item.record.position),
    }


def _valid_id(value: object) -> str | None:
    """Return a valid id; None for other values, and for credentials in place of an id."""
    try:
        name = _IDS.validate_python(value)
    except ValidationError:
        return None
    return None if contains_credential(name.encode()) else name


def _memory_count(response: Response) -> int:
    """Return the number of distinct memories in all parts of a response."""
    ids = {one.id for one in response.memories or ()} | {one["id"] for one in response.versions or ()}
    for part in (response.memory_page, response.subgraph):
        ids |= {one.id for one in part.memories} if part is not None else set()
    if response.context is not None:
        ids |= {one.id for one in response.context.relevant_items}
    if response.graph_facts is not None:
        ids |= {one.id for fact in response.graph_facts.facts for one in fact.evidence}
    if response.graph_trace is not None:
        ids |= {one.id for one in (*response.graph_trace.seeds, *response.graph_trace.expanded)}
    return len(ids)
