"""Decisions about tenants' graphs that come over HTTP: who may make them, and where they go."""

import asyncio
from pathlib import Path
from typing import Protocol

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.http.deciding import GateShown, RolloutShown
from recallflow.control import DEFAULT, GateVerdict, Rollout
from recallflow.credentials import Headers
from recallflow.decisions import Decision, History
from recallflow.errors import DeliveryFailed, SinkError, UsageError
from recallflow.fields import format_time
from recallflow.flows.present import Present, now_ms
from recallflow.private_files import open_private


class KeepDecision(Protocol):
    """Stores a decision for good. Blocks. Raises SinkError or UsageError where it cannot be."""

    def __call__(self, rollout: Rollout) -> None: ...


class TenantRollouts:
    """What stands in a history of decisions, and a way to add to it."""

    def __init__(self, present: Present, decisions: History, keep: KeepDecision) -> None:
        self._present, self._decisions, self._keep = present, decisions, keep

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:
        self._present.check_tenant(tenant_id, headers, decides=False)
        at_ms = now_ms()
        decided = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, at_ms)
        verdict = self._decisions.decision(tenant_id, "gate.verdict", DEFAULT, at_ms)
        return RolloutShown(
            tenant_id=tenant_id,
            mode=decided.event.mode if decided is not None and isinstance(decided.event, Rollout) else "off",
            since=None if decided is None else format_time(decided.append_ms),
            by=None if decided is None else decided.event.by,
            why=None if decided is None else decided.event.why,
            gate=None if verdict is None else _gate(verdict),
        )

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:
        name = self._present.check_tenant(rollout.tenant_id, headers, decides=True)
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
    from recallflow.connectors.kafka.control import DecisionSender  # Kafka is not everywhere

    send = DecisionSender(options, topic, secret)
    return lambda rollout: send([rollout])


def to_file(path: Path | None, decisions: History) -> KeepDecision:
    """Decisions go to the file of control events, and hold at once."""

    def keep(rollout: Rollout) -> None:
        if path is None:
            raise UsageError("there is nowhere to keep decisions: start with --control FILE")
        try:
            with open_private(path, "ab") as file:
                file.write(rollout.model_dump_json(exclude_none=True).encode() + b"\n")
        except OSError as error:
            raise SinkError(f"decisions cannot be kept in the file of --control: {error.strerror}") from error
        decisions.add(rollout.timestamp or 0, rollout)

    return keep
