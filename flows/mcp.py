"""The MCP server: tools for a language model, served by an engine behind Kafka or in this process."""

import asyncio
import logging
from typing import Any

from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.routes import probe_routes
from recallflow.connectors.http.server import ConcurrencyLimit, RequestMetrics, listen, serve
from recallflow.connectors.mcp.server import Context, build_http, build_server, serve_stdio
from recallflow.connectors.mcp.tools import Caller, ServerScope, ToolRunner, caller_of
from recallflow.credentials import USER_HEADER
from recallflow.errors import UsageError
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import registry_of
from recallflow.flows.gateway import ServedEngine, warn_if_unauthenticated

_log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`. Raise UsageError."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise UsageError(f"--http {text}: give HOST:PORT, such as 127.0.0.1:8081")
    return host.strip("[]"), int(port)


def serve_user(config: Config, engine: ServedEngine, scope: ServerScope, user_id: str) -> None:
    """Serve one user on standard input and output until the input ends, with the credentials of the configuration."""
    caller = Caller(scope, user_id, (*config.auth.credentials, (USER_HEADER, user_id.encode())))
    tools = ToolRunner(engine.service, engine.admission, config.serve.timeout_s)
    asyncio.run(serve_stdio(build_server(tools, lambda _: caller)))


def serve_http(config: Config, engine: ServedEngine, scope: ServerScope, at: tuple[str, int]) -> None:
    """Serve over HTTP until SIGTERM or SIGINT. Each request brings credentials and names its user."""
    admission, chosen = engine.admission, config.serve

    def caller_in(context: Context) -> Caller:
        request: Any = context.request
        return caller_of(scope, request.scope["headers"])

    server = build_server(ToolRunner(engine.service, admission, chosen.timeout_s), caller_in)
    limits = Limits(chosen.timeout_s, chosen.body_timeout_s, chosen.concurrency)
    registry = registry_of(engine.metrics)
    probes = probe_routes(engine.service, registry)
    inner = build_http(server, scope, admission, at[0], limits, probes)
    app: Any = ConcurrencyLimit(inner, limits, RequestMetrics(registry))
    with listen(*at) as listening:
        warn_if_unauthenticated(at[0], engine.authoriser)
        serve(app, listening, at[0], chosen.stop_timeout_s)
