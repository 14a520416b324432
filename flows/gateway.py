"""The gateway: an HTTP server before an engine behind Kafka, or before one in this process."""

import logging
import time
from ipaddress import ip_address

from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.limits import Limits
from recallflow.connectors.http.server import listen, serve
from recallflow.credentials import Headers
from recallflow.decisions import History
from recallflow.events import Event
from recallflow.flows.config import Config
from recallflow.flows.serve_settings import ServeSettings
from recallflow.flows.trust import known_secrets, trust_of
from recallflow.operators.authorise import Authoriser
from recallflow.records import Position, Record
from recallflow.service import Service

_NOWHERE = Position("gateway", 0, 0)  # a record that is not in its log yet

_log = logging.getLogger(__name__)


class Present:
    """Admission by what is decided now: the engine's own verdict, on a record that is appended at this moment."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    def check(self, event: Event, headers: Headers) -> None:
        """Raises InvalidRecord (`unauthenticated`, `forbidden`)."""
        now_ms = time.time_ns() // 1_000_000
        self._authoriser.check(Record(_NOWHERE, b"", now_ms, headers=headers), event)


def run_gateway(config: Config, service: Service, decisions: History) -> None:
    """Serves until SIGTERM or SIGINT: requests under way are answered, and the service is left to who opened it."""
    chosen = config.serve
    authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
    app = build_app(service, Present(authoriser), limits_of(chosen), CollectorRegistry())
    with listen(chosen.host, chosen.port) as listening:
        _log.warning(authoriser.describe())
        if not authoriser.asks() and not is_loopback(chosen.host):
            _log.warning(
                "%s can be reached from elsewhere, and nobody needs credentials: whoever reaches it reads and changes "
                "every memory. Make a key (recallflow keys create), or listen at 127.0.0.1",
                chosen.host,
            )
        serve(app, listening, chosen.stop_timeout_s)


def limits_of(chosen: ServeSettings) -> Limits:
    """What one request may take, out of the settings."""
    return Limits(chosen.timeout_s, chosen.body_timeout_s, chosen.concurrency)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may be anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
