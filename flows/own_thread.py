"""An engine on a thread of its own, for callers that are no coroutines, or run on event loops of their own.

The thread opens the engine and closes it again, so that the lock on the state directory is this engine's alone: not
even another one of the same program opens the directory meanwhile. An engine that nobody closes is closed as the
program ends.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from recallflow.decisions import History
from recallflow.errors import StateInUse, UsageError
from recallflow.extras import way_out
from recallflow.flows.config import Config
from recallflow.flows.local import LocalService, open_local
from recallflow.state.lock import command

T = TypeVar("T")

_SHARE = (
    "close() that Memory first, share one among threads, or give another path; several processes share an engine "
    "behind `recallflow serve`, or on Kafka with RecallClient"
)


class OwnThread:
    """An engine that begins at once, on a thread of its own. Thread-safe."""

    def __init__(self, config: Config, decisions: History, name: str) -> None:
        """`name`: what a process that finds the directory in use is told of us."""
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()  # who waits may give up; it begins all the same
        self._config, self._decisions, self._name = config, decisions, name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recallflow-memory", daemon=True)
        _open.add(self)
        self._thread.start()

    def submit(self, call: Callable[[LocalService], Coroutine[Any, Any, T]]) -> "Future[T]":
        """The outcome of a call of the engine. Raises UsageError where it is closed, or another process's, and why it
        did not begin."""
        self._check_ours()
        self.ready.result()
        with self._lock:
            if self._closed:
                raise UsageError("the memory is closed")
            return asyncio.run_coroutine_threadsafe(call(self._service), self._loop)

    def stop(self) -> None:
        """Takes no call any more, and has the thread end once those under way have ended."""
        if os.getpid() != self._pid:  # where the lock may be held by a thread that there is not
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.ready.add_done_callback(self._end)

    def close(self) -> None:
        """The same, and returns once the thread has ended. Raises what the engine ended with. A second call does
        nothing more."""
        self.stop()
        if os.getpid() == self._pid:
            self._thread.join()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _check_ours(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"this memory was opened by process {self._pid}, and this one was forked from it: open it in one "
                "process, and not before a fork"
            )

    def _end(self, begun: "Future[None]") -> None:
        if begun.exception() is None:
            self._loop.call_soon_threadsafe(self._ends.set)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        command.set(self._name)
        try:
            with open_local(self._config, self._decisions) as service:
                asyncio.run(self._serve(service))
        except BaseException as error:  # noqa: BLE001 - whoever calls is told
            if isinstance(error, StateInUse):
                error = StateInUse(error.holder, _SHARE)
            elif isinstance(error, ModuleNotFoundError) and (to_install := way_out(error)) is not None:
                error = UsageError(to_install)
            if self.ready.done():
                self._failure = error
            else:
                self.ready.set_exception(error)

    async def _serve(self, service: LocalService) -> None:
        self._service, self._loop, self._ends = service, asyncio.get_running_loop(), asyncio.Event()
        self.ready.set_result(None)
        await self._ends.wait()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*under_way, return_exceptions=True)


_open = WeakSet[OwnThread]()


def _close_all() -> None:
    """Daemon threads are stopped wherever they are as a program ends: these are to be through by then."""
    for one in [*_open]:
        with suppress(Exception):  # the engine's log says it
            one.close()


# `atexit` comes too late: executors, which the engine ends with, take nothing any more by then. They stop by this.
_register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_register(_close_all)
