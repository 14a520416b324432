"""The gateway: an HTTP server before an engine behind Kafka, or before one in this process."""

import logging
from pathlib import Path

from prometheus_client.registry import Collector

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.limits import Limits
from recallflow.connectors.http.names import is_loopback
from recallflow.connectors.http.server import listen, serve
from recallflow.credentials import Headers
from recallflow.decisions import History
from recallflow.events import Event
from recallflow.flows.behind_kafka import open_behind_kafka
from recallflow.flows.config import Config
from recallflow.flows.gateway_metrics import GatewayMetrics
from recallflow.flows.local import open_local
from recallflow.flows.machine_metrics import registry_of
from recallflow.flows.rollouts import TenantRollouts, record_now, to_file, to_topic
from recallflow.flows.trust import known_secrets, trust_of
from recallflow.operators.authorise import Authoriser
from recallflow.service import Service

_log = logging.getLogger(__name__)


class Present:
    """Admission by what is decided now: the engine's own verdict, on a record that is appended at this moment."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    def check(self, event: Event, headers: Headers) -> None:
        self._authoriser.check(record_now(headers), event)


def serve_kafka(config: Config) -> None:
    """Serves for an engine behind Kafka until SIGTERM or SIGINT, and answers what is under way. Raises SourceError
    where decisions cannot be read."""
    decisions = History()
    # What is wrong with the secrets shows before anything is connected to.
    authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
    keep = to_topic(config.kafka, config.topics.control, config.auth.control_secret)
    with open_behind_kafka(config, decisions) as service:
        _log.warning(authoriser.describe())
        rollouts = TenantRollouts(authoriser, decisions, keep)
        _serve(config, service, authoriser, rollouts, GatewayMetrics(service))


def serve_local(config: Config, decisions: History, control: Path | None) -> None:
    """Serves for an engine in this process, likewise. `control`: the file of decisions, if there is one."""
    with open_local(config, decisions) as service:
        authoriser = Authoriser(decisions, service.trust)
        rollouts = TenantRollouts(authoriser, decisions, to_file(control, decisions))
        _serve(config, service, authoriser, rollouts, service.metrics)


def _serve(
    config: Config, service: Service, authoriser: Authoriser, rollouts: TenantRollouts, metrics: Collector
) -> None:
    chosen = config.serve
    limits = Limits(chosen.timeout_s, chosen.body_timeout_s, chosen.concurrency)
    app = build_app(service, Present(authoriser), rollouts, limits, registry_of(metrics))
    with listen(chosen.host, chosen.port) as listening:
        warn_where_open(chosen.host, authoriser)
        serve(app, listening, chosen.host, chosen.stop_timeout_s)


def warn_where_open(host: str, authoriser: Authoriser) -> None:
    """Says in the log where strangers could come in."""
    if not authoriser.asks() and not is_loopback(host):
        _log.warning(
            "%s can be reached from elsewhere, and nobody needs credentials: whoever reaches it reads and changes "
            "every memory. Make a key (recallflow keys create), or listen at 127.0.0.1",
            host,
        )
