"""Remember and recall over Kafka, from Python: `RecallClient` waits, `AsyncRecallClient` awaits.

    with RecallClient("localhost:9092", "acme") as client:
        at = client.remember("ann", "Ann is allergic to peanuts", kind="fact")
        response = client.recall("ann", "What can't Ann eat?", after=at)

Where a memory stands in its topic is the token to read one's own writes with: a query that names it in `after` is
answered once it is applied. It is also the memory's id, as text, unless the event brings an `id`.

    RecallflowError
    ├── InvalidRecord     the call's fields are wrong, all named at once: nothing was sent
    ├── UsageError        the call cannot be made with this client, or the client is closed: nothing was sent
    ├── SourceError       Kafka does not let us read responses: check topics and security settings
    ├── DeliveryFailed    Kafka did not acknowledge a record in time: it may still be stored
    ├── QueryFailed       the engine answered with an error
    └── QueryTimeout      no response in time: is the engine running? (a TimeoutError too)

Both are thin: every call is one method of `_Core` that returns a `concurrent.futures.Future`. Two threads serve a
client, one for delivery reports and deadlines, one for responses. Reconnecting is librdkafka's; what it last
complained of is in the message of whatever runs out of time meanwhile.
"""

import asyncio
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar, cast

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pydantic import ValidationError

from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import RecallflowError, SourceError, UsageError
from recallflow.events import ContentPart, MemoryEvent
from recallflow.fields import Role
from recallflow.operators.decode import QUERY_TYPES, parse, unknown_fields
from recallflow.queries import Mode, QueryEvent
from recallflow.records import Position
from recallflow.responses import ErrorBody, Response

POLL_S = 0.05  # how late a deadline may be noticed
METADATA_S = 1.0
RETRY_S = 0.2
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

P = ParamSpec("P")
T = TypeVar("T")
AnyEvent = MemoryEvent | QueryEvent

_log = logging.getLogger(__name__)


class DeliveryFailed(RecallflowError):
    """Kafka did not acknowledge a record. It may be stored all the same; sent again with the same `id` it is applied
    once."""


class QueryFailed(RecallflowError):
    """The engine answered with an error: `error` says why, every wrong field at once."""

    def __init__(self, query_id: str, error: ErrorBody) -> None:
        self.query_id = query_id
        self.error = error
        super().__init__(query_id, error)

    def __str__(self) -> str:
        return f"query {self.query_id}: {self.error.code}: {self.error.message}"


class QueryTimeout(RecallflowError, TimeoutError):
    """No response came in time. A late one is dropped."""

    def __init__(self, query_id: str, timeout_s: float, trouble: str | None) -> None:
        self.query_id = query_id
        self.timeout_s = timeout_s
        self.trouble = trouble
        super().__init__(query_id, timeout_s, trouble)

    def __str__(self) -> str:
        said = f" Kafka's last complaint: {self.trouble}" if self.trouble else ""
        where = "is the engine running (recallflow run)?"
        return f"no response to query {self.query_id} within {self.timeout_s:g} s; {where}{said}"


# ---------------------------------------------------------------------- outstanding queries


