"""The engine for callers in this process: on a thread of its own, over a state directory."""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import cast
from weakref import WeakValueDictionary

from recallflow.background import exponential
from recallflow.connectors.calls import Calls
from recallflow.control import SETTLED_MS, TokenKey
from recallflow.credentials import Headers
from recallflow.decisions import History
from recallflow.embedder import Matrix
from recallflow.errors import (
    DeliveryFailed,
    EmbedderError,
    FieldProblem,
    InvalidRecord,
    QueryTimeout,
    RecallflowError,
    SourceError,
    StateError,
    StateInUse,
    StorageError,
    trace_of,
)
from recallflow.events import MemoryEvent, UserErase
from recallflow.flows.admission import TokenKeys, key_source, record_now, trust_of
from recallflow.flows.config import Config
from recallflow.flows.embedded import Embedded
from recallflow.flows.engine_metrics import LocalMetrics
from recallflow.flows.gc_policy import computing
from recallflow.flows.models import Beside
from recallflow.flows.security_settings import AuthSettings, open_at_rest
from recallflow.flows.state_loop import StateLoop
from recallflow.limits import RECORD_BYTES
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.quotas import Rates
from recallflow.outputs import Answer, DeadLetter
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position, Record
from recallflow.responses import Receipt, Response
from recallflow.service import Stored
from recallflow.state.files import is_passing
from recallflow.state.logical import known_owners
from recallflow.state.sources import CALLERS_LOG

EVENTS, QUERIES = CALLERS_LOG, f"{CALLERS_LOG}.queries"  # the two logs, as positions name them
OWNERS_KNOWN = 1_000  # that the explorer can list
UNDER_WAY_MAX = 256  # events of a tenant, and as many questions; others wait until one is through
CLOSING_S = 20.0
REOPEN_S, REOPEN_MOST_S = 0.5, 30.0  # pauses after I/O errors
_LATE = "it waited for what did not come (wait_for), or there is too much to do: ask again, or give it more time"

_log = logging.getLogger(__name__)


