"""What both clients do, without waiting for it."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Self, cast

from recallflow.brokers.exchange import Exchange
from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.reader import Inbox
from recallflow.client.credentials import Credentials, Headers
from recallflow.client.outstanding import Outstanding, Pending, new_future
from recallflow.client.scope import AnyEvent, Scope
from recallflow.client.sendable import checked_text, checked_wait
from recallflow.control import ApiKey, Control, RolloutMode
from recallflow.credentials import ApiKeyText, hash_of, new_salt
from recallflow.errors import DeliveryFailed, InvalidRecord, UsageError
from recallflow.events import ContentPart
from recallflow.fields import Role
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import Mode, QueryEvent
from recallflow.records import Position
from recallflow.responses import Response
from recallflow.signatures import check_secret, signed


class Topics(NamedTuple):
    memory: str
    queries: str
    responses: str
    control: str

    def checked(self) -> Self:
        """The same. Raises UsageError for what is no topic."""
        for name, topic in self._asdict().items():
            checked_text(f"the {name} topic", topic)
        return self


def checked_replies(topic: object, partition: object) -> Inbox | None:
    """Where answers go in place of the response topic, if anywhere. Raises UsageError for what is no place."""
    if topic is None and partition is None:
        return None
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool) or partition < 0):
        raise UsageError(f"reply_partition must be a whole number from 0 on, not {partition!r}")
    return Inbox(checked_text("reply_topic", topic), True, partition)


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
        replies: Inbox | None = None,
    ) -> None:
        """`replies`: where answers are to go in place of the response topic."""
        checked_wait("timeout_s", timeout_s)
        check_secret("control_secret", control_secret)
        self._scope, self._topics = scope, topics.checked()
        self._credentials, self._control_secret = credentials, control_secret
        self._decided_ms = 0
        self._deciding = threading.Lock()
        self._timeout_s = timeout_s
        scope.event("user.stats", "anyone", {})  # a wrong scope fails here, and not at the first call
        self._outstanding = Outstanding()
        inboxes, waiting = [replies or Inbox(topics.responses)], self._outstanding
        self._exchange = Exchange(kafka, inboxes, timeout_s, waiting.receive, waiting.fail_all, waiting.fail_due)

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

    def memories(
        self, /, user_id: str, *, after: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> "Future[Response]":
        """Asks for all memories of a user, newest first, a page at a time: `memory_page` of the response, whose `after`
        is that of the next call. `fields`: any other of a `memories.list` event (`filters`, `limit`, `as_of`). Waits
        and raises as `recall` does."""
        return self._ask("memories.list", user_id, fields | ({} if after is None else {"after": after}), timeout_s)

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
        asked = cast(QueryEvent, self._scope.built(query))
        if asked.type not in QUERY_TYPES:
            raise UsageError(f"{query.type} asks nothing: use send()")
        if query.reply_to is not None:
            raise UsageError("reply_to: the response would go where this client does not read; use send()")
        wait_s = self._timeout_s if timeout_s is None else checked_wait("timeout_s", timeout_s)
        query_id = query.id or uuid.uuid4().hex
        asked = asked.model_copy(update={"id": query_id})
        headers = self._credentials.headers(asked.user_id)
        pending = Pending(query_id, asked.owner.record_key, wait_s, time.monotonic() + wait_s)
        with self._exchange.open():
            self._outstanding.add(pending)
        self._exchange.ready.add_done_callback(lambda _: self._put(asked, pending, headers))
        return pending.future

    def _put(self, query: QueryEvent, pending: Pending, headers: Headers) -> None:
        """Sends a query, unless its time was up before responses could be read."""

        def fail(error: BaseException | None) -> None:
            if error is not None and self._outstanding.pop(pending.key, pending.query_id) is not None:
                pending.future.set_exception(error)

        if (reply_to := self._exchange.reply_to) is not None:
            query = query.model_copy(update={"reply_to": reply_to})
        if time.monotonic() < pending.deadline_s:
            try:
                self._send(query, headers).add_done_callback(lambda sent: fail(sent.exception()))
            except InvalidRecord as error:  # too large
                fail(error)
            except UsageError:  # closed meanwhile: close() is what fails the query then
                pass

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
        with self._deciding:  # each is newer than the one before it: who replays the latter changes nothing
            self._decided_ms = max(time.time_ns() // 1_000_000, self._decided_ms + 1)
            return self._scope.decision(event_type, {**fields, "timestamp": self._decided_ms})

    def _publish(self, event: Control) -> "Future[Position]":
        key, value = event.record_key, event.model_dump_json(exclude_none=True).encode()
        return self._produce(self._topics.control, value, key, signed(self._control_secret, key, value))

    # ------------------------------------------------------------------ sending

    def _write(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> "Future[Position]":
        event = self._scope.event(event_type, user_id, fields)
        return self._send(event, self._credentials.headers(event.user_id))

    def _send(self, event: AnyEvent, headers: Headers) -> "Future[Position]":
        topic = self._topics.queries if event.type in QUERY_TYPES else self._topics.memory
        value = event.model_dump_json(exclude_unset=True).encode()
        return self._produce(topic, value, event.owner.record_key, headers)

    def _produce(self, topic: str, value: bytes, key: bytes, headers: Headers) -> "Future[Position]":
        sent: Future[Position] = new_future()
        self._exchange.send(topic, value, key, headers, partial(_resolve, sent))
        return sent

    def close(self) -> None:
        """Sees every record sent so far to its end, and fails queries that are still open with UsageError. Blocks for
        at most about `timeout_s`. A second call does nothing."""
        self._exchange.close()


def _resolve(sent: "Future[Position]", outcome: Position | DeliveryFailed) -> None:
    if isinstance(outcome, DeliveryFailed):
        sent.set_exception(outcome)
    else:
        sent.set_result(outcome)


def _named(memory_id: object) -> str:
    if not isinstance(memory_id, str | Position):
        raise UsageError(f"memory_id must be text or the Position of a write, not {memory_id!r}")
    return str(memory_id)


def _positions(after: object) -> list[str]:
    given = [after] if isinstance(after, str | Position) else after
    if not isinstance(given, Sequence) or not all(isinstance(one, str | Position) for one in given):
        raise UsageError(f"after must be the Position of a write, or a list of them, not {after!r}")
    return [str(position) for position in given]
