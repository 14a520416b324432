"""Control events: decisions of a tenant's administrators (topic `control.events`, keyed `tenant/kind/name`), and their
history. The topic keeps all decisions: the decisions in force at the time of a record apply to the record."""

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from recallflow import limits
from recallflow.fields import EPOCH_MS_MAX, AnyJson, Identifier, Model, Name, SafeInt, StrictPart, Timestamp, check_all
from recallflow.queries import WEIGHTS, Decay, Weight, unknown_factors

RECALL_SETTINGS = "recall"
DEFAULT = "default"  # the name of a rollout or verdict, which applies to a whole tenant
Text = Annotated[str, Field(max_length=limits.SUMMARY_CHARACTERS)]
RolloutMode = Literal["off", "shadow", "canary"]
BOUNDED_LIST = Field(max_length=limits.USERS_MAX)
ALL_TENANTS = "*"  # the tenant of the deployment's own keys, which are valid for every tenant
DELAY_MS = 1_000  # a decision applies to records appended at least this long after it


class Control(Model):
    """Fields of every control event. A revocation is a later event; nothing is deleted."""

    tenant_id: Identifier
    name: Name
    timestamp: Timestamp | None = None
    by: Name | None = None
    why: Text | None = None

    @property
    def kind(self) -> str:
        return self.type  # type: ignore[attr-defined,no-any-return]

    @property
    def record_key(self) -> bytes:
        """Return the key of all decisions of one kind and name, which keeps them in order."""
        return f"{self.tenant_id}/{self.kind}/{self.name}".encode()


class RecallSettings(StrictPart):
    """A tenant's ranking settings: weights by mode and factor, and the decay of recency by age. Values of a query
    take precedence over these settings, and these settings over the defaults."""

    weights: dict[Literal["hybrid", "balanced", "entity_focused"], dict[str, Weight]] = {}
    decay: Decay = Decay()

    @field_validator("weights", mode="wrap")
    @classmethod
    def _known_factors(cls, weights: object, check: ValidatorFunctionWrapHandler) -> Any:
        by_mode = weights if isinstance(weights, dict) else {}
        problems = [problem for mode in WEIGHTS for problem in unknown_factors(mode, by_mode.get(mode), mode)]
        return check_all(weights, check, problems)


