"""Events as bytes, as readers of logs pass them on."""

from typing import Any

import orjson

from recallflow.connectors.logs.model import Scope

EVENT_BYTES = 1024 * 1024 + 1  # one more than an event may have, so that a cut line is still rejected as too large
_WRITTEN_LEVELS = 250  # orjson writes 254, and an event may have 200


def encoded(scope: Scope, event: dict[str, Any]) -> bytes:
    """An event as JSON, of the scope's owner where it names none."""
    owned = {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "environment": scope.environment} | event
    try:
        return orjson.dumps(owned)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes, though it reads it
        return orjson.dumps(_cut(owned, _WRITTEN_LEVELS))


def _cut(value: Any, levels: int) -> Any:
    """What is nested deeper is left out: what stays is still too deep for an event, and refused as that."""
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: _cut(item, levels - 1) for key, item in value.items()}
    return [_cut(item, levels - 1) for item in value] if isinstance(value, list) else value
