"""What a door to recallflow (the HTTP gateway, the MCP server) puts questions and events to: an engine behind Kafka, or
one in this process."""

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


class Stored(NamedTuple):
    """Where an event stands in its log. `receipt`: what became of it, where that was waited for and known in time."""

    position: Position
    receipt: Receipt | None = None


def check_forgotten(receipt: Receipt | None) -> None:
    """Raise InvalidRecord (`not_found`) where it is known that there was no such memory to forget."""
    if receipt is not None and receipt.outcome == "unchanged":
        raise InvalidRecord("not_found", [FieldProblem("memory_id", "no memory has this id")])


class Service(Protocol):
    """Everything that is asked and stored goes through here, with the credentials of whoever it is done for: headers
    as a record has them. Calls are awaited on one event loop, any number at the same time."""

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        """The response to a query, also one whose status is `error`. An id is made where the query has none; two under
        way may have the same. Raises QueryTimeout, DeliveryFailed, SourceError, and InvalidRecord for what is too
        large to be sent."""
        ...

    async def store(self, event: MemoryEvent, headers: Headers) -> Stored:
        """Stores an event for good, and does not wait until it is applied. Raises DeliveryFailed and InvalidRecord."""
        ...

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> Stored:
        """Stores an event and waits until it is applied; no receipt where that is not known in time. Raises
        InvalidRecord where it was refused, and what `store` does."""
        ...

    def owners(self) -> Collection[Owner]:
        """Return owners with memories, as far as the service knows them; a service without the state knows none."""
        ...

    def obstacle(self) -> str:
        """Why nobody should ask yet, or any more; empty where everything is there."""
        ...

    def stopped(self) -> str:
        """Return why only a new process will answer again; empty while this one may."""
        ...


class Admission(Protocol):
    """Says at once whether credentials allow something, by what is decided now. The engine judges each record again, as
    of its append time, and that verdict holds."""

    def authenticate(self, headers: Headers) -> None:
        """Raise InvalidRecord (`unauthenticated`) unless the credentials are somebody's: for a server to ask before it
        reads a body."""
        ...

    def check(self, event: MemoryEvent | QueryEvent, headers: Headers) -> None:
        """Raises InvalidRecord (`unauthenticated`, `forbidden`, `over_quota`)."""
        ...

    def ids(self, headers: Headers) -> Mapping[str, str]:
        """Return the ids of which credentials name exactly one, by the fields of events. Raises InvalidRecord
        (`unauthenticated`)."""
        ...


class GateShown(Model):
    """The verdict on a tenant's graph that holds. Times are RFC 3339 in UTC."""

    blocked: bool
    since: str
    by: str | None
    why: str | None


class RolloutShown(Model):
    """What becomes of what the graph adds to a tenant's answers, and who decided it when and why (null: nobody yet).
    `gate`: the verdict of the quality gate, or of who overruled it; null where there was none yet."""

    tenant_id: str
    mode: RolloutMode
    since: str | None
    by: str | None
    why: str | None
    gate: GateShown | None


class Rollouts(Protocol):
    """What was decided about tenants' graphs, and a way to decide it."""

    def state(self, tenant_id: str, headers: Headers) -> RolloutShown:
        """What holds now. Raises InvalidRecord (`unauthenticated`, `forbidden`)."""
        ...

    async def decide(self, rollout: Rollout, headers: Headers, timeout_s: float) -> None:
        """Returns once the decision is stored. Raises the same, and DeliveryFailed or SinkError where it cannot be."""
        ...
