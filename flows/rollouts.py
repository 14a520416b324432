"""Decisions about tenants' graphs that come over HTTP: who may make them, and where they go."""

import asyncio
import time
from pathlib import Path
from typing import Protocol

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.http.deciding import GateShown, RolloutShown
from recallflow.connectors.kafka.decide import Decide
from recallflow.control import DEFAULT, GateVerdict, Rollout
from recallflow.credentials import Headers
from recallflow.decisions import Decision, History
from recallflow.errors import DeliveryFailed, UsageError
from recallflow.fields import format_time
from recallflow.operators.authorise import Authoriser
from recallflow.records import Position, Record

NOWHERE = Position("gateway", 0, 0)  # of a record that is not in its log yet


def record_now(headers: Headers) -> Record:
    """A record that is appended at this moment."""
    return Record(NOWHERE, b"", time.time_ns() // 1_000_000, headers=headers)


class KeepDecision(Protocol):
    """Stores a decision for good. Blocks. Raises SinkError or UsageError where it cannot be."""

    def __call__(self, rollout: Rollout) -> None: ...


class TenantRollouts:
    """What stands in a history of decisions, and a way to add to it."""

    def __init__(self, authoriser: Authoriser, decisions: History, keep: KeepDecision) -> None:
        self._authoriser, self._decisions, self._keep = authoriser, decisions, keep

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:
        record = record_now(headers)
        self._authoriser.check_tenant(record, tenant_id, decides=False)
        decided = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, record.append_ms)
        verdict = self._decisions.decision(tenant_id, "gate.verdict", DEFAULT, record.append_ms)
        return RolloutShown(
            tenant_id=tenant_id,
            mode=decided.event.mode if decided is not None and isinstance(decided.event, Rollout) else "off",
            since=None if decided is None else format_time(decided.append_ms),
            by=None if decided is None else decided.event.by,
            why=None if decided is None else decided.event.why,
            gate=None if verdict is None else _gate(verdict),
        )

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:
        name = self._authoriser.check_tenant(record_now(headers), rollout.tenant_id, decides=True)
        if name is not None:  # `by` is what they say of themselves
            rollout = rollout.model_copy(update={"by": f"{rollout.by} (key {name})"})
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._keep, rollout)
        except TimeoutError:
            raise DeliveryFailed(f"not known to be stored within {timeout_s:g} s: it may be") from None


def _gate(verdict: Decision) -> GateShown:
    event = verdict.event
    blocked = isinstance(event, GateVerdict) and event.blocked
    return GateShown(blocked=blocked, since=format_time(verdict.append_ms), by=event.by, why=event.why)


def to_topic(options: KafkaOptions, topic: str, secret: str | None) -> KeepDecision:
    """Decisions go to the control topic, signed where there is a secret, and come back from there."""
    send = Decide(options, topic, secret, permit=lambda: None)
    return lambda rollout: send([rollout])


def to_file(path: Path | None, decisions: History) -> KeepDecision:
    """Decisions go to the file of control events, and hold at once."""

    def keep(rollout: Rollout) -> None:
        if path is None:
            raise UsageError("there is nowhere to keep decisions: start with --control FILE")
        with path.open("ab") as file:
            file.write(rollout.model_dump_json(exclude_none=True).encode() + b"\n")
        decisions.add(rollout.timestamp or 0, rollout)

    return keep
