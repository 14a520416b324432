"""Python client of an engine on Kafka: `RecallClient` blocks, the methods of `AsyncRecallClient` are awaited.

    with RecallClient("localhost:9092", "acme") as client:
        client.add("Ann is allergic to peanuts", user="ann")
        found = client.search("What can't Ann eat?", user="ann")

The method names equal the method names of `recallflow.Memory`, the embedded engine. A client reads its own writes: it
keeps the position of the last write for each of the latest 10,000 users, and the engine answers a query after it has
applied that write. Pass `after` to wait for a write of another program. A memory's id is the `id` of its event, or else
the position of the event in its topic, as text. All errors are in `recallflow.errors`.

Each call is one method of `KafkaVerbs` that returns a `concurrent.futures.Future`. A client has two threads: one for
delivery reports and deadlines, one for responses. librdkafka reconnects by itself; timeouts contain its last error."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from recallflow.cloud_events import response_json
from recallflow.control import ApiKey, Control, RolloutMode
from recallflow.credentials import ClientCredentials, Headers, Token, check_secret, new_key, sign
from recallflow.errors import DeliveryFailed, InvalidRecord, QueryTimeout, UsageError
from recallflow.graphs import GraphReport, Trace
from recallflow.kafka_clients import Inbox, ProducerAndReader
from recallflow.kafka_options import KafkaOptions
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import CatchingUp, QueryFailed, Response
from recallflow.telemetry import trace_headers
from recallflow.verbs.arguments import AnyEvent, ClientScope, checked_text, with_argument_help
from recallflow.verbs.results import map_future, new_future
from recallflow.verbs.verbs import After, AsyncCalls, SyncCalls, Verbs, async_call, given_fields, sync_call

__all__ = ["AsyncRecallClient", "CatchingUp", "DeliveryFailed", "QueryFailed", "QueryTimeout", "RecallClient"]
USERS_MAX = 10_000  # remembered users; the engine applied the writes of forgotten ones long ago
_log = logging.getLogger(__name__)


class OwnWrites:
    """The last acknowledged write for each of the latest users. Thread-safe."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Position] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, user_id: str, position: Position) -> Position:
        """Add an acknowledged write of a user. Return the write's position."""
        with self._lock:
            known = self._last.pop(user_id, position)
            self._last[user_id] = max(known, position) if known.source == position.source else position
            if len(self._last) > USERS_MAX:
                self._last.popitem(last=False)
        return position

    def last(self, user_id: str) -> Position | None:
        return self._last.get(user_id)


@dataclass(slots=True, eq=False)
class PendingQuery:
    """A query that waits for its response. `deadline_s` is in seconds of time.monotonic()."""

    query_id: str
    key: bytes
    timeout_s: float
    deadline_s: float
    future: "Future[Response]" = field(default_factory=new_future)


class PendingQueries:
    """Queries that wait for their responses. Thread-safe. The caller of `pop` sets the result of the query's future.

    Queries are grouped by record key, which a response shares: most responses to others are skipped without parsing."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[str, PendingQuery]] = {}
        self._lock = threading.Lock()

    def add(self, pending: PendingQuery) -> None:
        """Add a query. Raise UsageError if a query with this id is pending."""
        with self._lock:
            queries = self._by_key.setdefault(pending.key, {})
            if pending.query_id in queries:
                raise UsageError(f"query id {pending.query_id!r} is pending; give the query another id")
            queries[pending.query_id] = pending

    def pop(self, key: bytes, query_id: str) -> PendingQuery | None:
        with self._lock:
            queries = self._by_key.get(key, {})
            pending = queries.pop(query_id, None)
            if pending is not None and not queries:
                del self._by_key[key]
            return pending

    def receive(self, message: Any) -> None:
        key: bytes = message.key() or b""
        with self._lock:
            if key not in self._by_key:
                return
        try:
            response = Response.model_validate_json(response_json(message.value() or b""))
        except ValidationError as error:
            # Do not log the error: it quotes the invalid value, which may be the text of a memory.
            _log.warning("%s: a record is no response: %d fields are wrong", message.topic(), error.error_count())
            return
        if (pending := self.pop(key, response.query_id)) is None:
            return
        try:
            pending.future.set_result(response.checked())
        except QueryFailed as failed:
            pending.future.set_exception(failed)

    def fail_due(self, kafka_error: str | None) -> None:
        """Fail the queries whose deadline has passed. `kafka_error` is Kafka's last error."""
        for pending in self._pop_due(time.monotonic()):
            pending.future.set_exception(QueryTimeout(pending.query_id, pending.timeout_s, kafka_error))

    def fail_all(self, error: Exception) -> None:
        for pending in self._pop_due(float("inf")):
            pending.future.set_exception(error)

    def _pop_due(self, now_s: float) -> list[PendingQuery]:
        """Remove and return the queries whose deadline has passed; all queries at `now_s` = ∞."""
        with self._lock:
            due = [p for queries in self._by_key.values() for p in queries.values() if p.deadline_s <= now_s]
        return [p for p in due if self.pop(p.key, p.query_id) is not None]


