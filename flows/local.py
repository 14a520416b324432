"""The engine for callers in this process: on a separate thread, over a state directory."""

import asyncio
import atexit
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from recallflow import errors
from recallflow.connectors.local_inputs import LocalCalls
from recallflow.control import DELAY_MS, ControlHistory, TokenKey
from recallflow.credentials import Headers
from recallflow.distribution import remedy_for
from recallflow.embedder import Matrix
from recallflow.events import MemoryEvent, UserErase
from recallflow.flows.admission import follow_token_keys, record_now, trust_of
from recallflow.flows.config import Config
from recallflow.flows.embedded import EmbeddedEngine, StateLoop
from recallflow.flows.engine_metrics import LocalMetrics
from recallflow.flows.gc_policy import engine_process
from recallflow.flows.models import CallerEmbedder
from recallflow.flows.runner import now_ms
from recallflow.flows.settings import AuthSettings, open_at_rest
from recallflow.limits import RECORD_BYTES
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.events import Item, decode
from recallflow.operators.quotas import Rates
from recallflow.outputs import Answer, DeadLetter
from recallflow.owner import Owner
from recallflow.process import backoffs_s
from recallflow.queries import QueryEvent
from recallflow.records import Position, Record
from recallflow.responses import Receipt, Response
from recallflow.service import StoredEvent
from recallflow.state.description import CALLERS_LOG
from recallflow.state.directory import StateDirectory
from recallflow.state.files import is_temporary
from recallflow.state.lock import command
from recallflow.state.state_hash import readable_owners

EVENTS, QUERIES = CALLERS_LOG, f"{CALLERS_LOG}.queries"  # the topics in the positions of events and of queries
LISTED_OWNERS_MAX = 1_000  # owners that the explorer can list
IN_PROGRESS_MAX = 256  # concurrent events of a tenant, and as many queries; further ones wait
CLOSE_TIMEOUT_S = 20.0
REOPEN_PAUSE_S, REOPEN_PAUSE_MAX_S = 0.5, 30.0  # after I/O errors
_IN_USE_REMEDY = (
    "close() that Memory first, share one among threads, or give another path; several processes share an engine "
    "behind `recallflow serve`, or on Kafka with RecallClient"
)
_LATE = "the position of wait_for was not reached, or the engine is overloaded: ask again, or give it more time"
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class LocalService:
    """An engine in this process. An event is acknowledged only after it is applied, because no log preserves it if the
    process crashes."""

    calls: LocalCalls  # the queue to the engine's thread
    metrics: LocalMetrics
    embedding: CallerEmbedder | None  # embeds texts with a remote service; None for a local embedder
    authoriser: Authoriser  # for the threads of callers, in servers and in `_embed`; the engine's thread has another
    finish_cleaning: Callable[[], None]  # returns once no file holds erased data
    readable_owners: dict[Owner, None]  # owners with memories at the start or later

    def __post_init__(self) -> None:
        # By topic and tenant. A semaphore is dropped after the last record in progress.
        self._semaphores = WeakValueDictionary[tuple[str, str], asyncio.Semaphore]()

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        query_id = query.id or uuid.uuid4().hex
        value = _encoded(query.model_copy(update={"id": query_id}))
        try:
            async with asyncio.timeout(timeout_s), self._semaphore(QUERIES, query.tenant_id):
                with self.calls.put(QUERIES, query.tenant_id, value, headers) as call:
                    answer = cast(Answer, await asyncio.wrap_future(call.outcome))
        except TimeoutError:
            raise errors.QueryTimeout(query_id, timeout_s, None, self.obstacle() or _LATE) from None
        return Response.model_validate_json(answer.body)

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> StoredEvent:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.store(event, headers)
        except TimeoutError:
            raise errors.DeliveryFailed(f"the event was not applied within {timeout_s:g} s; it may still be") from None

    async def erase(self, event: UserErase, headers: Headers) -> StoredEvent:
        """Erase a user. Return once no file holds their data. Raise StorageError if files are not purged; the engine
        then retries the purge."""
        stored = await self.store(event, headers)
        try:
            await asyncio.to_thread(self.finish_cleaning)
        except errors.StorageError as error:
            raise errors.StorageError(
                f"the user is erased; purging files failed and will be retried: {error}"
            ) from error
        return stored

    async def store(self, event: MemoryEvent, headers: Headers) -> StoredEvent:
        """Apply an event, and return its position and receipt. Raise InvalidRecord if it was refused."""
        value = _encoded(event.model_copy(update={"receipt": True}))
        embedding = await self._embed(event, headers)  # outside the semaphore, which limits waits for the engine only
        keep_embedding = partial(self._keep_embedding, embedding)
        try:
            async with self._semaphore(EVENTS, event.tenant_id):
                with self.calls.put(EVENTS, event.tenant_id, value, headers, keep_embedding) as call:
                    outcome = await asyncio.wrap_future(call.outcome)
        except errors.SourceError as error:
            raise errors.DeliveryFailed(f"{error}; the event may have been stored") from error
        if isinstance(outcome, DeadLetter):
            raise outcome.error
        self._note_owner(event)
        return StoredEvent(call.record.position, Receipt.model_validate_json(outcome.body))

    def _note_owner(self, event: MemoryEvent) -> None:
        if not isinstance(event, UserErase):
            if len(self.readable_owners) < LISTED_OWNERS_MAX:
                self.readable_owners[event.owner] = None
            return
        for owner in [*filter(event.covers, self.readable_owners)]:
            del self.readable_owners[owner]

    def owners(self) -> Collection[Owner]:
        return self.readable_owners.keys()

    async def _embed(self, event: MemoryEvent, headers: Headers) -> Matrix | str | None:
        """Return the remote embedding of an event's text, or the code of a failure. Return None if the event needs none
        or will be refused, because calls of the service cost."""
        if self.embedding is None:
            return None
        try:
            self.authoriser.check(record_now(headers), event)
        except errors.InvalidRecord:
            return None
        try:
            return await self.embedding.embed(event)
        except errors.EmbedderError as error:
            raise errors.DeliveryFailed(str(error)) from error

    def _semaphore(self, topic: str, tenant_id: str) -> asyncio.Semaphore:
        return self._semaphores.setdefault((topic, tenant_id), asyncio.Semaphore(IN_PROGRESS_MAX))

    def _keep_embedding(self, embedding: Matrix | str | None, position: Position) -> None:
        if self.embedding is not None and embedding is not None:
            self.embedding.keep(position, embedding)

    def obstacle(self) -> str:
        return self.calls.obstacle

    def stop_reason(self) -> str:
        return self.calls.failure


