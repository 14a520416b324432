"""What both clients do, without waiting for it."""

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import log_outage
from recallflow.client.credentials import Credentials, Headers
from recallflow.client.outstanding import Outstanding, Pending, new_future
from recallflow.client.responses import POLL_S, Responses, reason_of
from recallflow.client.scope import AnyEvent, Scope
from recallflow.client.sendable import checked_text, checked_wait
from recallflow.control import ApiKey, Control, RolloutMode
from recallflow.credentials import ApiKeyText, hash_of, new_salt
from recallflow.errors import DeliveryFailed, FieldProblem, InvalidRecord, QueryTimeout, UsageError
from recallflow.events import ContentPart
from recallflow.fields import Role
from recallflow.limits import RECORD_BYTES
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import Mode, QueryEvent
from recallflow.records import Position
from recallflow.responses import Response
from recallflow.signatures import check_secret, signed

TRIMMINGS_BYTES = 4_096  # a record's key, headers and batch, beyond its value


class Topics(NamedTuple):
    memory: str
    queries: str
    responses: str
    control: str


class NewKey(NamedTuple):
    """An API key that was made. `text`: what its holder sends; nobody can tell it a second time. `event`: what is
    known of it, by which it is revoked. `position`: of that event."""

    text: str
    event: ApiKey
    position: Position

    def __repr__(self) -> str:
        return f"NewKey({self.event.name})"


