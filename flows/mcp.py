"""The MCP server: tools for a language model, served by an engine behind Kafka or in this process."""

import asyncio
from typing import Any

from recallflow.connectors.http.routes import probe_routes
from recallflow.connectors.http.server import ConcurrencyLimit, RequestMetrics
from recallflow.connectors.mcp.server import Context, build_http, build_server, serve_stdio
from recallflow.connectors.mcp.tools import Caller, ServerScope, ToolRunner, caller_of
from recallflow.credentials import USER_HEADER
from recallflow.errors import UsageError
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import registry_of
from recallflow.flows.gateway import ServedEngine, request_limits, serve_app


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


def serve_http(config: Config, engine: ServedEngine, scope: ServerScope, address: tuple[str, int]) -> None:
    """Serve over HTTP until SIGTERM or SIGINT. The headers of each request name its user and hold the credentials."""
    (host, port), limits, registry = address, request_limits(config.serve), registry_of(engine.metrics)
    tools = ToolRunner(engine.service, engine.admission, config.serve.timeout_s)

    def caller_in(context: Context) -> Caller:
        request: Any = context.request
        return caller_of(scope, request.scope["headers"])

    server, probes = build_server(tools, caller_in), probe_routes(engine.service, registry)
    unlimited = build_http(server, scope, engine.admission, host, limits, probes)
    app = ConcurrencyLimit(unlimited, limits, RequestMetrics(registry))
    serve_app(app, host, port, engine.authoriser, config.serve.stop_timeout_s)
