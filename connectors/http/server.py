"""Serving the gateway's app over HTTP/1.1 until a signal comes."""

import logging
import os
import signal
import socket
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from recallflow import descriptors
from recallflow.connectors.http.connection import KEEP_ALIVE_S, Connection, ConnectionPool
from recallflow.connectors.http.names import under_own_names
from recallflow.errors import UsageError

_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Serves until `should_exit` is set. Signals are left to whoever runs it: uvicorn would end the process by the
    signal that stopped it, and a command ends with an exit code."""

    def __init__(self, app: ASGIApp, stop_timeout_s: float) -> None:
        protocol: Any = partial(Connection, ConnectionPool(descriptors.connections_most()))
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=descriptors.backlog(),
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_timeout_s,  # type: ignore[arg-type] # any number of seconds will do
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.warning("stopping: what is under way is answered; a second signal stops at once")
        await super().shutdown(sockets)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises UsageError where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=descriptors.backlog())
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error}; give another port or host") from error


def address(listening: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, listening: socket.socket, host: str, stop_timeout_s: float) -> None:
    """Returns once SIGTERM or SIGINT came, and what was under way is answered, or `stop_timeout_s` are over. `host`:
    what was given to listen at."""
    server = Server(under_own_names(app, listening, host), stop_timeout_s)

    def stop(number: int, _: object) -> None:
        if server.should_exit:
            os._exit(128 + number)
        server.should_exit = True  # and nothing else: a line of the log may be half written

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # of each malformed request it has a line
    _log.info("serving at %s", address(listening))
    server.run([listening])