@contextmanager
def open_local(config: Config, decisions: ControlHistory, *, lists_owners: bool = False) -> Iterator[LocalService]:
    """Open the engine over `config.state_dir`, or a temporary directory, on a separate thread. At exit, the engine
    finishes the calls in progress. `lists_owners`: read the owners with memories. Raise the error of a failed start."""
    if (warning := config.enrichment.unavailable_warning()) is not None:
        _log.warning(warning)
    with ExitStack() as stack:
        at_rest = open_at_rest(config.encryption)
        opened = EmbeddedEngine.open(config.engine, config.state_dir, decisions, config.models, at_rest)
        embedded = stack.enter_context(opened)
        trust = stack.enter_context(_trust(config.auth, decisions))
        wake = None if embedded.query_models is None else embedded.query_models.runtime.completions.wake
        embedding = None if embedded.batch_embedder is None else CallerEmbedder(embedded.batch_embedder)
        calls = LocalCalls(EVENTS, QUERIES, wake)
        authoriser, rates = Authoriser(decisions, trust), Rates(decisions, "", (EVENTS, QUERIES))
        partitions = embedded.directory.existing_partitions() if lists_owners else ()
        owners = dict.fromkeys(islice(chain.from_iterable(map(readable_owners, partitions)), LISTED_OWNERS_MAX))
        metrics = LocalMetrics(calls, embedded.directory, authoriser)

        def decode_and_authorise(record: Record) -> Item:
            return rates.judge(authoriser.authorise(decode(record)))

        def open_loop() -> StateLoop:
            rules = replace(embedded.rules(calls.queries, input_ends=False), is_replayable=False)
            observe, complete = metrics.output_counter.observe, None if embedding is None else embedding.attach
            return StateLoop(embedded, rules, decode=decode_and_authorise, observe=observe, complete=complete)

        stack.enter_context(_running(embedded.directory, calls, open_loop))
        callers = Authoriser(decisions, trust)
        yield LocalService(calls, metrics, embedding, callers, embedded.directory.finish_cleaning, owners)


