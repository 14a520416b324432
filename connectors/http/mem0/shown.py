"""Memories as clients of mem0 expect them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from recallflow.connectors.http.mem0.entities import AGENT_LABEL, mem0_id, shown_entities


def shown(user_id: str, version: Mapping[str, Any]) -> dict[str, Any]:
    """A version of a memory."""
    metadata = {name: value for name, value in (version.get("metadata") or {}).items() if name != AGENT_LABEL}
    category, expires = version.get("category"), version.get("expires_at")
    return {
        "id": mem0_id(user_id, version["id"]),
        "memory": version["content"],
        **shown_entities(user_id, version),
        "metadata": metadata or None,
        "categories": [category] if category else [],
        "created_at": version.get("created_at"),
        "updated_at": version.get("updated_at"),
        **({} if expires is None else {"expiration_date": _last_day(expires)}),
    }


def history(user_id: str, versions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of a memory, from its beginning on."""
    found = []
    before: str | None = None
    for version in versions:
        memory_id = mem0_id(user_id, version["id"])
        found.append(
            {
                "id": f"{memory_id}:{version['version']}",
                "memory_id": memory_id,
                "old_memory": before,
                "new_memory": version["content"],
                "event": "ADD" if before is None else "UPDATE",
                **shown_entities(user_id, version),
                "created_at": version.get("created_at"),
                "updated_at": version.get("updated_at"),
            }
        )
        before = version["content"]
    return found


def _last_day(expires_at: str) -> str:
    """The last date on which a memory counts that expires at a time."""
    return (datetime.fromisoformat(expires_at) - timedelta(milliseconds=1)).date().isoformat()