class LocalService:
    """An engine in this process. An event is acknowledged once it is applied: nothing else keeps it over a kill."""

    def __init__(
        self,
        calls: Calls,
        trust: Trust,
        metrics: LocalMetrics,
        beside: Beside | None,
        admit: Authoriser,
        finish_cleaning: Callable[[], None],
        owners: Iterable[Owner],
    ) -> None:
        """`trust`: who is believed, for whoever judges callers beforehand. `beside`: where texts are embedded by a
        service, of those whom it `admit`s: nobody else's cost a call. `finish_cleaning` returns once no file holds
        anything of what was erased. `owners`: those with memories at the start."""
        self.trust = trust
        self.metrics = metrics
        self._calls = calls
        self._beside, self._admit = beside, admit
        self._finish_cleaning = finish_cleaning
        self._owners = dict.fromkeys(owners)
        # By topic and tenant; a tenant's goes with its last record under way.
        self._rooms = WeakValueDictionary[tuple[str, str], asyncio.Semaphore]()

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        query_id = query.id or uuid.uuid4().hex
        value = _encoded(query.model_copy(update={"id": query_id}))
        try:
            async with asyncio.timeout(timeout_s), self._room(QUERIES, query.tenant_id):
                with self._calls.put(QUERIES, query.tenant_id, value, headers) as call:
                    answer = cast(Answer, await asyncio.wrap_future(call.outcome))
        except TimeoutError:
            raise QueryTimeout(query_id, timeout_s, None, self.obstacle() or _LATE) from None
        return Response.model_validate_json(answer.body)

    async def store(self, event: MemoryEvent, headers: Headers) -> Stored:
        return await self._applied(event, headers)

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> Stored:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._applied(event, headers)
        except TimeoutError:
            raise DeliveryFailed(f"it was not applied within {timeout_s:g} s: it may still be") from None

    async def erase(self, event: UserErase, headers: Headers) -> Stored:
        """Applies an erasure, and returns once no file of the state directory holds anything of the user. Raises
        StorageError where the user is erased and files could not be purged: that is tried again in the background."""
        stored = await self._applied(event, headers)
        try:
            await asyncio.to_thread(self._finish_cleaning)
        except StorageError as error:
            raise StorageError(f"the user is erased, files are not purged yet; that is tried again: {error}") from error
        return stored

    async def _applied(self, event: MemoryEvent, headers: Headers) -> Stored:
        """Where an event stands, once it is applied. Raises InvalidRecord where it was refused."""
        value = _encoded(event.model_copy(update={"receipt": True}))
        found = await self._embedded(event, headers)  # not among those under way: they wait for the engine alone
        try:
            async with self._room(EVENTS, event.tenant_id):
                with self._calls.put(EVENTS, event.tenant_id, value, headers, partial(self._keep, found)) as call:
                    outcome = await asyncio.wrap_future(call.outcome)
        except SourceError as error:
            raise DeliveryFailed(f"{error}; the event may have been stored") from error
        if isinstance(outcome, DeadLetter):
            raise outcome.error
        self._note_owner(event)
        return Stored(call.record.position, Receipt.model_validate_json(outcome.body))

    def _note_owner(self, event: MemoryEvent) -> None:
        """Add the owner of an applied event to the known ones, or remove those that it erased."""
        if not isinstance(event, UserErase):
            if len(self._owners) < OWNERS_KNOWN:
                self._owners[event.owner] = None
            return
        for owner in [*self._owners]:
            is_users = (owner.tenant_id, owner.user_id) == (event.tenant_id, event.user_id)
            if is_users and event.environment in (None, owner.environment):
                del self._owners[owner]

    def owners(self) -> Collection[Owner]:
        return self._owners.keys()

    async def _embedded(self, event: MemoryEvent, headers: Headers) -> Matrix | str | None:
        """What a service makes of an event's text, if there is one and it should: the engine's own verdict comes."""
        if self._beside is None:
            return None
        try:
            self._admit.check(record_now(headers), event)
        except InvalidRecord:
            return None
        try:
            return await self._beside.embed(event)
        except EmbedderError as error:
            raise DeliveryFailed(str(error)) from error

    def _room(self, topic: str, tenant_id: str) -> asyncio.Semaphore:
        room = self._rooms.get((topic, tenant_id))
        if room is None:
            room = self._rooms[topic, tenant_id] = asyncio.Semaphore(UNDER_WAY_MAX)
        return room

    def _keep(self, found: Matrix | str | None, position: Position) -> None:
        if self._beside is not None and found is not None:
            self._beside.keep(position, found)

    def obstacle(self) -> str:
        return self._calls.obstacle

    def stopped(self) -> str:
        return self._calls.stopped


@contextmanager
def open_local(config: Config, decisions: History, *, lists_owners: bool = False) -> Iterator[LocalService]:
    """The engine over `config.state_dir`, or one that is gone afterwards, on a thread of its own. `decisions`: what
    operators decided. In the end no call is taken any more, and those under way are seen to their end. `lists_owners`:
    read at the start who has memories, for callers that list owners. Raises what a start can fail with."""
    if (warning := config.enrichment.unavailable()) is not None:
        _log.warning(warning)
    with ExitStack() as stack:
        at_rest = open_at_rest(config.encryption)
        opened = Embedded.open(config.engine, config.state_dir, decisions, config.models, at_rest)
        embedded = stack.enter_context(opened)
        trust = stack.enter_context(_trust(config.auth, decisions))
        wake = None if embedded.asked is None else embedded.asked.runtime.completions.wake
        beside = None if embedded.ahead is None else Beside(embedded.ahead)
        calls = Calls(EVENTS, QUERIES, wake)
        authoriser, rates = Authoriser(decisions, trust), Rates(decisions, "", (EVENTS, QUERIES))
        partitions = embedded.directory.existing_partitions() if lists_owners else ()
        owners = [*islice(chain.from_iterable(map(known_owners, partitions)), OWNERS_KNOWN)]
        metrics = LocalMetrics(calls, embedded.directory, authoriser)
        stack.enter_context(_running(embedded, calls, authoriser, rates, metrics, beside))
        admit = Authoriser(decisions, trust)
        yield LocalService(calls, trust, metrics, beside, admit, embedded.directory.finish_cleaning, owners)


