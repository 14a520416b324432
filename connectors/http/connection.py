"""Open connections of an HTTP server: how many there are, and how long each may wait.

Uvicorn waits forever for headers, accepts any size of them, waits forever for a client that does not read, and accepts
connections until the process has no descriptor left.
"""

import asyncio
import logging
import time
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request's line and headers
HEAD_S = 10.0  # until headers are complete; also an idle connection without an admitted request
KEEP_ALIVE_S = 75  # a proxy that keeps connections for a minute must not find one closed under a request
READ_S = 30.0  # a client may leave a response unread so long, in all
READ_BYTES_PER_S = 16 * 1024  # a client that reads a long response at least this fast has more time
DRAINED_BYTES = 48 * 1024  # between uvloop's two water marks
_ADMITTED = "recallflow.admitted"  # in the state of a request
LOG_AGAIN_S = 60.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b'content-length: 79\r\n\r\n{"error":{"code":"unavailable","message":"too many connections: try it again"}}'
)

_log = logging.getLogger(__name__)


def mark_admitted(scope: Scope) -> None:
    """Note that the credentials of a request were accepted: its connection may stay open longer."""
    scope.setdefault("state", {})[_ADMITTED] = True


class ConnectionPool:
    """The idle connections of a server, and the number that may be open. A connection is idle while no request of it is
    under way. Above the number, an idle one is closed for each new one; those of clients without an admitted request
    go first, then those that have been idle the longest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._strangers: dict[Connection, None] = {}  # in the order in which they became idle
        self._admitted: dict[Connection, None] = {}
        self._logged_s = float("-inf")

    def add_idle(self, connection: "Connection") -> None:
        (self._admitted if connection.is_admitted else self._strangers)[connection] = None

    def remove(self, connection: "Connection") -> None:
        self._strangers.pop(connection, None)
        self._admitted.pop(connection, None)

    def make_room(self) -> bool:
        """Close the idle connection that is the first to go. Returns False where every connection is at work."""
        if (now_s := time.monotonic()) >= self._logged_s + LOG_AGAIN_S:
            self._logged_s = now_s
            _log.warning("%s connections are open, the most there may be: idle ones are closed", f"{self.most:,}")
        for idle in (self._strangers, self._admitted):
            if idle:
                first = next(iter(idle))
                del idle[first]
                first.transport.abort()
                return True
        return False


class Connection(HttpToolsProtocol):
    """Closes where headers do not come in time or do not end, where responses are not read, and where there are too
    many connections."""

    def __init__(self, pool: ConnectionPool, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_admitted = False  # a request of this connection was admitted
        self._pool = pool
        self._head = False  # a request has begun, and its headers have not ended
        self._head_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None
        self._unread_due: asyncio.TimerHandle | None = None
        self._unread_since_s = 0.0
        self._read_s = READ_S  # how long the response may still be left unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._pool.most and not self._pool.make_room():
            transport.write(_FULL)
            transport.close()
            return
        self._pool.add_idle(self)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        for timer in (self._head_due, self._unread_due):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.close()
        elif self.cycle is None or self.cycle.response_complete:
            self._await_head()  # bytes between two requests, or the rest of a body that is not read

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._head_bytes = True, 0
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head = False
        self._pool.remove(self)
        self._read_s = READ_S
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.is_admitted = self.is_admitted or _ADMITTED in self.cycle.scope["state"]
        self.timeout_keep_alive = KEEP_ALIVE_S if self.is_admitted else HEAD_S  # type: ignore[assignment]
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._pool.add_idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since_s = self.loop.time()
        self._unread_due = self.loop.call_later(self._read_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_due is not None:
            self._unread_due.cancel()
            self._unread_due = None
            unread_s = self.loop.time() - self._unread_since_s
            self._read_s = min(READ_S, self._read_s - unread_s + DRAINED_BYTES / READ_BYTES_PER_S)

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_S, self.transport.close)
