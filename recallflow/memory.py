"""Embedded engine: `Memory` blocks, the methods of `AsyncMemory` are awaited.

    with Memory("memories") as memory:
        memory.add("I live in Porto", user="ann")
        print(memory.search("Where does Ann live?", user="ann", k=5))

The method names equal those in `RecallClient` and `AsyncRecallClient`, so a program runs on either. The operators and
the state format equal an engine's on Kafka: commands can open the directory while no program has it open, and
vice versa. A write is applied and survives a kill of the program once its call returns. Errors: `recallflow.errors`."""

import asyncio
import os
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import recallflow.flows  # noqa: F401 - recallflow-client has no engine: its users get an error at this import
from recallflow.credentials import Headers
from recallflow.errors import UsageError
from recallflow.events import MemoryEvent, MemoryForget, UserErase
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Response
from recallflow.service import StoredEvent, check_forgotten
from recallflow.verbs.arguments import AnyEvent, ClientScope, with_argument_help
from recallflow.verbs.results import map_future
from recallflow.verbs.verbs import AsyncCalls, SyncCalls, Verbs, given_fields

if TYPE_CHECKING:  # the first memory imports the engine, so that the import of this module stays quick
    from recallflow.flows.config import Config
    from recallflow.flows.local import LocalService

StrPath = str | os.PathLike[str]


class LocalVerbs(Verbs):
    """Calls on an engine in this process. When the call of a write returns, the event is applied."""

    def __init__(self, scope: ClientScope, timeout_s: float, config: "Config", control: Path | None) -> None:
        from recallflow.flows.admission import read_control_file
        from recallflow.flows.local import EngineThread

        super().__init__(scope, timeout_s)
        self._config = config
        self.engine = EngineThread(config, read_control_file(control), "recallflow.Memory")

    def _put(self, event: AnyEvent) -> "Future[Position]":
        headers, memory_event = self._headers(), _checked_memory_event(event)
        if isinstance(memory_event, UserErase):
            applied = self.engine.submit(lambda service: service.erase(memory_event, headers))
        else:
            applied = self.engine.submit(lambda service: service.store(memory_event, headers))

        def position(stored: StoredEvent) -> Position:
            """Return the position. Raise InvalidRecord for a `memory.forget` of a memory that does not exist."""
            if isinstance(memory_event, MemoryForget) and memory_event.memory_id:
                check_forgotten(stored.receipt)
            return stored.position

        return map_future(applied, position)

    def _put_all(self, events: Sequence[AnyEvent]) -> "Future[list[Position]]":
        from recallflow.connectors.embedders import REMOTE

        if self._config.engine.embedder != REMOTE:
            return super()._put_all(events)
        headers, memory_events = self._headers(), [*map(_checked_memory_event, events)]

        async def store_in_order(service: "LocalService") -> list[Position]:
            """Store one event after the other: while a service embeds a text, a later event could be stored first."""
            return [(await service.store(event, headers)).position for event in memory_events]

        return self.engine.submit(store_in_order)

    def _answer(self, query: QueryEvent, timeout_s: float) -> "Future[Response]":
        headers = self._headers()
        response = self.engine.submit(lambda service: service.ask(query, headers, timeout_s))
        return map_future(response, lambda done: done.checked())

    def _headers(self) -> Headers:
        if "opentelemetry.trace" not in sys.modules:  # this program has no span
            return self._config.auth.credentials
        from recallflow.telemetry import trace_headers

        return (*self._config.auth.credentials, *trace_headers())

    def close(self) -> None:
        """Wait for calls in flight, and close. A second call has no effect."""
        self.engine.close()


class _EmbeddedEngine:
    _verbs: Verbs

    @with_argument_help
    def __init__(
        self,
        path: StrPath | None = None,
        *,
        tenant: str = "default",
        environment: str = "prod",
        embedder: str | None = None,
        model_path: StrPath | None = None,
        config: StrPath | None = None,
        control: StrPath | None = None,
        master_key_file: StrPath | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Open a memory.

        Args:
            path: state directory, created if missing; without one, the memory is temporary.
            tenant: tenant of all calls.
            environment: environment of all calls.
            embedder: `meaning`, `hash`, `static`, `minilm`, … (docs/how-to/embedders.md); a directory keeps
                the one that it was created with.
            model_path: folder of the embedder's model.
            config: file of other settings, in the format of the `recallflow` command. Environment variables
                `RECALLFLOW_…` override it, and arguments override both.
            control: file of administrators' decisions (control events).
            master_key_file: file of the key that encrypts stored data.
            timeout_s: time limit of an answer.

        Raises UsageError and InvalidRecord for invalid arguments. `Memory` also raises errors of opening the directory,
        which `AsyncMemory` raises on entry, or at the first call."""
        from recallflow.flows.config import RawSetting, read_config

        self._path = None if path is None else Path(path)
        arguments = given_fields(embedder=embedder, model_path=model_path, master_key_file=master_key_file)
        sections = {"embedder": "engine", "model_path": "engine", "master_key_file": "encryption"}
        flags = {f"{sections[name]}.{name}": RawSetting(name, os.fspath(value)) for name, value in arguments.items()}
        settings, _ = read_config(flags, os.environ, None if config is None else Path(config))
        scope, control_file = ClientScope(tenant, environment), None if control is None else Path(control)
        verbs = LocalVerbs(scope, timeout_s, replace(settings, state_dir=self._path), control_file)
        self._verbs, self._engine = verbs, verbs.engine
        weakref.finalize(self, verbs.engine.stop).atexit = False  # at exit, `flows.local` closes all engines
        if isinstance(self, SyncCalls):  # asynchronous calls await it
            self._engine.ready.result()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._path is None else repr(str(self._path))})"


class Memory(_EmbeddedEngine, SyncCalls):
    """A memory in this process; every call waits for its outcome. For use from any number of threads."""


class AsyncMemory(_EmbeddedEngine, AsyncCalls):
    """A memory in this process; every call is awaited. For use from one or several event loops."""

    async def _opened(self) -> None:
        await asyncio.wrap_future(self._engine.ready)


def _checked_memory_event(event: AnyEvent) -> MemoryEvent:
    if event.type in QUERY_TYPES:
        raise UsageError(f"{event.type} is a query: use ask()")
    return cast(MemoryEvent, event)
