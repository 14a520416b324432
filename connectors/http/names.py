"""The names under which a server is asked that only this machine reaches.

A page of another site may have its own name lead to 127.0.0.1 (DNS rebinding): its scripts then ask us through the
browser of whoever looks at it, as if we were that site. The name stands in the header `host`."""

import socket
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from recallflow.connectors.http.errors import refusal
from recallflow.responses import ErrorBody

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MISDIRECTED = ErrorBody(
    code="misdirected",
    message="host: this server listens for this machine alone, and answers as localhost, 127.0.0.1, [::1] and the host "
    "that it was told to listen at; ask it by one of these, and have a proxy before it send one as host",
)


def under_own_names(app: ASGIApp, listening: socket.socket, host: str) -> ASGIApp:
    """An app that is asked over a socket; where only this machine reaches that, only under local names and `host`, the
    name that it was told to listen at."""
    at = listening.getsockname()[0]
    return _Named(app, LOCAL | {bracketed(at), bracketed(host)}) if is_loopback(at) else app


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may be anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """A host as it stands before a port: an address of IPv6 is in brackets."""
    return f"[{host}]" if ":" in host else host.lower()


class _Named:
    """Asks the app only what was asked under one of some names."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._knows(scope):
            await self._app(scope, receive, send)
        else:
            await refusal(_MISDIRECTED)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        return bool(given) and all(_without_port(one) in self._names for one in given)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and not port.endswith("]") else host
