"""The gateway in this process, over real HTTP on a free port: before a fake engine, or with an engine of its own."""

import asyncio
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.http.server import Server, address, listen, restrict_hosts
from recallflow.control import Rollout
from recallflow.credentials import Headers
from recallflow.events import Event, MemoryEvent
from recallflow.flows import gateway as gateway_flow
from recallflow.flows.admission import read_control_file
from recallflow.flows.config import Config
from recallflow.flows.settings import Settings
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Receipt, Response
from recallflow.service import RolloutShown, StoredEvent

Start = Callable[..., subprocess.Popen[bytes]]


class Engine:
    """A service that records its calls. Tests set `answer` and `refuse`; while `held`, no call is answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[QueryEvent, Headers]] = []
        self.stored: list[tuple[MemoryEvent, Headers]] = []
        self.answer: Callable[[QueryEvent], Response] = lambda query: Response(query_id=query.id or "q", status="ok")
        self.refuse: Callable[[Event], None] = lambda _: None
        self.receipt: Receipt | None = Receipt(id="m", position="memory:0:0", outcome="created", memory_id="m")
        self.in_the_way = ""
        self.ended = ""
        self.known: list[Owner] = []
        self.under_way = 0
        self.release = threading.Event()
        self.release.set()

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:  # noqa: ARG002
        self.asked.append((query, headers))
        await self._released()
        self.refuse(query)
        return self.answer(query)

    async def store(self, event: MemoryEvent, headers: Headers) -> StoredEvent:
        await self._released()
        self.refuse(event)
        self.stored.append((event, headers))
        return StoredEvent(Position("memory", 0, len(self.stored) - 1))

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> StoredEvent:  # noqa: ARG002
        return StoredEvent((await self.store(event, headers)).position, self.receipt)

    async def _released(self) -> None:
        self.under_way += 1
        try:
            while not self.release.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1

    def owners(self) -> Collection[Owner]:
        return self.known

    def obstacle(self) -> str:
        return self.in_the_way

    def stop_reason(self) -> str:
        return self.ended


class Everybody:
    def __init__(self) -> None:
        self.refuse: Callable[[Event, Headers], None] = lambda *_: None
        self.refuse_unread: Callable[[Headers], None] = lambda _: None

    def authenticate(self, headers: Headers) -> None:
        self.refuse_unread(headers)

    def ids(self, headers: Headers) -> dict[str, str]:  # noqa: ARG002
        return {}

    def check(self, event: Event, headers: Headers) -> None:
        self.refuse(event, headers)


class Undecided:
    def __init__(self) -> None:
        self.decided: list[Rollout] = []

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:  # noqa: ARG002
        return RolloutShown(tenant_id=tenant_id, mode="off", since=None, by=None, why=None, gate=None)

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:  # noqa: ARG002
        self.decided.append(rollout)


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an app on a thread; give its address."""
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, stop_timeout_s=5)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield address(listening)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def gateway(engine: Engine, admission: Everybody | None = None, limits: Limits | None = None) -> Iterator[httpx.Client]:
    """Serve a gateway before a fake engine; give a client of it."""
    app = build_app(engine, admission or Everybody(), Undecided(), limits or Limits(), CollectorRegistry())
    with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@contextmanager
def served_flow(module: ModuleType, run: Callable[[], None]) -> Iterator[str]:
    """Run a flow that serves until a signal on a thread; give its address, and stop it as a signal would.

    The flow's `serve` is replaced: signal handlers belong to the main thread.
    """
    opened: SimpleQueue[tuple[str, Server] | Exception] = SimpleQueue()

    def serve(app: Any, listening: Any, host: str, stop_timeout_s: float) -> None:
        server = Server(restrict_hosts(app, listening, host), stop_timeout_s)
        opened.put((address(listening), server))
        server.run([listening])

    def work() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - raised in the test's thread
            opened.put(error)

    thread = threading.Thread(target=work)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "serve", serve)
        thread.start()
        found = opened.get()
    if isinstance(found, Exception):
        thread.join()
        raise found
    url, server = found
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def local_gateway(config: Config, control: Path | None = None) -> Iterator[str]:
    """Serve as `recallflow serve --state-dir` does, on a free port; give the address.

    Args:
        control: the file of operators' decisions.
    """
    config = replace(config, serve=replace(config.serve, port=0))
    decisions = read_control_file(control)
    with served_flow(gateway_flow, lambda: gateway_flow.serve_local(config, decisions, control)) as url:
        yield url


def config_in(folder: Path, **chosen: Any) -> Config:
    """Return the settings of an engine with one partition in a folder."""
    return Config(state_dir=folder / "s", engine=Settings(partitions=1), **chosen)


class Served:
    """A process of `recallflow serve`. `said`: its standard error until its address, and all of it after the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.said = process, ""
        assert process.stderr is not None
        self._stderr = process.stderr
        while (found := re.search(r"serving at (http://\S+)", self.said)) is None:
            line = self._stderr.readline().decode()
            assert line, self.said
            self.said += line
        self.url = found[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.said += self._stderr.read().decode()
        return self.process.wait()


@contextmanager
def serving(start: Start, *words: str | Path) -> Iterator[Served]:
    """Start `recallflow serve` in a process of its own; SIGTERM ends it with status 0."""
    served = Served(start("serve", "--port", "0", *words))
    yield served
    assert served.stop() == 0, served.said
