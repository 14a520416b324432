"""Decisions of tenants' operators: sent to the control topic, or appended to a file of control events."""

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallflow.cli.options import config, decisions
from recallflow.errors import UsageError
from recallflow.private_files import open_private

if TYPE_CHECKING:
    from recallflow.client import RecallClient
    from recallflow.connectors.kafka.control import ControlTable
    from recallflow.decisions import History
    from recallflow.flows.config import Config
    from recallflow.records import Position

    Send = Callable[[RecallClient, Mapping[str, Any]], Position]


def add_reasons(*actions: argparse.ArgumentParser, required: bool = False) -> None:
    """The options that say whose decision it is, and why."""
    for action in actions:
        action.add_argument("--by", required=required, metavar="NAME", help="who decides")
        action.add_argument("--why", required=required, metavar="TEXT", help="for what reason")


def decide(options: argparse.Namespace, said: str, event_type: str, fields: Mapping[str, Any], send: "Send") -> int:
    """Sends a decision, or appends it to the file of --control, and prints where it stands. `said`: the decision in
    words."""
    given = {**fields, **{name: one for name in ("by", "why") if (one := getattr(options, name)) is not None}}
    if options.control is not None:
        append_decision(options.control, options.tenant, event_type, given)
        print(f"{said}: appended to {options.control}")
        return 0
    where = config(options)
    check_signing(where)
    with client(where, options.tenant) as opened:
        position = send(opened, given)
    print(f"{said}: {position}")
    return 0


def decided(options: argparse.Namespace) -> "History":
    """All decisions that stand in the file of --control, or in the control topic."""
    if options.control is not None:
        return decisions(options)
    with closing(control_table(config(options))) as table:
        return table.history


def append_decision(path: Path, tenant_id: str, event_type: str, fields: Mapping[str, Any]) -> None:
    """Append a decision to a file of control events, in force from now on. Raises InvalidRecord."""
    from recallflow.verbs.scope import Scope

    scope = Scope(tenant_id, "prod")
    event = scope.decision(event_type, {**fields, "timestamp": time.time_ns() // 1_000_000})
    with open_private(path, "ab") as file:
        file.write(event.model_dump_json(exclude_none=True).encode() + b"\n")


def client(where: "Config", tenant_id: str, environment: str = "prod") -> "RecallClient":
    """A client for one tenant."""
    from recallflow.client import RecallClient

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


def control_table(where: "Config") -> "ControlTable":
    """What stands in the control topic, to be closed."""
    from recallflow.connectors.kafka.control import ControlTable

    return ControlTable(where.kafka, where.topics.control, secret=where.auth.control_secret)


def check_signing(where: "Config") -> None:
    """Raises UsageError where decisions are signed, and the one to be sent would not be: it would count for nothing."""
    if where.auth.control_secret is not None:
        return
    with closing(control_table(where)) as table:
        if table.signs():
            raise UsageError(
                f"decisions in {where.topics.control} are signed, and this one would not be: give auth.control_secret "
                "(RECALLFLOW_AUTH_CONTROL_SECRET)"
            )