def _future() -> "Future[Any]":
    """A future that cannot be cancelled: an asyncio task that is cancelled lets go of it, and it ends by itself."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class _Pending:
    """A query that was asked and not answered yet. `deadline_s` in seconds of time.monotonic()."""

    query_id: str
    key: bytes
    timeout_s: float
    deadline_s: float
    future: "Future[Response]" = field(default_factory=_future)


class _Outstanding:
    """Who waits for which response; whoever takes a query out is the one to resolve it. Thread-safe.

    Queries are filed under their record key, which a response carries as well: a response to somebody else's query is
    told by its key, unparsed.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[str, _Pending]] = {}
        self._lock = threading.Lock()

    def add(self, pending: _Pending) -> None:
        """Raises UsageError where the same query id is underway."""
        with self._lock:
            queries = self._by_key.setdefault(pending.key, {})
            if pending.query_id in queries:
                raise UsageError(f"query id {pending.query_id!r} is underway; give each query its own")
            queries[pending.query_id] = pending

    def awaits(self, key: bytes) -> bool:
        with self._lock:
            return key in self._by_key

    def take(self, key: bytes, query_id: str) -> _Pending | None:
        with self._lock:
            queries = self._by_key.get(key, {})
            pending = queries.pop(query_id, None)
            if pending is not None and not queries:
                del self._by_key[key]
            return pending

    def take_due(self, now_s: float) -> list[_Pending]:
        """All whose time is up, or everything at `now_s` = ∞."""
        with self._lock:
            due = [p for queries in self._by_key.values() for p in queries.values() if p.deadline_s <= now_s]
        return [p for p in due if self.take(p.key, p.query_id) is not None]

    def fail_all(self, error: Exception) -> None:
        for pending in self.take_due(float("inf")):
            pending.future.set_exception(error)


# ---------------------------------------------------------------------- responses


