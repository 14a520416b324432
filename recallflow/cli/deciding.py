"""Decisions of tenants' operators: sent to the control topic, or appended to a file of control events."""

import time
from pathlib import Path
from typing import Any

from recallflow.client import RecallClient
from recallflow.client.scope import Scope
from recallflow.connectors.kafka.control import ControlTable
from recallflow.flows.config import Config


def append(path: Path, tenant_id: str, event_type: str, fields: dict[str, Any]) -> None:
    """Appends a decision that is in force from now on."""
    scope = Scope(tenant_id, "prod")
    event = scope.decision(event_type, fields | {"timestamp": time.time_ns() // 1_000_000})
    with path.open("ab") as file:
        file.write(event.model_dump_json(exclude_none=True).encode() + b"\n")


def client(where: Config, tenant_id: str, environment: str = "prod") -> RecallClient:
    """A client for one tenant."""
    return RecallClient(
        where.kafka.bootstrap_servers,
        tenant_id,
        environment=environment,
        memory_topic=where.topics.memory,
        query_topic=where.topics.queries,
        response_topic=where.topics.responses,
        control_topic=where.topics.control,
        options=where.kafka.librdkafka,
        api_key=where.auth.api_key,
        control_secret=where.auth.control_secret,
    )


def control_table(where: Config) -> ControlTable:
    """What stands in the control topic, to be closed."""
    return ControlTable(where.kafka, where.topics.control, secret=where.auth.control_secret)
