"""The verbs as records of Kafka topics, and what decides about a tenant, without waiting for it."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Self, cast

from recallflow.brokers.exchange import Exchange
from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.reader import Inbox
from recallflow.client.credentials import Credentials, Headers
from recallflow.client.outstanding import Outstanding, Pending
from recallflow.client.writes import Writes
from recallflow.control import ApiKey, Control, RolloutMode
from recallflow.credentials import new_key
from recallflow.errors import DeliveryFailed, InvalidRecord, UsageError
from recallflow.graphs import GraphReport, Trace
from recallflow.parsing import QUERY_TYPES
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Response
from recallflow.signatures import check_secret, signed
from recallflow.verbs.futures import new_future, then
from recallflow.verbs.scope import AnyEvent, Scope
from recallflow.verbs.sendable import checked_text
from recallflow.verbs.verbs import After, Verbs


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


class KafkaVerbs(Verbs):
    """The verbs before an engine on Kafka, with what decides about a tenant."""

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
        super().__init__(scope, timeout_s)
        check_secret("control_secret", control_secret)
        self._topics = topics.checked()
        self._credentials, self._control_secret = credentials, control_secret
        self._decided_ms = 0
        self._deciding = threading.Lock()
        self._writes = Writes()
        self._outstanding = Outstanding()
        inboxes, waiting = [replies or Inbox(topics.responses)], self._outstanding
        self._exchange = Exchange(kafka, inboxes, timeout_s, waiting.receive, waiting.fail_all, waiting.fail_due)

    # ------------------------------------------------------------------ the two ways out

    def _put(self, event: AnyEvent) -> "Future[Position]":
        sent = self._send(event, self._credentials.headers(event.user_id))
        if event.type in QUERY_TYPES:
            return sent
        return then(sent, partial(self._writes.note, event.user_id))  # known before the caller goes on

    def _written(self, user_id: str) -> Position | None:
        return self._writes.last(user_id)

    def _answer(self, query: QueryEvent, timeout_s: float) -> "Future[Response]":
        headers = self._credentials.headers(query.user_id)
        query_id = cast(str, query.id)
        pending = Pending(query_id, query.owner.record_key, timeout_s, time.monotonic() + timeout_s)
        with self._exchange.open():
            self._outstanding.add(pending)
        self._exchange.ready.add_done_callback(lambda _: self._ask_when_ready(query, pending, headers))
        return pending.future

    def _ask_when_ready(self, query: QueryEvent, pending: Pending, headers: Headers) -> None:
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

    # ------------------------------------------------------------------ the graph

    def graph_status(
        self, /, *, user: str, after: After | None = None, timeout_s: float | None = None
    ) -> "Future[GraphReport]":
        """A user's graph in numbers, the tenant's rollout and its quality gate. Waits and raises as `search` does."""
        answer = self._ask("graph.status", user, {}, after, timeout_s)
        return then(answer, lambda response: cast(GraphReport, response.graph_status))

    def graph_trace(
        self, /, query: str, *, user: str, after: After | None = None, timeout_s: float | None = None, **fields: Any
    ) -> "Future[Trace]":
        """Every step of what the graph would add to the answer to `query`. `fields`: any other of a `graph.trace` event
        (`k`, `filters`, `traversal_depth`, …). Waits and raises as `search` does."""
        answer = self._ask("graph.trace", user, {"query": query} | fields, after, timeout_s)
        return then(answer, lambda response: cast(Trace, response.graph_trace))

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
        key, fields = new_key()
        scopes = {"projects": projects, "environments": environments, "end_users": end_users, "by": by, "why": why}
        event = self._decision("api_key", fields | {name: given for name, given in scopes.items() if given is not None})
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
        said = {name: given for name, given in (("by", by), ("why", why)) if given is not None}
        return self._decide("api_key", key.revocation() | said)

    def quota(
        self, /, name: str, limit: int | None, *, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Sets a limit of the tenant's, or takes it away (None). It holds for what Kafka appends a second later. Gives
        and raises what `graph_rollout` does."""
        fields = {"name": name, "limit": limit, "by": by, "why": why}
        return self._decide("quota", {name: given for name, given in fields.items() if given is not None})

    def map_owner(
        self, /, name: str, workspace: str | None, *, by: str | None = None, why: str | None = None
    ) -> "Future[Position]":
        """Routes events about projects of an owner (`github.com/NAME/…`) to a workspace of the tenant, or, with None,
        to their users again. Gives and raises what `graph_rollout` does."""
        said = {name: given for name, given in (("by", by), ("why", why)) if given is not None}
        return self._decide("owner.mapping", {"name": name, "workspace": workspace} | said)

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


def _resolve(sent: "Future[Position]", outcome: Position | DeliveryFailed) -> None:
    if isinstance(outcome, DeliveryFailed):
        sent.set_exception(outcome)
    else:
        sent.set_result(outcome)
