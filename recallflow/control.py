"""Control events: what a tenant's operator decides (topic `control.events`, keyed `tenant/kind/name`). The topic
keeps every one: records are judged by what held when they came."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from recallflow import limits
from recallflow.fields import AS_WHOLE, JSON_INT_MAX, AnyJson, Identifier, Model, Name, Timestamp
from recallflow.parts import Part, check_all
from recallflow.queries import WEIGHTS, Decay, Weight, unknown_factors

RECALL_SETTINGS = "recall"
DEFAULT = "default"  # the name of a rollout and of a verdict that hold for a whole tenant
Text = Annotated[str, StringConstraints(max_length=limits.SUMMARY_CHARACTERS)]
RolloutMode = Literal["off", "shadow", "canary"]
Listed = Field(max_length=limits.USERS_MAX)
ALL_TENANTS = "*"  # the tenant of keys that act for any: the deployment's own
SETTLED_MS = 1_000  # what decides whether a record counts holds from so long after its append time


class Control(Model):
    """What every control event carries. A revocation is a value with its time, never a deletion."""

    tenant_id: Identifier
    name: Name
    timestamp: Timestamp | None = None
    by: Name | None = None
    why: Text | None = None

    @property
    def record_key(self) -> bytes:
        """What all decisions of one kind and name have in common, so that they come in their order."""
        return f"{self.tenant_id}/{self.type}/{self.name}".encode()  # type: ignore[attr-defined]


class RecallSettings(Part):
    """What a tenant sets of its rankings: weights by mode and factor, and how age lowers recency. A query's own come
    first, and what neither gives is the default."""

    weights: dict[Literal["hybrid", "balanced", "entity_focused"], dict[str, Weight]] = {}
    decay: Decay = Decay()

    @field_validator("weights", mode="wrap")
    @classmethod
    def _known_factors(cls, given: object, check: ValidatorFunctionWrapHandler) -> Any:
        by_mode = given if isinstance(given, dict) else {}
        unknown = [one for mode in WEIGHTS for one in unknown_factors(mode, by_mode.get(mode), mode)]
        return check_all(given, check, unknown)


class TenantSettings(Control):
    """Settings that override the deployment's for one tenant. Those of the name `recall` are `RecallSettings`."""

    type: Literal["tenant.settings"]
    settings: AnyJson

    @field_validator("settings")
    @classmethod
    def _valid(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("name") == RECALL_SETTINGS:
            RecallSettings.model_validate(settings)
        return settings


class Category(Control):
    """A memory category; `description` is what an LLM selects by."""

    type: Literal["category"]
    description: Text
    removed: bool = False


class ApiKey(Control):
    """An API key, called `name`, by its salted hash. What it may be used for: `projects`, `environments` and the users
    it may act for (`end_users`); null is any of the tenant's. The tenant may be `*`: then it is for any tenant. A key
    that was revoked stays so."""

    type: Literal["api_key"]
    salt: Name
    hash: Name
    projects: Annotated[list[Name], Listed] | None = None
    environments: Annotated[list[Identifier], Listed] | None = None
    end_users: Annotated[list[Identifier], Listed] | None = None
    revoked: bool = False

    def revocation(self) -> dict[str, Any]:
        """Return the fields of the decision that takes this key back."""
        kept = self.model_dump(exclude={"type", "tenant_id", "timestamp", "by", "why"}, exclude_none=True)
        return kept | {"revoked": True}


class TokenKey(Control):
    """A key that JWTs may be signed with, called by its id (`kid`), of the tenant `*`. `jwk`: the public key (RFC
    7517); null for a secret, which is told by `fingerprint` alone. A key that was revoked stays so."""

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
    """Routes a project owner (`name`) to a workspace; null revokes that."""

    type: Literal["owner.mapping"]
    workspace: Identifier | None = None


class Quota(Control):
    """A limit for the tenant, by its `name` (docs/how-to/quotas.md); null is none."""

    type: Literal["quota"]
    limit: Annotated[int, Field(ge=0, le=JSON_INT_MAX), AS_WHOLE] | None = None


ControlEvent = Annotated[
    TenantSettings | Category | ApiKey | TokenKey | Rollout | GateVerdict | OwnerMapping | Quota,
    Field(discriminator="type"),
]
