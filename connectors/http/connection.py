"""One client's connection: what it may take its time with, and what not.

Uvicorn waits for ever for headers, takes as many as come, and waits for ever for a client that does not read."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request's line and headers
HEAD_S = 10.0
READ_S = 30.0  # so long a client may leave unread what it is sent


class Connection(HttpToolsProtocol):
    """Closes where headers do not come in time or do not end, and where answers are not read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = False  # a request has begun, and its headers have not ended
        self._head_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None
        self._unread_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
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
            self._await_head()  # bytes between two requests, or what is left of a body that nobody reads

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._head_bytes = True, 0
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head = False
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_due = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_due is not None:
            self._unread_due.cancel()
            self._unread_due = None

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_S, self.transport.close)