@contextmanager
def _running(directory: StateDirectory, calls: LocalCalls, open_loop: Callable[[], StateLoop]) -> Iterator[None]:
    """Run the engine on a separate thread within the block. Raise its error."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with engine_process():
                _serve(directory, calls, open_loop)
        except BaseException as error:  # noqa: BLE001 - callers receive it
            failures.append(error)
            is_safe = isinstance(error, errors.RecallflowError | OSError)  # the text of other errors may quote a memory
            calls.fail(f"the engine has stopped: {error if is_safe else 'an internal error; see the log'}")
            _log.error("the engine has stopped: %s", error if is_safe else errors.trace_of(error))
        else:
            calls.fail("the engine has stopped")

    thread = threading.Thread(target=run, name="recallflow-engine", daemon=True)
    thread.start()
    calls.await_begin()
    if failures:
        thread.join()
        raise failures[0]
    try:
        yield
    finally:
        calls.end("the engine is stopping", CLOSE_TIMEOUT_S)
        thread.join()
    if failures:
        raise failures[0]


def _serve(directory: StateDirectory, calls: LocalCalls, open_loop: Callable[[], StateLoop]) -> None:
    """Serve calls until they end. After a transient I/O error, reopen the state, which has all applied records."""
    directory.on_storage_failure = calls.wake.set
    pauses_s = backoffs_s(REOPEN_PAUSE_S, REOPEN_PAUSE_MAX_S)
    while True:
        began_s = time.monotonic()
        try:
            open_loop().serve(calls)
        except (errors.StateError, OSError) as error:
            if not calls.has_begun or calls.ended or not (is_temporary(error) or isinstance(error, errors.StateInUse)):
                raise
            reason = str(error)
        else:
            return
        calls.interrupt(f"the engine cannot use its state, and will retry: {reason}")
        if time.monotonic() - began_s > REOPEN_PAUSE_MAX_S:
            pauses_s = backoffs_s(REOPEN_PAUSE_S, REOPEN_PAUSE_MAX_S)
        pause_s = next(pauses_s)
        _log.error("the engine reopens its state in %g s: %s", pause_s, reason)
        directory.discard_partitions()
        if calls.is_ended_within(pause_s):
            return


@contextmanager
def _trust(auth: AuthSettings, decisions: ControlHistory) -> Iterator[Trust]:
    """Open the trust settings. Token keys apply at once: no control topic delays them, so `DELAY_MS` is subtracted."""
    secrets: dict[str, bytes] = {}

    def announce(events: Sequence[TokenKey]) -> None:
        append_ms = now_ms() - DELAY_MS
        for event in events:
            decisions.add(append_ms, event)

    with follow_token_keys(auth, decisions, secrets, announce):
        yield trust_of(auth, secrets)


def _encoded(event: MemoryEvent | QueryEvent) -> bytes:
    value = event.model_dump_json(exclude_unset=True).encode()
    if len(value) > RECORD_BYTES:
        raise errors.InvalidRecord.of("too_large", f"over {RECORD_BYTES} bytes; split it, or store a reference")
    return value


class EngineThread:
    """An engine on its thread, which the constructor starts. All methods are thread-safe."""

    def __init__(self, config: Config, decisions: ControlHistory, name: str) -> None:
        """Start the engine. `name` identifies it to other processes that find the directory in use."""
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()  # so that cancelling a waiting caller does not cancel the start
        self._config, self._decisions, self._name = config, decisions, name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recallflow-memory", daemon=True)
        _open_engines.add(self)
        self._thread.start()

    def submit(self, call: Callable[[LocalService], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Return the future of a call. Raise UsageError if closed or forked, and the error of a failed start."""
        if os.getpid() != self._pid:
            raise errors.UsageError(
                f"this memory was opened by process {self._pid}, and this one was forked from it: open it in one "
                "process, and not before a fork"
            )
        self.ready.result()
        with self._lock:
            if self._closed:
                raise errors.UsageError("the memory is closed")
            return asyncio.run_coroutine_threadsafe(call(self._service), self._loop)

    def stop(self) -> None:
        """Refuse new calls, and let the thread end after the calls in progress."""
        if os.getpid() != self._pid:  # in a forked process, a missing thread may hold the lock
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.ready.add_done_callback(self._end)

    def close(self) -> None:
        """Stop the engine, and wait for its thread. Raise the error that it ended with. A second call has no effect."""
        self.stop()
        if os.getpid() == self._pid:
            self._thread.join()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _end(self, ready: "Future[None]") -> None:
        if ready.exception() is None:
            self._loop.call_soon_threadsafe(self._end_requested.set)

    def _run(self) -> None:
        command.set(self._name)
        try:
            with open_local(self._config, self._decisions) as service:
                asyncio.run(self._serve(service))
        except BaseException as error:  # noqa: BLE001 - callers receive it
            if isinstance(error, errors.StateInUse):
                error = errors.StateInUse(error.holder, _IN_USE_REMEDY)
            elif isinstance(error, ModuleNotFoundError) and (to_install := remedy_for(error)) is not None:
                error = errors.UsageError(to_install)
            if self.ready.done():
                self._failure = error
            else:
                self.ready.set_exception(error)

    async def _serve(self, service: LocalService) -> None:
        self._service, self._loop, self._end_requested = service, asyncio.get_running_loop(), asyncio.Event()
        self.ready.set_result(None)
        await self._end_requested.wait()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*calls, return_exceptions=True)


_open_engines = WeakSet[EngineThread]()


def _close_all() -> None:
    """Close all engines before the interpreter stops daemon threads at arbitrary points."""
    for engine in [*_open_engines]:
        with suppress(Exception):  # the engine has logged it
            engine.close()


# `atexit` runs too late: closing needs executors, and by then they refuse work. They use the same private hook.
_register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_register(_close_all)
