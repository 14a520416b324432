"""JSON Schemas (draft 2020-12) of everything that crosses a topic, generated from the models."""

from typing import Any

from pydantic import TypeAdapter

from recallflow.audit import AuditRecord
from recallflow.control import ControlEvent
from recallflow.enrichment import EnrichmentRequest, EnrichmentResult
from recallflow.events import MemoryEvent
from recallflow.queries import QueryEvent
from recallflow.responses import Receipt, Response

_CONTRACTS: dict[str, tuple[str, TypeAdapter[Any]]] = {
    "memory-event": ("memory.events", TypeAdapter(MemoryEvent)),
    "query-event": ("query.events", TypeAdapter(QueryEvent)),
    "control-event": ("control.events", TypeAdapter(ControlEvent)),
    "response": ("recall.responses", TypeAdapter(Response)),
    "receipt": ("memory.receipts", TypeAdapter(Receipt)),
    "audit": ("audit.log", TypeAdapter(AuditRecord)),
    "enrichment-request": ("enrichment.requests", TypeAdapter(EnrichmentRequest)),
    "enrichment-result": ("enrichment.results", TypeAdapter(EnrichmentResult)),
}


def schemas() -> dict[str, dict[str, Any]]:
    """Schema name → JSON Schema."""
    return {name: _schema(name, topic, adapter) for name, (topic, adapter) in _CONTRACTS.items()}


def _schema(name: str, topic: str, adapter: TypeAdapter[Any]) -> dict[str, Any]:
    heading = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:recallflow:schema:{name}",
        "title": f"{name} (topic {topic})",
    }
    return heading | adapter.json_schema(mode="validation")
