"""The gateway: an HTTP server before an engine behind Kafka, or before one in this process."""

import logging
import sys
from pathlib import Path
from typing import NamedTuple

from prometheus_client.registry import Collector

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.limits import Limits
from recallflow.connectors.http.names import is_loopback
from recallflow.connectors.http.server import listen, serve
from recallflow.decisions import History, owner_mappings
from recallflow.flows.config import Config
from recallflow.flows.cycles import SWITCH_S
from recallflow.flows.gateway_metrics import GatewayMetrics
from recallflow.flows.local import open_local
from recallflow.flows.machine_metrics import registry_of
from recallflow.flows.present import Present, now_ms
from recallflow.flows.rollouts import KeepDecision, TenantRollouts, to_file, to_topic
from recallflow.flows.trust import known_secrets, trust_of
from recallflow.operators.authorise import Authoriser
from recallflow.service import Service

_log = logging.getLogger(__name__)


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
        door = _Door(service, authoriser, Present(authoriser, failure), GatewayMetrics(service))
        _serve(config, door, decisions, keep)


def serve_local(config: Config, decisions: History, control: Path | None) -> None:
    """Serves for an engine in this process, likewise. `control`: the file of decisions, if there is one."""
    sys.setswitchinterval(SWITCH_S)
    with open_local(config, decisions, lists_owners=True) as service:
        authoriser = Authoriser(decisions, service.trust)
        _log.warning(authoriser.describe())
        door = _Door(service, authoriser, Present(authoriser), service.metrics)
        _serve(config, door, decisions, to_file(control, decisions))


class _Door(NamedTuple):
    """What is behind the gateway, who may come in, and what is counted."""

    service: Service
    authoriser: Authoriser
    present: Present
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