class _Responses:
    """One consumer on one thread: all partitions of the response topic, from where they end when it starts. `ready`
    is done once that is settled: no query may be sent before, or its response could be missed."""

    def __init__(self, options: KafkaOptions, topic: str, outstanding: _Outstanding) -> None:
        self.ready: Future[None] = _future()
        self.trouble: str | None = None
        self._topic = topic
        self._outstanding = outstanding
        self._stopping = threading.Event()
        self._consumer = Consumer(options.consumer() | {"error_cb": self._on_error})
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-responses")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._assign():
            self._stopping.wait(RETRY_S)
        if not self._stopping.is_set():
            self.ready.set_result(None)
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None:
                self._take(message)

    def _assign(self) -> bool:
        """Takes up every partition at its end. False where Kafka cannot say now; `trouble` is why."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=METADATA_S).topics[self._topic]
            if found.error is None:
                self._consumer.assign([TopicPartition(self._topic, n, self._end(n)) for n in found.partitions])
            self.trouble = None if found.error is None else f"{self._topic}: {found.error.str()}"
        except KafkaException as error:
            self.trouble = f"{self._topic}: {_said(error)}"
        return self.trouble is None

    def _end(self, partition: int) -> int:
        end: int = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=METADATA_S)[1]
        return end

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self.trouble = None
            self._resolve(message.key() or b"", message.value() or b"")
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention overtook us: what is gone cannot be told apart from what never came, so queries time out.
            _log.warning("%s: responses were removed before they were read: %s", self._topic, error.str())
            self._assign()
        else:
            self._on_error(error)
            if not error.retriable():
                self._outstanding.fail_all(SourceError(f"cannot read {self._topic}: {error.str()}"))

    def _resolve(self, key: bytes, value: bytes) -> None:
        if not self._outstanding.awaits(key):
            return
        try:
            response = Response.model_validate_json(value)
        except ValidationError as error:
            _log.warning("%s holds something that is no response: %s", self._topic, error)
            return
        pending = self._outstanding.take(key, response.query_id)
        if pending is None:
            return
        if response.status == "error":
            reason = response.error or ErrorBody(code="unknown", message="the response names no reason")
            pending.future.set_exception(QueryFailed(pending.query_id, reason))
        else:
            pending.future.set_result(response)

    def _on_error(self, error: KafkaError) -> None:
        self.trouble = error.str()
        _log.warning("Kafka: %s", error.str())


def _said(error: KafkaException) -> str:
    text: str = error.args[0].str()
    return text


# ---------------------------------------------------------------------- both clients' one implementation


class _Scope(NamedTuple):
    """The hard scope of everything a client does."""

    tenant_id: str
    environment: str


class _Topics(NamedTuple):
    memory: str
    queries: str
    responses: str


class _Core:
    """Everything the clients do. Thread-safe. Each call returns at once; mistakes in the call are raised at once."""

    def __init__(self, kafka: KafkaOptions, scope: _Scope, topics: _Topics, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise UsageError(f"timeout_s must be above 0, not {timeout_s:g}")
        self._scope, self._topics = scope._asdict(), topics
        self._servers, self._timeout_s = kafka.bootstrap_servers, timeout_s
        self._trouble: str | None = None
        self._outstanding = _Outstanding()
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        self._event("user.stats", "anyone", {})  # says now, and not at the first call, what is wrong with the scope
        # An outcome within the client's own time: librdkafka would otherwise go on trying for five minutes.
        bounded = {"delivery.timeout.ms": round(timeout_s * 1000), "error_cb": self._on_error}
        try:
            self._producer = Producer(bounded | kafka.producer())
            self._responses = _Responses(kafka, topics.responses, self._outstanding)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {_said(error)}") from error
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-deliveries")
        self._thread.start()

    # ------------------------------------------------------------------ memory events

    def remember(self, /, user_id: str, content: str, *, kind: str = "fact", **fields: Any) -> "Future[Position]":
        """Stores one memory. `fields`: any other of a `memory` event (`tags`, `category`, `id`, `valid_from`, …).

        Gives its position once Kafka has acknowledged it. Raises InvalidRecord, UsageError, DeliveryFailed.
        """
        return self._write("memory", user_id, {"content": content, "kind": kind} | fields)

    def message(
        self,
        /,
        user_id: str,
        content: str | Sequence[ContentPart | Mapping[str, Any]] | None,
        *,
        role: Role = "user",
        name: str | None = None,
        session_id: str | None = None,
        timestamp: Any = None,
        **fields: Any,
    ) -> "Future[Position]":
        """Stores a chat message as it was said; `fields`: any other of a `message` event (`id`, `metadata`, …).

        `timestamp` is when it was said: a datetime (without a zone: UTC), RFC 3339 or epoch milliseconds; without one
        it is when Kafka takes it in. Gives and raises what `remember` does.
        """
        named = {"name": name, "session_id": session_id, "timestamp": timestamp}
        given = {field: value for field, value in named.items() if value is not None}
        return self._write("message", user_id, {"content": content, "role": role} | given | fields)

    def update(self, /, user_id: str, memory_id: str | Position, **fields: Any) -> "Future[Position]":
        """Changes the named fields of a memory; one given as None is cleared. Gives and raises what `remember` does:
        whether there is such a memory is known only when the event is applied."""
        return self._write("memory.update", user_id, {"memory_id": str(memory_id)} | fields)

    def forget(
        self,
        /,
        user_id: str,
        memory_id: str | Position | None = None,
        *,
        where: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> "Future[Position]":
        """Removes one memory, or all that match `where`: {session_id, category, tag, older_than}, all that are given
        must hold. Gives and raises what `update` does."""
        target: dict[str, Any] = {} if memory_id is None else {"memory_id": str(memory_id)}
        return self._write("memory.forget", user_id, target | ({} if where is None else {"filter": where}) | fields)

    def send(self, event: AnyEvent) -> "Future[Position]":
        """Sends any event of this tenant and environment, to the query topic where it asks: nobody waits for that
        response. Gives and raises what `remember` does."""
        return self._send(self._checked(event))

    # ------------------------------------------------------------------ queries

    def recall(
        self,
        /,
        user_id: str,
        query: str,
        *,
        after: Position | Sequence[Position] | None = None,
        k: int = 10,
        mode: Mode = "hybrid",
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Future[Response]":
        """Asks for ranked memories. `fields`: any other of a `recall` event (`filters`, `max_tokens`, `as_of`, …).

        `after`: positions that must be applied first. The engine waits for them `wait_timeout_ms` (2,000), then
        answers with what there is: status `degraded`, warning `stale_read`. `timeout_s` is how long to wait for the
        response (default: the client's). Raises InvalidRecord, UsageError, SourceError, DeliveryFailed, QueryFailed,
        QueryTimeout.
        """
        asked: dict[str, Any] = {"query": query, "k": k, "mode": mode}
        if after is not None:
            asked["wait_for"] = [str(p) for p in ([after] if isinstance(after, Position) else after)]
        return self.ask(cast(QueryEvent, self._event("recall", user_id, asked | fields)), timeout_s=timeout_s)

    def ask(self, query: QueryEvent, *, timeout_s: float | None = None) -> "Future[Response]":
        """Any query event of this tenant and environment (`MemoryGet`, `EpisodesList`, …) → its response. An id is
        made where it has none. Waits and raises as `recall` does."""
        if query.type not in QUERY_TYPES:
            raise UsageError(f"{query.type} asks nothing: use send()")
        if query.reply_to is not None:
            raise UsageError("reply_to: the response would go where this client does not read; use send()")
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        query_id = query.id or uuid.uuid4().hex
        asked = self._checked(query.model_copy(update={"id": query_id}))
        pending = _Pending(query_id, _key(asked), wait_s, time.monotonic() + wait_s)
        with self._open():
            self._outstanding.add(pending)
        self._responses.ready.add_done_callback(lambda _: self._put(asked, pending))
        return pending.future

    def _put(self, query: AnyEvent, pending: _Pending) -> None:
        """Sends a query, unless its time was up before responses could be read."""

        def delivered(sent: "Future[Position]") -> None:
            error = sent.exception()
            if error is not None and self._outstanding.take(pending.key, pending.query_id) is not None:
                pending.future.set_exception(error)

        if time.monotonic() < pending.deadline_s:
            with suppress(UsageError):  # closed meanwhile: close() is what fails the query then
                self._send(query).add_done_callback(delivered)

    # ------------------------------------------------------------------ sending

    def _write(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> "Future[Position]":
        return self._send(self._event(event_type, user_id, fields))

    def _event(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> AnyEvent:
        """The event, as the engine would read it. Raises InvalidRecord with the engine's own words."""
        given = self._scope | dict(fields) | {"type": event_type, "user_id": user_id}
        try:
            event = parse(orjson.dumps(given, default=_jsonable))
        except orjson.JSONEncodeError as error:
            raise UsageError(f"{event_type}: {error}") from error
        if unknown := unknown_fields(event):
            raise UsageError(f"{event_type} has no field {', '.join(unknown)}")
        return self._checked(cast(AnyEvent, event))

    def _checked(self, event: AnyEvent) -> AnyEvent:
        for name, ours in self._scope.items():
            if (theirs := getattr(event, name)) != ours:
                raise UsageError(f"{name} is {theirs!r}, and this client is for {ours!r}")
        return event

    @contextmanager
    def _open(self) -> Iterator[None]:
        """What begins in here, close() sees to its end. Raises UsageError once the client is closed."""
        with self._sending:
            if self._stopping.is_set():
                raise UsageError("the client is closed")
            yield

    def _send(self, event: AnyEvent) -> "Future[Position]":
        topic = self._topics.queries if event.type in QUERY_TYPES else self._topics.memory
        sent: Future[Position] = _future()

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                sent.set_exception(self._undelivered(topic, error))
            elif message.offset() < 0:  # a retry that Kafka took for a copy, without knowing of what
                sent.set_exception(DeliveryFailed(f"{topic}: stored, but Kafka does not say where"))
            else:
                self._trouble = None
                sent.set_result(Position(topic, message.partition(), message.offset()))

        value = event.model_dump_json(exclude_unset=True).encode()
        try:
            with self._open():
                self._producer.produce(topic, value, _key(event), on_delivery=delivered)
        except BufferError:
            sent.set_exception(DeliveryFailed(f"{topic}: too many records are underway: await some; this one is not"))
        except KafkaException as error:
            sent.set_exception(self._undelivered(topic, error.args[0]))
        return sent

    def _undelivered(self, topic: str, error: KafkaError) -> DeliveryFailed:
        trouble = f" ({self._trouble})" if self._trouble else ""
        return DeliveryFailed(
            f"{topic} at {self._servers}: {error.str()}{trouble}; is Kafka reachable, and is there such a topic "
            "(recallflow topics create)?"
        )

    # ------------------------------------------------------------------ threads

    def _run(self) -> None:
        """Serves delivery reports, and tells whoever has waited too long."""
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)
            trouble = self._responses.trouble or self._trouble
            for pending in self._outstanding.take_due(time.monotonic()):
                pending.future.set_exception(QueryTimeout(pending.query_id, pending.timeout_s, trouble))

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def close(self) -> None:
        """Sees every record sent so far to its end, and fails queries that are still open with UsageError. Blocks for
        at most about `timeout_s`. A second call does nothing."""
        with self._sending:
            if self._stopping.is_set():
                return
            self._stopping.set()
        self._thread.join()
        self._producer.flush()  # ends by itself: every record has its delivery timeout
        del self._producer  # ends librdkafka's threads now: its callbacks refer to us, and we to it
        self._responses.stop()
        self._outstanding.fail_all(UsageError("the client was closed before a response came"))


