"""Control events: decisions of a tenant's operators (topic `control.events`, keyed `tenant/kind/name`). The topic
keeps all of them, because records are judged by the decisions in force at their time."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from recallflow import limits
from recallflow.fields import AS_WHOLE, JSON_INT_MAX, AnyJson, Identifier, Model, Name, StrictPart, Timestamp, check_all
from recallflow.queries import WEIGHTS, Decay, Weight, unknown_factors

RECALL_SETTINGS = "recall"
DEFAULT = "default"  # the name of a rollout and of a verdict that hold for a whole tenant
Text = Annotated[str, StringConstraints(max_length=limits.SUMMARY_CHARACTERS)]
RolloutMode = Literal["off", "shadow", "canary"]
Listed = Field(max_length=limits.USERS_MAX)
ALL_TENANTS = "*"  # the tenant of keys that act for any: the deployment's own
SETTLED_MS = 1_000  # what decides whether a record counts holds from so long after its append time


class Control(Model):
    """Fields of every control event. A revocation is a value with its time, never a deletion."""

    tenant_id: Identifier
    name: Name
    timestamp: Timestamp | None = None
    by: Name | None = None
    why: Text | None = None

    @property
    def record_key(self) -> bytes:
        """Return the key of all decisions of one kind and name, which keeps them in order."""
        return f"{self.tenant_id}/{self.type}/{self.name}".encode()  # type: ignore[attr-defined]


class RecallSettings(StrictPart):
    """A tenant's ranking settings: weights by mode and factor, and the decay of recency by age. Values of a query
    take precedence, then these, then the defaults."""

    weights: dict[Literal["hybrid", "balanced", "entity_focused"], dict[str, Weight]] = {}
    decay: Decay = Decay()

    @field_validator("weights", mode="wrap")
    @classmethod
    def _known_factors(cls, given: object, check: ValidatorFunctionWrapHandler) -> Any:
        by_mode = given if isinstance(given, dict) else {}
        unknown = [one for mode in WEIGHTS for one in unknown_factors(mode, by_mode.get(mode), mode)]
        return check_all(given, check, unknown)


class TenantSettings(Control):
    """Settings that override the deployment's for one tenant. The settings named `recall` are `RecallSettings`."""

    type: Literal["tenant.settings"]
    settings: AnyJson

    @field_validator("settings")
    @classmethod
    def _valid(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("name") == RECALL_SETTINGS:
            RecallSettings.model_validate(settings)
        return settings


class Category(Control):
    """A memory category. `description` is the criterion for an LLM."""

    type: Literal["category"]
    description: Text
    removed: bool = False


class ApiKey(Control):
    """An API key, called `name`, with its salted hash. `projects`, `environments` and `end_users` limit its use;
    null means all of the tenant's. The tenant may be `*`: then the key is valid for all tenants. A revoked key stays
    revoked."""

    type: Literal["api_key"]
    salt: Name
    hash: Name
    projects: Annotated[list[Name], Listed] | None = None
    environments: Annotated[list[Identifier], Listed] | None = None
    end_users: Annotated[list[Identifier], Listed] | None = None
    revoked: bool = False

    def revocation(self) -> dict[str, Any]:
        """Return the fields of the decision that revokes this key."""
        kept = self.model_dump(exclude={"type", "tenant_id", "timestamp", "by", "why"}, exclude_none=True)
        return kept | {"revoked": True}


class TokenKey(Control):
    """A key for JWT signatures, called by its id (`kid`), of the tenant `*`. `jwk` is the public key (RFC 7517); it
    is null for a secret, which is identified by its `fingerprint`. A revoked key stays revoked."""

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
    """The quality gate's verdict on graph expansion."""

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
    limit: Annotated[int, Field(ge=0, le=JSON_INT_MAX), AS_WHOLE] | None = None


ControlEvent = Annotated[
    TenantSettings | Category | ApiKey | TokenKey | Rollout | GateVerdict | OwnerMapping | Quota,
    Field(discriminator="type"),
]
