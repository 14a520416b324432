"""Interface between an access point (the HTTP gateway, the MCP server) and an engine, on Kafka or in this process."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from recallflow.control import Rollout, RolloutMode
from recallflow.credentials import Headers
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import MemoryEvent
from recallflow.fields import Model
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Receipt, Response


class StoredEvent(NamedTuple):
    """Position of a stored event. `receipt` is set where it was awaited and came in time."""

    position: Position
    receipt: Receipt | None = None


def check_forgotten(receipt: Receipt | None) -> None:
    """Raise InvalidRecord (`not_found`) for a receipt of a missing memory."""
    if receipt is not None and receipt.outcome == "unchanged":
        raise InvalidRecord("not_found", [FieldProblem("memory_id", "no memory has this id")])


class Service(Protocol):
    """Queries and events of clients, with credentials as headers. Calls are awaited on one event loop."""

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        """Return the response to a query, also one with status `error`.

        A query without an id gets one; two in flight may have the same. Raise QueryTimeout, DeliveryFailed,
        SourceError, and InvalidRecord for a query that is too large.
        """

    async def store(self, event: MemoryEvent, headers: Headers) -> StoredEvent:
        """Store an event without waiting until it is applied. Raise DeliveryFailed and InvalidRecord."""

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> StoredEvent:
        """Store an event, and wait until it is applied. A late receipt is None. Raise InvalidRecord, and as `store`."""

    def owners(self) -> Collection[Owner]:
        """Return owners with memories, as far as the service knows them; a service without the state knows none."""

    def obstacle(self) -> str:
        """Return the reason why the engine is not ready; empty if it is."""

    def stop_reason(self) -> str:
        """Return why only a new process will answer again; empty while this one may."""


class Admission(Protocol):
    """Authorisation against the current control table. The engine's own check, as of the append time, is final."""

    def authenticate(self, headers: Headers) -> None:
        """Raise InvalidRecord (`unauthenticated`). A server checks this before it reads a body."""

    def check(self, event: MemoryEvent | QueryEvent, headers: Headers) -> None:
        """Raise InvalidRecord (`unauthenticated`, `forbidden`, `over_quota`)."""

    def ids(self, headers: Headers) -> Mapping[str, str]:
        """Return the ids that credentials determine, by event field. Raise InvalidRecord (`unauthenticated`)."""


class GateShown(Model):
    """The current verdict on a tenant's graph. Times are RFC 3339 in UTC."""

    blocked: bool
    since: str
    by: str | None
    why: str | None


class RolloutShown(Model):
    """A tenant's rollout mode with its author, time and reason (null: never decided). `gate` is the current verdict
    of the quality gate, or of its override; null without one."""

    tenant_id: str
    mode: RolloutMode
    since: str | None
    by: str | None
    why: str | None
    gate: GateShown | None


class Rollouts(Protocol):
    """Current graph rollouts of tenants, and decisions on them."""

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:
        """Return the current rollout. Raise InvalidRecord (`unauthenticated`, `forbidden`)."""

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:
        """Store a decision. Raise as `state`, and DeliveryFailed or SinkError where it cannot be stored."""
