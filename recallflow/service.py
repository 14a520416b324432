"""Interface between an access point (the HTTP gateway, the MCP server) and an engine, on Kafka or in this process."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from recallflow.control import Rollout, RolloutMode
from recallflow.credentials import Headers
from recallflow.errors import InvalidRecord
from recallflow.events import MemoryEvent
from recallflow.fields import Model
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import Receipt, Response


class StoredEvent(NamedTuple):
    """Position of a stored event. `receipt` is set if the caller awaited a receipt and it came in time."""

    position: Position
    receipt: Receipt | None = None


def check_forgotten(receipt: Receipt | None) -> None:
    """Raise InvalidRecord (`not_found`) for a receipt of a missing memory."""
    if receipt is not None and receipt.outcome == "unchanged":
        raise InvalidRecord.of("not_found", "no memory has this id", "memory_id")


class Service(Protocol):
    """Queries and events of clients, with credentials as headers. Calls are awaited on one event loop."""

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        """Return the response to a query, also one with status `error`.

        A query without an id gets one; two pending queries may have the same id. Raise QueryTimeout, DeliveryFailed,
        SourceError, and InvalidRecord for a query that is too large."""

    async def store(self, event: MemoryEvent, headers: Headers) -> StoredEvent:
        """Store an event without waiting until it is applied. Raise DeliveryFailed and InvalidRecord."""

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> StoredEvent:
        """Store an event, and wait until it is applied. The receipt is None after `timeout_s`. Raise as `store`."""

    def owners(self) -> Collection[Owner]:
        """Return owners with memories; none for a service without access to the state."""

    def obstacle(self) -> str:
        """Return the reason why the engine is not ready; an empty text if it is ready."""

    def stop_reason(self) -> str:
        """Return the reason why this process can never answer again; an empty text while it can."""


class Admission(Protocol):
    """Authorisation by the control events in force now. The engine checks again as of the append time, and decides."""

    def authenticate(self, headers: Headers) -> None:
        """Raise InvalidRecord (`unauthenticated`). Servers call this before they read a request's body."""

    def check(self, event: MemoryEvent | QueryEvent, headers: Headers) -> None:
        """Raise InvalidRecord (`unauthenticated`, `forbidden`, `over_quota`)."""

    def ids(self, headers: Headers) -> Mapping[str, str]:
        """Return the ids that credentials determine, by event field. Raise InvalidRecord (`unauthenticated`)."""


class GateShown(Model):
    """The quality gate's current verdict on a tenant's graph. Times are RFC 3339 in UTC."""

    blocked: bool
    since: str
    by: str | None
    why: str | None


class RolloutShown(Model):
    """A tenant's rollout mode with its author, time and reason (null: no decision yet). `gate` is the current verdict
    of the quality gate or of an administrator; null without a verdict."""

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
        """Store a decision. Raise as `state`, and DeliveryFailed or SinkError if it cannot be stored."""