class Core:
    """Everything the clients do. Thread-safe. Each call returns at once; mistakes in the call are raised at once."""

    def __init__(
        self,
        kafka: KafkaOptions,
        scope: Scope,
        topics: Topics,
        timeout_s: float,
        credentials: Credentials,
        control_secret: str | None,
    ) -> None:
        checked_wait("timeout_s", timeout_s)
        check_secret("control_secret", control_secret)
        for name, topic in topics._asdict().items():
            checked_text(f"the {name} topic", topic)
        self._scope, self._topics = scope, topics
        self._credentials, self._control_secret = credentials, control_secret
        self._decided_ms = 0
        self._servers, self._timeout_s = kafka.bootstrap_servers, timeout_s
        self._trouble: str | None = None
        self._outstanding = Outstanding()
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        scope.event("user.stats", "anyone", {})  # a wrong scope fails here, and not at the first call
        # An outcome within the client's own time: librdkafka would otherwise go on trying for five minutes.
        bounded = {"delivery.timeout.ms": round(timeout_s * 1000), "error_cb": self._on_error}
        # The bound is the engine's, and then the topic's own: not librdkafka's, which is below both.
        largest = {"message.max.bytes": RECORD_BYTES + TRIMMINGS_BYTES}
        try:
            self._producer = Producer(largest | bounded | kafka.producer())
            self._responses = Responses(kafka, topics.responses, self._outstanding)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {reason_of(error)}") from error
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
        """Stores a chat message as it stands; `fields`: any other of a `message` event (`id`, `metadata`, …).

        `timestamp` is when it was written: a datetime (without a zone: UTC), RFC 3339 or epoch milliseconds; without
        one it is when Kafka appends it. Gives and raises what `remember` does.
        """
        named = {"name": name, "session_id": session_id, "timestamp": timestamp}
        given = {field: value for field, value in named.items() if value is not None}
        return self._write("message", user_id, {"content": content, "role": role} | given | fields)

    def update(self, /, user_id: str, memory_id: str | Position, **fields: Any) -> "Future[Position]":
        """Changes the named fields of a memory; one given as None is cleared. Gives and raises what `remember` does:
        whether there is such a memory is known only when the event is applied."""
        return self._write("memory.update", user_id, {"memory_id": _named(memory_id)} | fields)

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
        if where is not None and "filter" in fields:
            raise UsageError("where and filter are one thing: give where")
        target: dict[str, Any] = {} if memory_id is None else {"memory_id": _named(memory_id)}
        return self._write("memory.forget", user_id, target | ({} if where is None else {"filter": where}) | fields)

    def send(self, event: AnyEvent) -> "Future[Position]":
        """Sends any event of this tenant and environment, to the query topic where it asks: nobody waits for that
        response. Gives and raises what `remember` does."""
        built = self._scope.built(event)
        return self._send(built, self._credentials.headers(built.user_id))

    # ------------------------------------------------------------------ queries

    def recall(
        self,
        /,
        user_id: str,
        query: str,
        *,
        after: Position | Sequence[Position] | None = None,
        k: int | None = None,
        mode: Mode = "hybrid",
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Future[Response]":
        """Asks for ranked memories, at most `k` (default: the mode's own number). `fields`: any other of a `recall`
        event (`filters`, `max_tokens`, `as_of`, …).

        `after`: positions that must be applied first. The engine waits for them `wait_timeout_ms` (2,000), then
        answers with what there is: status `degraded`, warning `stale_read`. `timeout_s` is how long to wait for the
        response (default: the client's). Raises InvalidRecord, UsageError, SourceError, DeliveryFailed, QueryFailed,
        QueryTimeout.
        """
        asked: dict[str, Any] = {"query": query, "mode": mode} | ({} if k is None else {"k": k})
        if after is not None:
            if "wait_for" in fields:
                raise UsageError("after and wait_for are one thing: give after")
            asked["wait_for"] = _positions(after)
        return self._ask("recall", user_id, asked | fields, timeout_s)

    def facts(
        self, /, user_id: str, query: str | None = None, *, timeout_s: float | None = None, **fields: Any
    ) -> "Future[Response]":
        """Asks for relations by words, with the memories that state them: `graph_facts` of the response. `fields`: any
        other of a `graph.facts` event (`entities`, `types`, `as_of`, `limit`, …). Waits and raises as `recall` does."""
        asked = fields if query is None else {"query": query} | fields
        return self._ask("graph.facts", user_id, asked, timeout_s)

    def graph_status(self, /, user_id: str, *, timeout_s: float | None = None, **fields: Any) -> "Future[Response]":
        """Asks for a user's graph in numbers, the tenant's rollout and its quality gate: `graph_status` of the
        response. Waits and raises as `recall` does."""
        return self._ask("graph.status", user_id, fields, timeout_s)

    def graph_trace(
        self, /, user_id: str, query: str, *, timeout_s: float | None = None, **fields: Any
    ) -> "Future[Response]":
        """Asks for every step of what the graph would add to the answer to `query`: `graph_trace` of the response.
        `fields`: any other of a `graph.trace` event (`k`, `filters`, `traversal_depth`, …). Waits and raises as
        `recall` does."""
        return self._ask("graph.trace", user_id, {"query": query} | fields, timeout_s)

    def ask(self, query: QueryEvent, *, timeout_s: float | None = None) -> "Future[Response]":
        """Any query event of this tenant and environment (`MemoryGet`, `EpisodesList`, …) → its response. An id is
        made where it has none. Waits and raises as `recall` does."""
        asked = self._scope.built(query)
        if asked.type not in QUERY_TYPES:
            raise UsageError(f"{query.type} asks nothing: use send()")
        if query.reply_to is not None:
            raise UsageError("reply_to: the response would go where this client does not read; use send()")
        wait_s = self._timeout_s if timeout_s is None else checked_wait("timeout_s", timeout_s)
        query_id = query.id or uuid.uuid4().hex
        asked = asked.model_copy(update={"id": query_id})
        headers = self._credentials.headers(asked.user_id)
        pending = Pending(query_id, asked.owner.record_key, wait_s, time.monotonic() + wait_s)
        with self._open():
            self._outstanding.add(pending)
        self._responses.ready.add_done_callback(lambda _: self._put(asked, pending, headers))
        return pending.future

    def _put(self, query: AnyEvent, pending: Pending, headers: Headers) -> None:
        """Sends a query, unless its time was up before responses could be read."""

        def delivered(sent: "Future[Position]") -> None:
            error = sent.exception()
            if error is not None and self._outstanding.pop(pending.key, pending.query_id) is not None:
                pending.future.set_exception(error)

        if time.monotonic() < pending.deadline_s:
            with suppress(UsageError):  # closed meanwhile: close() is what fails the query then
                self._send(query, headers).add_done_callback(delivered)

    def _ask(
        self, event_type: str, user_id: str, fields: Mapping[str, Any], timeout_s: float | None
    ) -> "Future[Response]":
        return self.ask(cast(QueryEvent, self._scope.event(event_type, user_id, fields)), timeout_s=timeout_s)

    # ------------------------------------------------------------------ decisions about the tenant

    def graph_rollout(self, /, mode: RolloutMode, *, by: str, why: str) -> "Future[Position]":
        """Decides what becomes of what the graph adds to answers: `off`, `shadow` (measured only) or `canary` (in the
        answers), for all queries that reach Kafka after it. `by` and `why` are kept, and told by `graph_status`.

        Gives the decision's position once Kafka has acknowledged it. Raises InvalidRecord, UsageError, DeliveryFailed.
        """
        return self._decide("graph.rollout", {"mode": mode, "by": by, "why": why})

    def graph_gate(self, /, blocked: bool, *, by: str, why: str) -> "Future[Position]":
        """Overrules the tenant's quality gate: what is blocked so, is so until it is freed so; once freed, the gate
        judges by what it sees from then on. Gives and raises what `graph_rollout` does."""
        return self._decide("gate.verdict", {"blocked": blocked, "by": by, "why": why})

    def category(
        self, /, name: str, description: str, *, removed: bool = False, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Defines a category of the tenant's memories, describes it anew, or has nothing sorted into it any more
        (`removed`). It holds for all that reaches Kafka after it. Gives and raises what `graph_rollout` does."""
        fields = {"name": name, "description": description, "removed": removed, "by": by, "why": why}
        return self._decide("category", {name: given for name, given in fields.items() if given is not None})

    def create_key(
        self,
        /,
        *,
        projects: Sequence[str] | None = None,
        environments: Sequence[str] | None = None,
        end_users: Sequence[str] | None = None,
        by: str | None = None,
        why: str | None = None,
    ) -> "Future[NewKey]":
        """Makes an API key of the tenant (`*`: for any), for some projects, environments and users only where they are
        given. It holds for records that reach Kafka from a second after it on.

        Gives the key once Kafka has acknowledged what is kept of it. Raises what `graph_rollout` does."""
        key, salt = ApiKeyText.new(), new_salt()
        fields = {"name": key.name, "salt": salt, "hash": hash_of(salt, key.secret), "by": by, "why": why}
        scopes = {"projects": projects, "environments": environments, "end_users": end_users}
        event = self._decision(
            "api_key", {name: given for name, given in (fields | scopes).items() if given is not None}
        )
        made: Future[NewKey] = new_future()

        def sent(position: "Future[Position]") -> None:
            if (error := position.exception()) is not None:
                made.set_exception(error)
            else:
                made.set_result(NewKey(key.text(), cast(ApiKey, event), position.result()))

        self._publish(event).add_done_callback(sent)
        return made

    def revoke_key(self, /, key: ApiKey, *, by: str | None = None, why: str | None = None) -> "Future[Position]":
        """Takes an API key back, for good: from a second on after it, nothing is believed that is sent with it. Gives
        and raises what `graph_rollout` does."""
        if not isinstance(key, ApiKey) or key.tenant_id != self._scope.tenant_id:
            raise UsageError(f"give the ApiKey of a key of tenant {self._scope.tenant_id!r}, as create_key() gave it")
        fields = key.model_dump(exclude={"type", "tenant_id", "timestamp", "by", "why"}, exclude_none=True)
        said = {name: given for name, given in (("by", by), ("why", why)) if given is not None}
        return self._decide("api_key", fields | said | {"revoked": True})

    def quota(
        self, /, name: str, limit: int | None, *, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Sets a limit of the tenant's, or takes it away (None). It holds for what Kafka appends a second later. Gives
        and raises what `graph_rollout` does."""
        fields = {"name": name, "limit": limit, "by": by, "why": why}
        return self._decide("quota", {name: given for name, given in fields.items() if given is not None})

    def _decide(self, event_type: str, fields: Mapping[str, Any]) -> "Future[Position]":
        return self._publish(self._decision(event_type, fields))

    def _decision(self, event_type: str, fields: Mapping[str, Any]) -> Control:
        for name in {"by", "why"} & fields.keys():
            checked_text(name, fields[name])
        with self._sending:  # each is newer than the one before it: who replays the latter changes nothing
            self._decided_ms = max(time.time_ns() // 1_000_000, self._decided_ms + 1)
            return self._scope.decision(event_type, {**fields, "timestamp": self._decided_ms})

    def _publish(self, event: Control) -> "Future[Position]":
        key, value = event.record_key, event.model_dump_json(exclude_none=True).encode()
        return self._produce(self._topics.control, value, key, signed(self._control_secret, key, value))

    # ------------------------------------------------------------------ sending

    def _write(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> "Future[Position]":
        event = self._scope.event(event_type, user_id, fields)
        return self._send(event, self._credentials.headers(event.user_id))

    @contextmanager
    def _open(self) -> Iterator[None]:
        """What begins in here, close() sees to its end. Raises UsageError once the client is closed."""
        with self._sending:
            if self._stopping.is_set():
                raise UsageError("the client is closed")
            yield

    def _send(self, event: AnyEvent, headers: Headers) -> "Future[Position]":
        topic = self._topics.queries if event.type in QUERY_TYPES else self._topics.memory
        value = event.model_dump_json(exclude_unset=True).encode()
        return self._produce(topic, value, event.owner.record_key, headers)

    def _produce(self, topic: str, value: bytes, key: bytes, headers: Headers) -> "Future[Position]":
        sent: Future[Position] = new_future()

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                sent.set_exception(self._undelivered(topic, error))
            elif message.offset() < 0:  # Kafka knows the retry as a copy, and not of which record
                sent.set_exception(DeliveryFailed(f"{topic}: stored, but Kafka does not say where"))
            else:
                self._trouble = None
                sent.set_result(Position(topic, message.partition(), message.offset()))

        if len(value) > RECORD_BYTES:
            problem = f"over {RECORD_BYTES} bytes; split it, or store a reference"
            raise InvalidRecord("too_large", [FieldProblem("", problem)])
        try:
            with self._open():
                self._producer.produce(topic, value, key, on_delivery=delivered, headers=[*headers])
        except BufferError:
            sent.set_exception(DeliveryFailed(f"{topic}: too many records are underway: await some; this one is not"))
        except KafkaException as error:
            sent.set_exception(self._undelivered(topic, error.args[0]))
        return sent

    def _undelivered(self, topic: str, error: KafkaError) -> DeliveryFailed:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return DeliveryFailed(f"{topic} takes no record of this size: split it, or raise its max.message.bytes")
        trouble = f" ({self._trouble})" if self._trouble else ""
        return DeliveryFailed(
            f"{topic} at {self._servers}: {error.str()}{trouble}; is Kafka reachable, and is there such a topic "
            "(recallflow topics create)?"
        )

    # ------------------------------------------------------------------ threads

    def _run(self) -> None:
        """Serves delivery reports, and fails queries whose time is up."""
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)
            trouble = self._responses.trouble or self._trouble
            for pending in self._outstanding.pop_due(time.monotonic()):
                pending.future.set_exception(QueryTimeout(pending.query_id, pending.timeout_s, trouble))

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error.str()
        log_outage(error)

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


def _named(memory_id: object) -> str:
    if not isinstance(memory_id, str | Position):
        raise UsageError(f"memory_id must be text or the Position of a write, not {memory_id!r}")
    return str(memory_id)


def _positions(after: object) -> list[str]:
    given = [after] if isinstance(after, str | Position) else after
    if not isinstance(given, Sequence) or not all(isinstance(one, str | Position) for one in given):
        raise UsageError(f"after must be the Position of a write, or a list of them, not {after!r}")
    return [str(position) for position in given]