@contextmanager
def _running(
    embedded: Embedded,
    calls: Calls,
    authoriser: Authoriser,
    rates: Rates,
    metrics: LocalMetrics,
    beside: Beside | None,
) -> Iterator[None]:
    """Runs the engine on a thread. Raises what it ended with before it took anything."""
    failures: list[BaseException] = []

    def judge(record: Record) -> Item:
        return rates.judge(authoriser.authorise(decode(record)))

    def open_engine() -> StateLoop:
        rules = replace(embedded.rules(calls.queries, input_ends=False), comes_again=False)
        ahead = None if beside is None else beside.attach
        return embedded.loop(rules, decode=judge, observe=metrics.tally.observe, ahead=ahead)

    def run() -> None:
        try:
            with computing():
                _serve(embedded, calls, open_engine)
        except BaseException as error:  # noqa: BLE001 - whoever calls is told
            failures.append(error)
            is_told = isinstance(error, RecallflowError | OSError)  # what another says may quote a memory
            calls.fail(f"the engine has stopped: {error if is_told else 'its own code failed; its log says where'}")
            _log.error("the engine has stopped: %s", error if is_told else trace_of(error))
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
        calls.end("the engine is stopping", CLOSING_S)
        thread.join()
    if failures:
        raise failures[0]


def _serve(embedded: Embedded, calls: Calls, open_engine: Callable[[], StateLoop]) -> None:
    """Serve calls until they end. After an error whose cause may go by itself, the state is opened from the disk again
    and the engine goes on: what it had applied is there, and callers are told to send the rest again."""
    embedded.directory.on_broken = calls.wake.set
    pauses_s = exponential(REOPEN_S, REOPEN_MOST_S)
    while True:
        began_s = time.monotonic()
        try:
            open_engine().serve(calls)
        except (StateError, OSError) as error:
            if not calls.has_begun or calls.has_ended or not (is_passing(error) or isinstance(error, StateInUse)):
                raise
            reason = str(error)
        else:
            return
        calls.interrupt(f"the engine cannot use its state, and tries again: {reason}")
        if time.monotonic() - began_s > REOPEN_MOST_S:
            pauses_s = exponential(REOPEN_S, REOPEN_MOST_S)
        pause_s = next(pauses_s)
        _log.error("the engine opens its state anew in %g s: %s", pause_s, reason)
        embedded.directory.discard_partitions()
        if calls.is_ended_within(pause_s):
            return


@contextmanager
def _trust(auth: AuthSettings, decisions: History) -> Iterator[Trust]:
    """Who is believed. Keys that tokens are signed with hold from when they are read on, and at once: no record was
    judged without them."""
    secrets: dict[str, bytes] = {}
    trust = trust_of(auth, secrets)
    if auth.mode == "off" or (auth.jwks is None and auth.secret is None):
        yield trust
        return

    def announce(events: Sequence[TokenKey]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for event in events:
            decisions.add(now_ms - SETTLED_MS, event)

    token_keys = TokenKeys(auth, key_source(auth), decisions, secrets, announce)
    token_keys.begin()
    with token_keys.running():
        yield trust


def _encoded(event: MemoryEvent | QueryEvent) -> bytes:
    """Raises InvalidRecord (`too_large`)."""
    value = event.model_dump_json(exclude_unset=True).encode()
    if len(value) > RECORD_BYTES:
        raise InvalidRecord(
            "too_large", [FieldProblem("", f"over {RECORD_BYTES} bytes; split it, or store a reference")]
        )
    return value
