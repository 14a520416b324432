"""Calls of the API, each an event or a query. Subclasses send these to an engine in the process or on Kafka."""

import asyncio
import functools
import inspect
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from pydantic import BaseModel

from recallflow.errors import UsageError
from recallflow.events import KINDS, ForgetFilter, MemoryEvent
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import AsOf, Filters, Mode, QueryEvent
from recallflow.records import Position
from recallflow.responses import ListedMemory, MemoryVersion, QueryFailed, Response
from recallflow.verbs import arguments, results
from recallflow.verbs.results import Added, Episodes, FoundFacts, History, Page, SearchResults, Stats

ChatMessage = Mapping[str, Any] | BaseModel  # the models include the messages of OpenAI's client
Content = str | ChatMessage | Sequence[ChatMessage]
FilterArg = Mapping[str, Any] | Filters
After = Position | str | Added | Sequence[Position | str]
WAIT_SHARE = 0.8  # fraction of a call's time limit that the engine may wait for a write
WAIT_MAX_MS = 60_000
PAGE = 1_000


class Verbs(ABC):
    """All operations on users' memories. Thread-safe. Each call returns at once; argument errors are raised at once."""

    def __init__(self, scope: arguments.ClientScope, timeout_s: float) -> None:
        """`timeout_s` limits the wait for a response. Raise UsageError and InvalidRecord for invalid arguments."""
        arguments.checked_wait("timeout_s", timeout_s)
        self._scope, self._timeout_s = scope, timeout_s
        scope.event("user.stats", "anyone", {})  # an invalid scope raises here, and not in the first call

    @abstractmethod
    def _put(self, event: arguments.AnyEvent) -> "Future[Position]":
        """Send an event of this scope; return its position once it is stored."""

    @abstractmethod
    def _answer(self, query: QueryEvent, timeout_s: float) -> "Future[Response]":
        """Ask a query that has an id; return its response, or raise QueryFailed for an error response."""

    def _put_all(self, events: Sequence[arguments.AnyEvent]) -> "Future[list[Position]]":
        """Send events in order."""
        return results.gather([self._put(event) for event in events])

    def _written(self, user_id: str) -> Position | None:
        """Return the client's last write for a user, if a later query could be answered before it is applied."""
        del user_id
        return None

    def add(
        self, /, content: Content, *, user: str, session: str | None = None, kind: str | None = None, **fields: Any
    ) -> "Future[Added]":
        """Add memories: a text, a message in OpenAI's format, or a list of them.

        A text has the kind `fact`, or another `kind` of `recallflow.events.KINDS`. `fields` are other fields (`id`,
        `timestamp`, `metadata`, `tags`, …) of the `memory` event, or of each `message` event: a message's own fields
        take precedence.

        Returns ids and positions. Raises InvalidRecord (nothing is added), UsageError and DeliveryFailed."""
        if isinstance(content, str):
            _check_kind(kind)
            memory = {"content": content, "kind": "fact" if kind is None else kind} | given_fields(session_id=session)
            events = [self._scope.event("memory", user, memory | fields)]
        else:
            if kind is not None:
                raise UsageError("add: only a text can have a kind; a chat message has the kind message: leave it out")
            shared = given_fields(session_id=session) | fields
            messages = content if isinstance(content, Sequence) else (content,)
            fields_of_each = (arguments.message_fields(cast(ChatMessage, message)) for message in messages)
            events = [self._scope.event("message", user, shared | own) for own in fields_of_each]
        if not events:
            raise UsageError("add: the list of messages is empty")

        def added(positions: list[Position]) -> Added:
            return Added(tuple(e.id or str(p) for e, p in zip(events, positions, strict=True)), tuple(positions))

        return results.map_future(self._put_all(events), added)

    def update(
        self, /, memory_id: str | Position, content: str | None = None, *, user: str, **fields: Any
    ) -> "Future[Position]":
        """Change the content or other fields of a memory; a field given as None is cleared. Earlier versions stay in
        its history. Return the event's position. Raise as `add`."""
        _check_kind(fields.get("kind"))
        changed = {"memory_id": _memory_id_text(memory_id)} | given_fields(content=content) | fields
        return self._put(self._scope.event("memory.update", user, changed))

    def forget(
        self,
        /,
        memory_id: str | Position | None = None,
        *,
        user: str,
        where: Mapping[str, Any] | ForgetFilter | None = None,
        **fields: Any,
    ) -> "Future[Position]":
        """Remove one memory, or every memory that matches all fields of `where`: {session_id, category, tag,
        older_than}.

        Returns the event's position. Raises as `add`; an embedded engine raises InvalidRecord for an unknown id."""
        if where is not None and "filter" in fields:
            raise UsageError("where and filter have the same meaning: give where")
        text = None if memory_id is None else _memory_id_text(memory_id)
        return self._put(self._scope.event("memory.forget", user, given_fields(memory_id=text, filter=where) | fields))

    def erase(self, /, *, user: str, **fields: Any) -> "Future[Position]":
        """Remove all data of a user in this environment permanently: earlier events of the log have no effect
        afterwards. Return the event's position. Raise as `add`."""
        erasure = {"environment": self._scope.environment} | fields
        return self._put(self._scope.event("user.erase", user, erasure))

    def send(self, /, event: MemoryEvent | QueryEvent) -> "Future[Position]":
        """Send any event of this scope unchanged (`MemoryFeedback`, `GraphEdges`, …). Return and raise as `update`."""
        return self._put(self._scope.parsed(event))

    def search(
        self,
        /,
        query: str,
        *,
        user: str,
        k: int | None = None,
        session: str | None = None,
        mode: Mode = "hybrid",
        filters: FilterArg | None = None,
        as_of: Mapping[str, Any] | AsOf | None = None,
        after: After | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Future[SearchResults]":
        """Return the memories that answer a question, best first.

        Args:
            query: the question.
            user: user whose memories are searched.
            k: maximum number (default: that of the mode).
            session: session of the question.
            mode: ranking mode.
            filters: conditions on memories.
            as_of: moment of the past that the question is about.
            after: positions of writes to apply before the answer, such as another program's (default: the client's own
                last write; `()` for none). If they are not applied within the time limit, the answer has the warning
                `stale_read`.
            timeout_s: time limit of the answer.
            fields: other fields of a `recall` event (`max_tokens`, `strategy`, `min_relevance`, …).

        Raises InvalidRecord, UsageError, SourceError, DeliveryFailed, QueryFailed, QueryTimeout."""
        optional = given_fields(k=k, session_id=session, filters=filters, as_of=as_of)
        answer = self._ask("recall", user, {"query": query, "mode": mode} | optional | fields, after, timeout_s)
        return results.map_future(answer, lambda response: SearchResults(response.memories or (), response))

    def get(
        self, /, memory_id: str | Position, *, user: str, after: After | None = None, timeout_s: float | None = None
    ) -> "Future[MemoryVersion | None]":
        """Return the current version of a memory; None for an unknown id. Wait and raise as `search`."""
        answer = self._ask("memory.get", user, {"memory_id": _memory_id_text(memory_id)}, after, timeout_s)
        return results.chain_future(answer, _latest)

    def all(
        self,
        /,
        *,
        user: str,
        limit: int = 100,
        after: str | None = None,
        filters: FilterArg | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Future[Page]":
        """Return a page of a user's memories, newest first: up to `limit`, at most 1,000.

        `after` is the `after` of the previous page; `each` iterates over all pages. `fields` are other fields of a
        `memories.list` event (`as_of`, `wait_for`). Waits and raises as `search`."""
        query = {"limit": limit} | given_fields(after=after, filters=filters) | fields
        return results.map_future(self._ask("memories.list", user, query, None, timeout_s), Page)

    def history(
        self, /, memory_id: str | Position, *, user: str, after: After | None = None, timeout_s: float | None = None
    ) -> "Future[History]":
        """Return all versions of a memory, oldest first; empty for an unknown memory. Wait and raise as `search`."""
        answer = self._ask("memory.history", user, {"memory_id": _memory_id_text(memory_id)}, after, timeout_s)
        return results.chain_future(answer, _history)

    def episodes(
        self,
        /,
        *,
        user: str,
        session: str | None = None,
        limit: int = 100,
        after: After | None = None,
        timeout_s: float | None = None,
    ) -> "Future[Episodes]":
        """Return the episodes of a user, newest first: of one `session`, or of all. Wait and raise as `search`."""
        query = {"limit": limit} | given_fields(session_id=session)
        return results.map_future(self._ask("episodes.list", user, query, after, timeout_s), Episodes)

    def facts(
        self,
        /,
        query: str | None = None,
        *,
        user: str,
        after: After | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Future[FoundFacts]":
        """Return relations that contain words of `query`, each with the memories that state it. `fields` are other
        fields of a `graph.facts` event (`entities`, `types`, `as_of`, `limit`, …). Wait and raise as `search`."""
        answer = self._ask("graph.facts", user, given_fields(query=query) | fields, after, timeout_s)
        return results.map_future(answer, FoundFacts)

    def stats(self, /, *, user: str, after: After | None = None, timeout_s: float | None = None) -> "Future[Stats]":
        """Return the size of a user's data. Wait and raise as `search`."""
        answer = self._ask("user.stats", user, {}, after, timeout_s)
        return results.map_future(answer, lambda response: Stats.model_validate(response.stats))

    def ask(self, /, query: QueryEvent, *, timeout_s: float | None = None) -> "Future[Response]":
        """Return the response to any query event of this scope (`GraphExplore`, …). Wait and raise as `search`."""
        parsed = cast(QueryEvent, self._scope.parsed(query))
        if parsed.type not in QUERY_TYPES:
            raise UsageError(f"{query.type} is no query: use send()")
        if parsed.reply_to is not None:
            raise UsageError("reply_to: this client does not read that topic: use send()")
        wait_s = self._timeout_s if timeout_s is None else arguments.checked_wait("timeout_s", timeout_s)
        defaults: dict[str, Any] = {} if parsed.id else {"id": uuid.uuid4().hex}
        written = self._written(parsed.user_id)
        if written is not None and "wait_for" not in parsed.model_fields_set:
            defaults["wait_for"] = str(written)
        if (parsed.wait_for or "wait_for" in defaults) and "wait_timeout_ms" not in parsed.model_fields_set:
            defaults["wait_timeout_ms"] = min(WAIT_MAX_MS, round(wait_s * WAIT_SHARE * 1_000))
        return self._answer(parsed.model_copy(update=defaults), wait_s)

    def _ask(
        self, event_type: str, user_id: str, fields: Mapping[str, Any], after: After | None, timeout_s: float | None
    ) -> "Future[Response]":
        if after is not None:
            if "wait_for" in fields:
                raise UsageError("after and wait_for have the same meaning: give after")
            fields = {**fields, "wait_for": _positions(after)}
        return self.ask(cast(QueryEvent, self._scope.event(event_type, user_id, fields)), timeout_s=timeout_s)

    @abstractmethod
    def close(self) -> None:
        """Wait for sent events, and fail pending queries with UsageError. A second call has no effect."""


def given_fields(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _check_kind(kind: object) -> None:
    """Raise UsageError for an unknown kind: no filter would find a misspelt one."""
    if isinstance(kind, str) and kind not in KINDS:
        hint = arguments.did_you_mean(kind, KINDS)
        others = "for another kind, send() a MemoryAdd"
        raise UsageError(f"unknown kind {kind!r}{hint}: give one of {', '.join(KINDS)}; {others}")


def _memory_id_text(memory_id: object) -> str:
    if not isinstance(memory_id, str | Position):
        raise UsageError(f"memory_id must be text or the Position of a write, not {memory_id!r}")
    return str(memory_id)


def _positions(after: object) -> list[str]:
    single = after.position if isinstance(after, Added) else after
    several: object = [single] if isinstance(single, str | Position) else single
    if not isinstance(several, Sequence) or not all(isinstance(one, str | Position) for one in several):
        raise UsageError(f"after must be the Position of a write, or a list of them, not {after!r}")
    return [str(position) for position in several]


def _history(done: "Future[Response]") -> History:
    """Return the versions of a memory; none for an unknown memory."""
    try:
        return History(done.result())
    except QueryFailed as failed:
        if failed.error.code != "not_found":
            raise
        return History(Response(query_id=failed.query_id, status="ok", versions=[]))


def _latest(done: "Future[Response]") -> MemoryVersion | None:
    history = _history(done)
    return history[-1].model_copy(update={"usage": history.response.usage}) if history else None


P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Verbs)


def sync_call(call: Callable[Concatenate[V, P], "Future[T]"]) -> Callable[Concatenate["SyncCalls", P], T]:
    """Return the synchronous form of a call."""

    @functools.wraps(call)
    def wait(self: "SyncCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return arguments.call_with_help(self, call, (self._verbs, *args), kwargs).result()

    return _show_outcome_type(wait, call)


def async_call(
    call: Callable[Concatenate[V, P], "Future[T]"],
) -> Callable[Concatenate["AsyncCalls", P], Coroutine[Any, Any, T]]:
    """Return the asynchronous form of a call."""

    @functools.wraps(call)
    async def wait(self: "AsyncCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._opened()
        return await asyncio.wrap_future(arguments.call_with_help(self, call, (self._verbs, *args), kwargs))

    return _show_outcome_type(wait, call)


def _show_outcome_type(wait: T, call: Callable[..., Any]) -> T:
    """Return a wrapper whose return type in `help` is the outcome, and not the Future of `call`."""
    signature = inspect.signature(call)
    outcome = str(signature.return_annotation).removeprefix("Future[").removesuffix("]")
    wait.__signature__ = signature.replace(return_annotation=outcome)  # type: ignore[attr-defined]
    return wait


class SyncCalls:
    """Synchronous client; every call waits for its outcome. For use from any number of threads."""

    _verbs: Verbs
    add = sync_call(Verbs.add)
    search = sync_call(Verbs.search)
    get = sync_call(Verbs.get)
    all = sync_call(Verbs.all)
    update = sync_call(Verbs.update)
    forget = sync_call(Verbs.forget)
    history = sync_call(Verbs.history)
    episodes = sync_call(Verbs.episodes)
    facts = sync_call(Verbs.facts)
    stats = sync_call(Verbs.stats)
    erase = sync_call(Verbs.erase)
    send = sync_call(Verbs.send)
    ask = sync_call(Verbs.ask)

    @arguments.with_argument_help
    def each(self, *, user: str, filters: FilterArg | None = None, **fields: Any) -> Iterator[ListedMemory]:
        """Yield all memories of a user, newest first, page by page. `all` has the same arguments."""
        query = {"limit": PAGE, "filters": filters} | fields
        while True:
            page = self.all(user=user, **query)
            yield from page
            if page.after is None:
                return
            query["after"] = page.after

    def close(self) -> None:
        """Wait for calls in flight, and close. A second call has no effect."""
        self._verbs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncCalls:
    """Asynchronous client; every call is awaited. For use from one or several event loops."""

    _verbs: Verbs
    add = async_call(Verbs.add)
    search = async_call(Verbs.search)
    get = async_call(Verbs.get)
    all = async_call(Verbs.all)
    update = async_call(Verbs.update)
    forget = async_call(Verbs.forget)
    history = async_call(Verbs.history)
    episodes = async_call(Verbs.episodes)
    facts = async_call(Verbs.facts)
    stats = async_call(Verbs.stats)
    erase = async_call(Verbs.erase)
    send = async_call(Verbs.send)
    ask = async_call(Verbs.ask)

    @arguments.with_argument_help
    async def each(self, *, user: str, filters: FilterArg | None = None, **fields: Any) -> AsyncIterator[ListedMemory]:
        """Yield all memories of a user, newest first, page by page. `all` has the same arguments."""
        query = {"limit": PAGE, "filters": filters} | fields
        while True:
            page = await self.all(user=user, **query)
            for memory in page:
                yield memory
            if page.after is None:
                return
            query["after"] = page.after

    async def _opened(self) -> None:
        """Return once the client can make calls. Raise the reason if it never can."""

    async def close(self) -> None:
        """Wait for calls in flight, and close. A second call has no effect."""
        await asyncio.to_thread(self._verbs.close)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
