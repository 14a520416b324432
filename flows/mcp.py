"""The MCP server: tools of a language model before an engine behind Kafka, or before one in this process."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from prometheus_client.registry import Collector

from recallflow.connectors.http.middleware import Gate, Traffic
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.routes import probe_routes
from recallflow.connectors.http.server import listen, serve
from recallflow.connectors.mcp.http import build_http, caller_in
from recallflow.connectors.mcp.perform import Caller, Performer, Place
from recallflow.connectors.mcp.server import build_server, serve_stdio
from recallflow.credentials import USER_HEADER
from recallflow.decisions import History
from recallflow.errors import UsageError
from recallflow.flows.admission import LiveAdmission, known_secrets, trust_of
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import GatewayMetrics, registry_of
from recallflow.flows.gateway import warn_where_open
from recallflow.flows.local import open_local
from recallflow.operators.authorise import Authoriser
from recallflow.service import Service

_log = logging.getLogger(__name__)


class Behind(NamedTuple):
    """What the server stands before, who judges callers by what is decided now, and what is counted."""

    service: Service
    authoriser: Authoriser
    present: LiveAdmission
    metrics: Collector


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `HOST:PORT`. Raises UsageError."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal()):
            raise UsageError(f"--http {text}: give HOST:PORT, such as 127.0.0.1:8081")
        return cls(host.strip("[]"), int(port))


@contextmanager
def embedded(config: Config, decisions: History) -> Iterator[Behind]:
    """An engine in this process. `decisions`: what tenants' operators decided."""
    with open_local(config, decisions) as service:
        authoriser = Authoriser(decisions, service.trust)
        _log.warning(authoriser.describe())
        yield Behind(service, authoriser, LiveAdmission(authoriser), service.metrics)


@contextmanager
def behind_kafka(config: Config) -> Iterator[Behind]:
    """An engine behind Kafka."""
    from recallflow.flows.behind_kafka import open_behind_kafka  # Kafka is not everywhere

    decisions = History()
    authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
    with open_behind_kafka(config, decisions) as (service, failure):
        yield Behind(service, authoriser, LiveAdmission(authoriser, failure), GatewayMetrics(service))


def serve_user(config: Config, behind: Behind, place: Place, user_id: str) -> None:
    """Serves one user on standard input and output, until the input ends. The credentials are those of the settings."""
    caller = Caller(place, user_id, (*config.auth.credentials, (USER_HEADER, user_id.encode())))
    performer = Performer(behind.service, behind.present, config.serve.timeout_s)
    asyncio.run(serve_stdio(build_server(performer, lambda _: caller)))


def serve_http(config: Config, behind: Behind, place: Place, at: Address) -> None:
    """Serves over HTTP, until SIGTERM or SIGINT. Each request brings credentials, and names its user."""
    admission = behind.present
    server = build_server(Performer(behind.service, admission, config.serve.timeout_s), partial(caller_in, place))
    chosen = config.serve
    limits = Limits(chosen.timeout_s, chosen.body_timeout_s, chosen.concurrency)
    registry = registry_of(behind.metrics)
    probes = probe_routes(behind.service, registry)
    app: Any = Gate(build_http(server, place, admission, at.host, limits, probes), limits, Traffic(registry))
    with listen(*at) as listening:
        warn_where_open(at.host, behind.authoriser)
        serve(app, listening, at.host, chosen.stop_timeout_s)
