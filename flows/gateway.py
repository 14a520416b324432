"""The gateway: an HTTP server before an engine behind Kafka or in this process, and decisions that come over HTTP."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client.registry import Collector

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.server import is_loopback, listen, serve
from recallflow.control import DEFAULT, GateVerdict, Rollout
from recallflow.credentials import Headers
from recallflow.decisions import Decision, History, owner_mappings
from recallflow.errors import DeliveryFailed, SinkError, UsageError
from recallflow.fields import format_time
from recallflow.flows.admission import LiveAdmission, known_secrets, now_ms, trust_of
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import GatewayMetrics, registry_of
from recallflow.flows.gc_policy import SWITCH_S
from recallflow.flows.local import open_local
from recallflow.operators.authorise import Authoriser
from recallflow.private_files import open_private
from recallflow.service import GateShown, RolloutShown, Service

_log = logging.getLogger(__name__)


class KeepDecision(Protocol):
    """Stores a decision for good. Blocks. Raises SinkError or UsageError where it cannot be."""

    def __call__(self, rollout: Rollout) -> None: ...


class TenantRollouts:
    """What stands in a history of decisions, and a way to add to it."""

    def __init__(self, present: LiveAdmission, decisions: History, keep: KeepDecision) -> None:
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


def serve_kafka(config: Config) -> None:
    """Serves for an engine behind Kafka until SIGTERM or SIGINT, and answers what is under way. Raises SourceError
    where decisions cannot be read."""
    from recallflow.flows.behind_kafka import open_behind_kafka  # Kafka is not everywhere

    decisions = History()
    # What is wrong with the secrets shows before anything is connected to.
    authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
    keep = to_topic(config.kafka, config.topics.control, config.auth.control_secret)
    with open_behind_kafka(config, decisions) as (service, failure):
        _log.warning(authoriser.describe())
        door = _Door(service, authoriser, LiveAdmission(authoriser, failure), GatewayMetrics(service))
        _serve(config, door, decisions, keep)


def serve_local(config: Config, decisions: History, control: Path | None) -> None:
    """Serves for an engine in this process, likewise. `control`: the file of decisions, if there is one."""
    sys.setswitchinterval(SWITCH_S)
    with open_local(config, decisions, lists_owners=True) as service:
        authoriser = Authoriser(decisions, service.trust)
        _log.warning(authoriser.describe())
        door = _Door(service, authoriser, LiveAdmission(authoriser), service.metrics)
        _serve(config, door, decisions, to_file(control, decisions))


class _Door(NamedTuple):
    """What is behind the gateway, who may come in, and what is counted."""

    service: Service
    authoriser: Authoriser
    present: LiveAdmission
    metrics: Collector


def _serve(config: Config, door: _Door, decisions: History, keep: KeepDecision) -> None:
    chosen = config.serve
    limits = Limits(chosen.timeout_s, chosen.body_timeout_s, chosen.concurrency)
    rollouts = TenantRollouts(door.present, decisions, keep)

    def mappings(tenant_id: str) -> dict[str, str | None]:
        return owner_mappings(decisions, tenant_id, now_ms())

    app = build_app(door.service, door.present, rollouts, limits, registry_of(door.metrics), mappings)
    with listen(chosen.host, chosen.port) as listening:
        warn_where_open(chosen.host, door.authoriser)
        serve(app, listening, chosen.host, chosen.stop_timeout_s)


def warn_where_open(host: str, authoriser: Authoriser) -> None:
    """Says in the log where strangers could come in."""
    if not authoriser.asks() and not is_loopback(host):
        _log.warning(
            "%s can be reached from elsewhere, and nobody needs credentials: whoever reaches it reads and changes "
            "every memory. Make a key (recallflow keys create), or listen at 127.0.0.1",
            host,
        )