class ClientTopics(NamedTuple):
    memory: str
    queries: str
    responses: str
    control: str


class NewKey(NamedTuple):
    """A new API key. `text` is the secret that its holder sends; it is not stored and cannot be shown again. `event` is
    its record, which `revoke_key` needs, and `position` the position of that event."""

    text: str
    event: ApiKey
    position: Position

    def __repr__(self) -> str:
        return f"NewKey({self.event.name})"


class KafkaVerbs(Verbs):
    """Memory operations and tenant decisions for an engine on Kafka."""

    def __init__(
        self,
        kafka: KafkaOptions,
        scope: ClientScope,
        topics: ClientTopics,
        timeout_s: float,
        credentials: ClientCredentials,
        control_secret: str | None,
        replies: Inbox | None = None,
    ) -> None:
        """Connect to Kafka. `replies` replaces the response topic."""
        super().__init__(scope, timeout_s)
        check_secret("control_secret", control_secret)
        for name, topic in topics._asdict().items():
            checked_text(f"the {name} topic", topic)
        self._topics, self._credentials, self._control_secret = topics, credentials, control_secret
        self._decided_ms = 0
        self._deciding = threading.Lock()
        self._writes = OwnWrites()
        self._pending = PendingQueries()
        inboxes, queries = [replies or Inbox(topics.responses)], self._pending
        self._kafka = ProducerAndReader(kafka, inboxes, timeout_s, queries.receive, queries.fail_all, queries.fail_due)

    def _put(self, event: AnyEvent) -> "Future[Position]":
        sent = self._send(event, (*self._credentials.headers(event.user_id), *trace_headers()))
        if event.type in QUERY_TYPES:
            return sent
        return map_future(sent, partial(self._writes.add, event.user_id))  # added before the caller continues

    def _written(self, user_id: str) -> Position | None:
        return self._writes.last(user_id)

    def _answer(self, query: QueryEvent, timeout_s: float) -> "Future[Response]":
        headers = (*self._credentials.headers(query.user_id), *trace_headers())
        query_id = cast(str, query.id)
        pending = PendingQuery(query_id, query.owner.record_key, timeout_s, time.monotonic() + timeout_s)
        with self._kafka.delay_close():
            self._pending.add(pending)
        self._kafka.ready.add_done_callback(lambda _: self._ask_when_ready(query, pending, headers))
        return pending.future

    def _ask_when_ready(self, query: QueryEvent, pending: PendingQuery, headers: Headers) -> None:
        """Send a query, unless its deadline passed before responses could be read."""

        def fail(error: BaseException | None) -> None:
            if error is not None and self._pending.pop(pending.key, pending.query_id) is not None:
                pending.future.set_exception(error)

        if (reply_to := self._kafka.reply_to) is not None:
            query = query.model_copy(update={"reply_to": reply_to})
        if time.monotonic() < pending.deadline_s:
            try:
                self._send(query, headers).add_done_callback(lambda sent: fail(sent.exception()))
            except InvalidRecord as error:  # too large
                fail(error)
            except UsageError:  # the client was closed: close() fails the query
                pass

    def _send(self, event: AnyEvent, headers: Headers) -> "Future[Position]":
        topic = self._topics.queries if event.type in QUERY_TYPES else self._topics.memory
        value = event.model_dump_json(exclude_unset=True).encode()
        return self._produce(topic, value, event.owner.record_key, headers)

    def _produce(self, topic: str, value: bytes, key: bytes, headers: Headers) -> "Future[Position]":
        sent: Future[Position] = new_future()

        def on_outcome(outcome: Position | DeliveryFailed) -> None:
            (sent.set_exception if isinstance(outcome, DeliveryFailed) else sent.set_result)(outcome)  # type: ignore[arg-type]

        self._kafka.send(topic, value, key, headers, on_outcome)
        return sent

    def close(self) -> None:
        """Wait about `timeout_s` for sent records; pending queries get UsageError. A second call has no effect."""
        self._kafka.close()

    def graph_status(
        self, /, *, user: str, after: After | None = None, timeout_s: float | None = None
    ) -> "Future[GraphReport]":
        """Return the size of a user's graph, and the tenant's rollout and quality gate. Wait and raise as `search`."""
        answer = self._ask("graph.status", user, {}, after, timeout_s)
        return map_future(answer, lambda response: cast(GraphReport, response.graph_status))

    def graph_trace(
        self, /, query: str, *, user: str, after: After | None = None, timeout_s: float | None = None, **fields: Any
    ) -> "Future[Trace]":
        """Return each step of the graph's contribution to the answer of `query`. `fields` are other fields of a
        `graph.trace` event (`k`, `filters`, `traversal_depth`, …). Wait and raise as `search`."""
        answer = self._ask("graph.trace", user, {"query": query} | fields, after, timeout_s)
        return map_future(answer, lambda response: cast(Trace, response.graph_trace))

    def graph_rollout(self, /, mode: RolloutMode, *, by: str, why: str) -> "Future[Position]":
        """Set the rollout mode of the tenant's graph: `off`, `shadow` (measured only) or `canary` (part of answers).

        The mode applies to all queries that reach Kafka after the decision. `by` and `why` are stored, and shown by
        `graph_status`. Return the position once it is acknowledged. Raise InvalidRecord, UsageError or DeliveryFailed.
        """
        return self.decide("graph.rollout", {"mode": mode, "by": by, "why": why})

    def graph_gate(self, /, blocked: bool, *, by: str, why: str) -> "Future[Position]":
        """Override the tenant's quality gate. A block lasts until a second call removes it; the gate then decides by
        later measurements alone. Return and raise as `graph_rollout` does."""
        return self.decide("gate.verdict", {"blocked": blocked, "by": by, "why": why})

    def category(
        self, /, name: str, description: str, *, removed: bool = False, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Define a category of the tenant's memories, change its description, or retire it (`removed`). The change
        applies to events that reach Kafka after it. Return and raise as `graph_rollout` does."""
        fields = {"name": name, "description": description, "removed": removed}
        return self.decide("category", fields | given_fields(by=by, why=why))

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
        """Create an API key of the tenant (`*`: for all tenants). Pass projects, environments or users to restrict it.

        It is valid for records that reach Kafka at least a second later. Return and raise as `graph_rollout` does."""
        key, fields = new_key()
        scopes = given_fields(projects=projects, environments=environments, end_users=end_users, by=by, why=why)
        event = self._decision("api_key", fields | scopes)
        return map_future(self._publish(event), lambda position: NewKey(key.text(), cast(ApiKey, event), position))

    def revoke_key(self, /, key: ApiKey, *, by: str | None = None, why: str | None = None) -> "Future[Position]":
        """Revoke an API key permanently. Records with the key that reach Kafka more than a second later are refused.
        Return and raise as `graph_rollout` does."""
        if not isinstance(key, ApiKey) or key.tenant_id != self._scope.tenant_id:
            raise UsageError(f"give the ApiKey of a key of tenant {self._scope.tenant_id!r}, as create_key() gave it")
        return self.decide("api_key", key.revocation() | given_fields(by=by, why=why))

    def quota(
        self, /, name: str, limit: int | None, *, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Set a limit of the tenant, or remove it (None). The limit applies to records that Kafka appends at least a
        second later. Return and raise as `graph_rollout` does."""
        return self.decide("quota", given_fields(name=name, limit=limit, by=by, why=why))

    def map_owner(
        self, /, name: str, workspace: str | None, *, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Route events about an owner's projects (`github.com/NAME/…`) to a workspace of the tenant; None routes them
        to their users again. Return and raise as `graph_rollout` does."""
        return self.decide("owner.mapping", {"name": name, "workspace": workspace} | given_fields(by=by, why=why))

    def decide(self, event_type: str, fields: Mapping[str, Any]) -> "Future[Position]":
        """Send a control event of the tenant. Return and raise as `graph_rollout` does."""
        return self._publish(self._decision(event_type, fields))

    def _decision(self, event_type: str, fields: Mapping[str, Any]) -> Control:
        for name in {"by", "why"} & fields.keys():
            checked_text(name, fields[name])
        with self._deciding:  # timestamps increase strictly: an earlier decision that is sent again has no effect
            self._decided_ms = max(time.time_ns() // 1_000_000, self._decided_ms + 1)
            return self._scope.control_event(event_type, {**fields, "timestamp": self._decided_ms})

    def _publish(self, event: Control) -> "Future[Position]":
        key, value = event.record_key, event.model_dump_json(exclude_none=True).encode()
        return self._produce(self._topics.control, value, key, sign(self._control_secret, key, value))


class _KafkaConnection:
    _verbs: Verbs

    @with_argument_help
    def __init__(
        self,
        bootstrap_servers: str,
        tenant: str = "default",
        *,
        environment: str = "prod",
        memory_topic: str = "memory.events",
        query_topic: str = "query.events",
        response_topic: str = "recall.responses",
        control_topic: str = "control.events",
        options: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float = 10.0,
        api_key: str | None = None,
        token: Token | None = None,
        end_user: str | None = None,
        control_secret: str | None = None,
        reply_topic: str | None = None,
        reply_partition: int | None = None,
        msk_iam_region: str | None = None,
    ) -> None:
        """Create a client, without waiting for Kafka. Raise UsageError or InvalidRecord for invalid arguments.

        `options` are librdkafka's (`security.protocol`, `sasl.*`, `ssl.*`, …). `msk_iam_region` logs in to Amazon MSK
        with IAM credentials (SourceError without them). `timeout_s` limits the acknowledgement of a record, and the
        wait for a response.

        An engine with authentication needs `api_key` or `token`, a JWT or a function that returns one for each record.
        `end_user` restricts the client to one user. `control_secret` signs tenant decisions, for an engine that accepts
        only signed ones.

        `reply_topic` replaces the response topic; the engine's settings must permit it. The client reads one partition
        of the reply topic, `reply_partition` or a random one. There, queries with refused credentials time out."""
        checked_text("bootstrap_servers", bootstrap_servers)
        if not isinstance(options, Mapping):
            raise UsageError(f"options must map librdkafka's names to values, not {options!r}")
        topics = ClientTopics(memory_topic, query_topic, response_topic, control_topic)
        kafka, scope = KafkaOptions(bootstrap_servers, options, msk_iam_region), ClientScope(tenant, environment)
        credentials, replies = ClientCredentials(api_key, token, end_user), None
        if reply_partition is not None and (type(reply_partition) is not int or reply_partition < 0):
            raise UsageError(f"reply_partition must be a whole number from 0 on, not {reply_partition!r}")
        if reply_topic is not None or reply_partition is not None:
            replies = Inbox(checked_text("reply_topic", reply_topic), True, reply_partition)
        self._verbs = KafkaVerbs(kafka, scope, topics, timeout_s, credentials, control_secret, replies)


class RecallClient(_KafkaConnection, SyncCalls):
    """Client of an engine on Kafka. Every call waits for its outcome. For use from any number of threads."""

    graph_status = sync_call(KafkaVerbs.graph_status)
    graph_trace = sync_call(KafkaVerbs.graph_trace)
    graph_rollout = sync_call(KafkaVerbs.graph_rollout)
    graph_gate = sync_call(KafkaVerbs.graph_gate)
    category = sync_call(KafkaVerbs.category)
    create_key = sync_call(KafkaVerbs.create_key)
    revoke_key = sync_call(KafkaVerbs.revoke_key)
    map_owner = sync_call(KafkaVerbs.map_owner)
    quota = sync_call(KafkaVerbs.quota)


class AsyncRecallClient(_KafkaConnection, AsyncCalls):
    """Client of an engine on Kafka. Every call is awaited. For use from one event loop, or several."""

    graph_status = async_call(KafkaVerbs.graph_status)
    graph_trace = async_call(KafkaVerbs.graph_trace)
    graph_rollout = async_call(KafkaVerbs.graph_rollout)
    graph_gate = async_call(KafkaVerbs.graph_gate)
    category = async_call(KafkaVerbs.category)
    create_key = async_call(KafkaVerbs.create_key)
    revoke_key = async_call(KafkaVerbs.revoke_key)
    map_owner = async_call(KafkaVerbs.map_owner)
    quota = async_call(KafkaVerbs.quota)
