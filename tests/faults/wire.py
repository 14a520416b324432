"""A wire between an engine and its broker, that can be cut while both of them live."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from benchmarks.broker import HOST, Broker, Cluster
from tests.fleet.engine import Topics

CHUNK_BYTES = 65_536


class Wire:
    """A proxy of the broker's `wire_port`. While it is cut, all connections are closed and no new one is accepted."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._whole = True
        self._entrance = socket.create_server((HOST, broker.wire_port))
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def through(self, topics: Topics) -> Topics:
        return Topics(Cluster(f"{HOST}:{self._broker.wire_port}"), topics.suffix)

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            for end in self._ends:
                _end(end)
            self._ends.clear()

    def mend(self) -> None:
        with self._lock:
            self._whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        _end(self._entrance)
        self._entrance.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # the entrance was closed
            while True:
                self._connect(self._entrance.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            if self._whole:
                # Where the broker is not there, whoever connects is told as without a wire.
                with suppress(OSError):
                    broker = socket.create_connection((HOST, self._broker.wired_port))
                    self._ends += [client, broker]
                    self._start(_carry, client, broker)
                    return
        client.close()

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _carry(client: socket.socket, broker: socket.socket) -> None:
    with client, broker:
        back = threading.Thread(target=_pump, args=(broker, client), daemon=True)
        back.start()
        _pump(client, broker)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    _end(source)
    _end(sink)


def _end(one: socket.socket) -> None:
    with suppress(OSError):  # it may have ended by itself
        one.shutdown(socket.SHUT_RDWR)
