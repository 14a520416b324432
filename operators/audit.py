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

NUMBER = 20  # the unique output number of an entry
ACCESS_CODES = ("unauthenticated", "forbidden")  # error codes of unauthorised senders
_IDS: TypeAdapter[str] = TypeAdapter(Identifier)


def answered(ask: Ask, response: Response) -> AuditEntry:
    code = None if response.error is None else response.error.code
    return _audited(ask, response.status, code, None if code is not None else _memories(response))


def refused(item: Decoded, error: InvalidRecord) -> AuditEntry | None:
    """Return the entry of a refused record: any refused query, and events of unauthorised senders."""
    is_query = isinstance(item, Refused) and item.query_id is not None
    return _audited(item, "error", error.code, None) if is_query or error.code in ACCESS_CODES else None


def erased(write: Write, error: InvalidRecord | None) -> AuditEntry:
    return _audited(write, "ok" if error is None else "error", None if error is None else error.code, None)


def _audited(item: Decoded, status: str, code: str | None, memories: int | None) -> AuditEntry:
    record = item.record
    sender = record.principal
    about = AuditRecord(
        **_about(item),
        time=format_time(record.append_ms),
        principal=None if sender is None else sender.name,
        position=str(record.position),
        status=status,  # type: ignore[arg-type]
        code=code,
        memories=memories,
    )
    return AuditEntry(record.position, NUMBER, key_of(item), about.model_dump_json().encode())


def _about(item: Decoded) -> dict[str, Any]:
    """Return the subject of a record, as far as it is readable."""
    if isinstance(item, Refused):
        raw = raw_event(item.record.value) or {}
        names = ("type", "tenant_id", "user_id", "environment", "id")
        about: dict[str, Any] = {name: _id(raw.get(name)) for name in names}
        if about["environment"] is None and about["tenant_id"] is not None and about["type"] != "user.erase":
            about["environment"] = PRODUCTION
        return about | ({} if item.query_id is None else {"id": _id(item.query_id)})
    event = item.query if isinstance(item, Ask) else item.event
    environment = event.environment if isinstance(event, UserErase) else item.owner.environment
    return {
        "type": event.type,
        "tenant_id": event.tenant_id,
        "user_id": event.user_id,
        "environment": environment,
        "id": event.id or str(item.record.position),
    }


def _id(value: object) -> str | None:
    """Return a valid id; None for other values, and for credentials in place of an id."""
    try:
        name = _IDS.validate_python(value)
    except ValidationError:
        return None
    return None if contains_credential(name.encode()) else name


def _memories(response: Response) -> int:
    """Return the number of memories in all parts of a response."""
    ids = {one.id for one in response.memories or ()} | {one["id"] for one in response.versions or ()}
    if response.memory_page is not None:
        ids |= {one.id for one in response.memory_page.memories}
    if response.context is not None:
        ids |= {one.id for one in response.context.relevant_items}
    if response.subgraph is not None:
        ids |= {one.id for one in response.subgraph.memories}
    if response.graph_facts is not None:
        ids |= {one.id for fact in response.graph_facts.facts for one in fact.evidence}
    if response.graph_trace is not None:
        ids |= {one.id for one in (*response.graph_trace.seeds, *response.graph_trace.expanded)}
    return len(ids)