class TenantSettings(Control):
    """Settings of one tenant, which override the deployment's. Settings with the name `recall` are `RecallSettings`."""

    type: Literal["tenant.settings"]
    settings: AnyJson

    @field_validator("settings")
    @classmethod
    def _valid(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("name") == RECALL_SETTINGS:
            RecallSettings.model_validate(settings)
        return settings


class Category(Control):
    """A memory category. By its `description`, an LLM decides whether a memory belongs to it."""

    type: Literal["category"]
    description: Text
    removed: bool = False


class ApiKey(Control):
    """An API key with its `name` and salted hash. `projects`, `environments` and `end_users` limit its use (null: no
    limit within the tenant). A key of the tenant `*` is valid for all tenants. A revoked key stays revoked."""

    type: Literal["api_key"]
    salt: Name
    hash: Name
    projects: Annotated[list[Name], BOUNDED_LIST] | None = None
    environments: Annotated[list[Identifier], BOUNDED_LIST] | None = None
    end_users: Annotated[list[Identifier], BOUNDED_LIST] | None = None
    revoked: bool = False

    def revocation(self) -> dict[str, Any]:
        """Return the fields of the decision that revokes this key."""
        fields = self.model_dump(exclude={"type", "tenant_id", "timestamp", "by", "why"}, exclude_none=True)
        return fields | {"revoked": True}


class TokenKey(Control):
    """A key that verifies JWT signatures. Its name is the `kid`, its tenant `*`. `jwk` is a public key (RFC 7517);
    null for a secret: the event contains only its `fingerprint`. A revoked key stays revoked."""

    type: Literal["token_key"]
    algorithm: Literal["HS256", "RS256", "ES256"]
    jwk: AnyJson | None = None
    fingerprint: Name
    revoked: bool = False


class Rollout(Control):
    """The tenant's graph rollout mode."""

    type: Literal["graph.rollout"]
    mode: RolloutMode


class GateVerdict(Control):
    """The quality gate's verdict on graph expansion. `windows` contains the observed figures by name."""

    type: Literal["gate.verdict"]
    blocked: bool
    windows: dict[str, Any] = {}


class OwnerMapping(Control):
    """Maps a project owner (`name`) to a workspace; null revokes the mapping."""

    type: Literal["owner.mapping"]
    workspace: Identifier | None = None


class Quota(Control):
    """A limit of the tenant, by its `name` (docs/how-to/quotas.md); null means no limit."""

    type: Literal["quota"]
    limit: SafeInt | None = None


ControlEvent = Annotated[
    TenantSettings | Category | ApiKey | TokenKey | Rollout | GateVerdict | OwnerMapping | Quota,
    Field(discriminator="type"),
]
C = TypeVar("C", bound=Control)


class Decision(NamedTuple):
    """A control event and its append time (epoch milliseconds)."""

    append_ms: int
    event: Control


class ControlHistory:
    """All decisions by (tenant, kind, name), each list in log order. The decisions in force at a record's append time
    apply to the record, so that a later rebuild accepts the same records. One thread may add while others read."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[str, str, str], list[Decision]] = defaultdict(list)
        self._names: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._tenants: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._listeners: list[Callable[[int, Control], None]] = []
        self._first_ms: dict[str, int] = {}  # time of the first decision of each kind

    def add(self, append_ms: int, event: Control) -> None:
        decisions = self._decisions[event.tenant_id, event.kind, event.name]
        bisect.insort(decisions, Decision(append_ms, event), key=lambda d: d.append_ms)
        self._register(append_ms, event)

    def subscribe(self, listener: Callable[[int, Control], None]) -> None:
        """Register a listener for later decisions. It is called after each addition, on the same thread."""
        self._listeners.append(listener)

    def add_signed(self, append_ms: int, event: Control) -> bool:
        """Add a decision with a trusted `timestamp`, and return whether it takes effect. A decision that is older than
        the one in force is rejected: an attacker may have sent its record again. A revocation counts as newest."""
        decisions = self._decisions[event.tenant_id, event.kind, event.name]
        at = bisect.bisect_right(decisions, append_ms, key=lambda d: d.append_ms)
        if at and _order_ms(decisions[at - 1].event) >= _order_ms(event):
            return False
        # Partitions are read in any order: an old decision that was sent again may be in the list already. Remove it.
        later = [d for d in decisions[at:] if _order_ms(d.event) > _order_ms(event)]
        decisions[at:] = [Decision(append_ms, event), *later]
        self._register(append_ms, event)
        return True

    def as_of(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Control | None:
        """Return the event in force at `at_ms`: the latest one with an append time up to `at_ms`."""
        decision = self.decision(tenant_id, kind, name, at_ms)
        return None if decision is None else decision.event

    def decision(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Decision | None:
        """Return the decision in force at `at_ms`, with its time."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        at = bisect.bisect_right(decisions, at_ms, key=lambda d: d.append_ms)
        return decisions[at - 1] if at else None

    def in_force(self, model: type[C], kind: str, tenant_id: str, at_ms: int = EPOCH_MS_MAX) -> list[C]:
        """Return a tenant's decisions of a kind in force at `at_ms`, by name."""
        events = (self.as_of(tenant_id, kind, name, at_ms) for name in self.names(tenant_id, kind))
        return [event for event in events if isinstance(event, model)]

    def is_revoked(self, tenant_id: str, kind: str, name: str, at_ms: int) -> bool:
        """Return whether a name was revoked up to `at_ms`. An earlier decision that is sent again restores no key."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        return any(d.append_ms <= at_ms and _is_revocation(d.event) for d in decisions)

    def first_decision_ms(self, kinds: Iterable[str]) -> int | None:
        """Return the time of the first decision of these kinds, of any tenant."""
        return min((self._first_ms[kind] for kind in kinds if kind in self._first_ms), default=None)

    def decisions(self, tenant_id: str, kind: str, name: str) -> list[Decision]:
        return [*self._decisions.get((tenant_id, kind, name), [])]

    def _register(self, append_ms: int, event: Control) -> None:
        self._names[event.tenant_id, event.kind].add(event.name)
        self._tenants[event.kind, event.name].add(event.tenant_id)
        self._first_ms[event.kind] = min(append_ms, self._first_ms.get(event.kind, append_ms))
        for listener in self._listeners:
            listener(append_ms, event)

    def names(self, tenant_id: str, kind: str) -> list[str]:
        return sorted(self._names.get((tenant_id, kind), ()))

    def tenants(self, kind: str, name: str) -> list[str]:
        return sorted(self._tenants.get((kind, name), ()))


def _is_revocation(event: Control) -> bool:
    return isinstance(event, ApiKey | TokenKey) and event.revoked


def _order_ms(event: Control) -> float:
    if _is_revocation(event):
        return math.inf
    return -math.inf if event.timestamp is None else event.timestamp


def quota(history: ControlHistory, tenant_id: str, name: str, append_ms: int) -> int | None:
    """Return a tenant's limit for records with this append time; None without a limit."""
    event = history.as_of(tenant_id, "quota", name, append_ms - DELAY_MS)
    return event.limit if isinstance(event, Quota) else None


def owner_mappings(history: ControlHistory, tenant_id: str, at_ms: int = EPOCH_MS_MAX) -> dict[str, str | None]:
    """Return the workspace of each mapped project owner of a tenant at a time; None for a revoked mapping."""
    return {event.name: event.workspace for event in history.in_force(OwnerMapping, "owner.mapping", tenant_id, at_ms)}


def categories(history: ControlHistory, tenant_id: str, at_ms: int = EPOCH_MS_MAX) -> list[Category]:
    """Return a tenant's categories at a time, by name, without removed ones."""
    return [event for event in history.in_force(Category, "category", tenant_id, at_ms) if not event.removed]
