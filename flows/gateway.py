"""The gateway: an HTTP server for an engine behind Kafka or in this process, and rollout decisions over HTTP."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client.registry import Collector

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.server import is_loopback, listen, serve
from recallflow.control import DEFAULT, ControlHistory, Decision, GateVerdict, Rollout, owner_mappings
from recallflow.credentials import Headers
from recallflow.errors import DeliveryFailed, SinkError, UsageError
from recallflow.fields import format_time
from recallflow.flows.admission import LiveAdmission, known_secrets, trust_of
from recallflow.flows.config import Config, ServeSettings
from recallflow.flows.engine_metrics import GatewayMetrics, registry_of
from recallflow.flows.gc_policy import SWITCH_INTERVAL_S
from recallflow.flows.local import open_local
from recallflow.flows.runner import now_ms
from recallflow.operators.authorise import Authoriser
from recallflow.private_files import open_private
from recallflow.service import GateShown, RolloutShown, Service

if TYPE_CHECKING:
    from recallflow.connectors.kafka.service import ServiceTopics

_log = logging.getLogger(__name__)

StoreDecision = Callable[[Rollout], None]  # stores a decision durably; it blocks, and raises SinkError or UsageError


class TenantRollouts:
    """The rollout decisions of tenants: their current state, and new decisions."""

    def __init__(self, admission: LiveAdmission, decisions: ControlHistory, store: StoreDecision) -> None:
        self._admission, self._decisions, self._store = admission, decisions, store

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:
        self._admission.check_tenant(tenant_id, headers, sends=False)
        at_ms = now_ms()
        decision = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, at_ms)
        verdict = self._decisions.decision(tenant_id, "gate.verdict", DEFAULT, at_ms)
        return RolloutShown(
            tenant_id=tenant_id,
            mode=decision.event.mode if decision is not None and isinstance(decision.event, Rollout) else "off",
            since=None if decision is None else format_time(decision.append_ms),
            by=None if decision is None else decision.event.by,
            why=None if decision is None else decision.event.why,
            gate=None if verdict is None else _gate(verdict),
        )

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:
        key_name = self._admission.check_tenant(rollout.tenant_id, headers, sends=True)
        if key_name is not None:  # senders may write any name into `by`
            rollout = rollout.model_copy(update={"by": f"{rollout.by} (key {key_name})"})
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._store, rollout)
        except TimeoutError:
            raise DeliveryFailed(f"the decision was not confirmed within {timeout_s:g} s; it may be stored") from None


def _gate(verdict: Decision) -> GateShown:
    event = verdict.event
    blocked = isinstance(event, GateVerdict) and event.blocked
    return GateShown(blocked=blocked, since=format_time(verdict.append_ms), by=event.by, why=event.why)


def file_store(path: Path | None, decisions: ControlHistory) -> StoreDecision:
    """Return a function that appends decisions to the file of control events. They apply at once."""

    def store(rollout: Rollout) -> None:
        if path is None:
            raise UsageError("no file for decisions is configured: start with --control FILE")
        try:
            with open_private(path, "ab") as file:
                file.write(rollout.model_dump_json(exclude_none=True).encode() + b"\n")
        except OSError as error:
            raise SinkError(f"decisions cannot be written to the file of --control: {error.strerror}") from error
        decisions.add(rollout.timestamp or 0, rollout)

    return store


class ServedEngine(NamedTuple):
    """The engine behind a server, with the admission of its callers and its metrics."""

    service: Service
    authoriser: Authoriser
    admission: LiveAdmission
    metrics: Collector


@contextmanager
def embedded(config: Config, decisions: ControlHistory, *, lists_owners: bool = False) -> Iterator[ServedEngine]:
    """Open an engine in this process, with `decisions` as its control events. `lists_owners`: see `open_local`."""
    with open_local(config, decisions, lists_owners=lists_owners) as service:
        _log.warning(service.authoriser.describe())
        yield ServedEngine(service, service.authoriser, LiveAdmission(service.authoriser), service.metrics)


@contextmanager
def behind_kafka(config: Config, decisions: ControlHistory) -> Iterator[ServedEngine]:
    """Read all control events into `decisions`, and open the client of an engine behind Kafka. Later control events are
    added to `decisions`. Raise SourceError if Kafka or its topics cannot be reached."""
    from recallflow.connectors.kafka.control import ControlTable  # the Kafka client is optional
    from recallflow.connectors.kafka.service import KafkaService

    # Invalid secrets are reported before any connection is made.
    authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    table = ControlTable(config.kafka, config.topics.control, history=decisions, secret=config.auth.control_secret)
    topics, timeout_s = service_topics(config), config.serve.timeout_s
    with closing(table), closing(KafkaService(config.kafka, topics, timeout_s, table.failure)) as service:
        yield ServedEngine(service, authoriser, LiveAdmission(authoriser, table.failure), GatewayMetrics(service))


def service_topics(config: Config) -> "ServiceTopics":
    from recallflow.connectors.kafka.service import ServiceTopics
    from recallflow.kafka_clients import Inbox  # the Kafka client is optional

    topics, chosen = config.topics, config.serve
    replies = Inbox(chosen.reply_topic, True, chosen.reply_partition) if chosen.reply_topic is not None else None
    return ServiceTopics(topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters, replies)


def serve_kafka(config: Config) -> None:
    """Serve an engine behind Kafka until SIGTERM or SIGINT. Raise SourceError if decisions cannot be read."""
    from recallflow.connectors.kafka.control import send_decisions  # the Kafka client is optional

    decisions = ControlHistory()
    topic, secret = config.topics.control, config.auth.control_secret
    with behind_kafka(config, decisions) as engine:
        _log.warning(engine.authoriser.describe())
        _serve(config, engine, decisions, lambda one: send_decisions(config.kafka, topic, secret, [one]))


def serve_local(config: Config, decisions: ControlHistory, control: Path | None) -> None:
    """Serve an engine in this process until SIGTERM or SIGINT. New decisions are appended to the file `control`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with embedded(config, decisions, lists_owners=True) as engine:
        _serve(config, engine, decisions, file_store(control, decisions))


def _serve(config: Config, engine: ServedEngine, decisions: ControlHistory, store: StoreDecision) -> None:
    settings, limits, registry = config.serve, request_limits(config.serve), registry_of(engine.metrics)
    rollouts = TenantRollouts(engine.admission, decisions, store)

    def mappings(tenant_id: str) -> dict[str, str | None]:
        return owner_mappings(decisions, tenant_id, now_ms())

    app = build_app(engine.service, engine.admission, rollouts, limits, registry, mappings, settings.cors_origins)
    serve_app(app, settings.host, settings.port, engine.authoriser, settings.stop_timeout_s)


def request_limits(settings: ServeSettings) -> Limits:
    return Limits(settings.timeout_s, settings.body_timeout_s, settings.concurrency)


def serve_app(app: Any, host: str, port: int, authoriser: Authoriser, stop_timeout_s: float) -> None:
    """Serve an app until SIGTERM or SIGINT. Log a warning if other machines can connect without credentials."""
    with listen(host, port) as listening:
        if not authoriser.needs_credentials() and not is_loopback(host):
            problem = "accepts connections from other machines without credentials"
            remedy = "Create a key (recallflow keys create), or listen on 127.0.0.1"
            _log.warning("%s %s: every client can read and change all memories. %s", host, problem, remedy)
        serve(app, listening, host, stop_timeout_s)