def _key(event: AnyEvent) -> bytes:
    """One owner's records go to one partition, in order."""
    return f"{event.tenant_id}/{event.user_id}".encode()


def _jsonable(value: object) -> Any:
    """What orjson does not know: our own models and positions within the fields of a call."""
    if isinstance(value, Position):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} cannot be sent")


# ---------------------------------------------------------------------- the two faces


class _Face:
    def __init__(
        self,
        bootstrap_servers: str,
        tenant_id: str,
        *,
        environment: str = "prod",
        memory_topic: str = "memory.events",
        query_topic: str = "query.events",
        response_topic: str = "recall.responses",
        options: Mapping[str, str] = NO_OPTIONS,
        timeout_s: float = 10.0,
    ) -> None:
        """`options`: any of librdkafka's (`security.protocol`, `sasl.*`, `ssl.*`, …). `timeout_s`: for a record to be
        acknowledged, and for a response to come. Does not wait for Kafka. Raises UsageError and InvalidRecord for
        arguments that no call could succeed with."""
        topics = _Topics(memory_topic, query_topic, response_topic)
        self._core = _Core(KafkaOptions(bootstrap_servers, options), _Scope(tenant_id, environment), topics, timeout_s)


def _waited(call: Callable[Concatenate[_Core, P], "Future[T]"]) -> Callable[Concatenate["RecallClient", P], T]:
    @functools.wraps(call)
    def wait(self: "RecallClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return call(self._core, *args, **kwargs).result()

    return wait


def _awaited(
    call: Callable[Concatenate[_Core, P], "Future[T]"],
) -> Callable[Concatenate["AsyncRecallClient", P], Coroutine[Any, Any, T]]:
    @functools.wraps(call)
    async def wait(self: "AsyncRecallClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(call(self._core, *args, **kwargs))

    return wait


class RecallClient(_Face):
    """Every call waits for its outcome. For use from any number of threads."""

    remember = _waited(_Core.remember)
    message = _waited(_Core.message)
    update = _waited(_Core.update)
    forget = _waited(_Core.forget)
    send = _waited(_Core.send)
    recall = _waited(_Core.recall)
    ask = _waited(_Core.ask)

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRecallClient(_Face):
    """Every call is awaited. For use from one event loop, or several."""

    remember = _awaited(_Core.remember)
    message = _awaited(_Core.message)
    update = _awaited(_Core.update)
    forget = _awaited(_Core.forget)
    send = _awaited(_Core.send)
    recall = _awaited(_Core.recall)
    ask = _awaited(_Core.ask)

    async def close(self) -> None:
        await asyncio.to_thread(self._core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
