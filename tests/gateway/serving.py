"""The gateway for tests: before an engine that says what the test wants, over real HTTP on a free port."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.deciding import RolloutShown
from recallflow.connectors.http.limits import Limits
from recallflow.connectors.http.server import Server, address, listen
from recallflow.control import Rollout
from recallflow.credentials import Headers
from recallflow.decisions import History
from recallflow.events import Event, MemoryEvent
from recallflow.flows.config import Config
from recallflow.flows.local import open_local
from recallflow.flows.machine_metrics import registry_of
from recallflow.flows.present import Present
from recallflow.flows.rollouts import TenantRollouts, to_file
from recallflow.operators.authorise import Authoriser
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Receipt, Response
from recallflow.service import Stored


class Engine:
    """A service that notes what comes. `answer` and `refuse` are for a test to set; while `held`, nothing is
    answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[QueryEvent, Headers]] = []
        self.stored: list[tuple[MemoryEvent, Headers]] = []
        self.answer: Callable[[QueryEvent], Response] = lambda query: Response(query_id=query.id or "q", status="ok")
        self.refuse: Callable[[Event], None] = lambda _: None
        self.receipt: Receipt | None = Receipt(id="m", position="memory:0:0", outcome="created", memory_id="m")
        self.in_the_way = ""
        self.under_way = 0
        self.release = threading.Event()
        self.release.set()

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:  # noqa: ARG002
        self.asked.append((query, headers))
        await self._released()
        self.refuse(query)
        return self.answer(query)

    async def store(self, event: MemoryEvent, headers: Headers) -> Stored:
        await self._released()
        self.refuse(event)
        self.stored.append((event, headers))
        return Stored(Position("memory", 0, len(self.stored) - 1))

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> Stored:  # noqa: ARG002
        return Stored((await self.store(event, headers)).position, self.receipt)

    async def _released(self) -> None:
        self.under_way += 1
        try:
            while not self.release.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1

    def obstacle(self) -> str:
        return self.in_the_way


class Everybody:
    """Admission for everybody, unless a test says otherwise."""

    def __init__(self) -> None:
        self.refuse: Callable[[Event, Headers], None] = lambda *_: None

    def check(self, event: Event, headers: Headers) -> None:
        self.refuse(event, headers)


class Undecided:
    """Rollouts of which nobody decided anything; notes what is decided."""

    def __init__(self) -> None:
        self.decided: list[Rollout] = []

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:  # noqa: ARG002
        return RolloutShown(tenant_id=tenant_id, mode="off", since=None, by=None, why=None, gate=None)

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:  # noqa: ARG002
        self.decided.append(rollout)


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serves an app on a thread; gives its address."""
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
    """A client of a gateway before an engine."""
    app = build_app(engine, admission or Everybody(), Undecided(), limits or Limits(), CollectorRegistry())
    with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@contextmanager
def real_gateway(config: Config, control: Path, decisions: History | None = None) -> Iterator[str]:
    """The address of a gateway with an engine of its own, as `recallflow serve --state-dir` has it. `control`: the file
    of decisions."""
    history = History() if decisions is None else decisions
    with open_local(config, history) as service:
        authoriser = Authoriser(history, service.trust)
        present = Present(authoriser)
        rollouts = TenantRollouts(present, history, to_file(control, history))
        app = build_app(service, present, rollouts, Limits(), registry_of(service.metrics))
        with served(app) as url:
            yield url
