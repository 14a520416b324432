"""Control events: what a tenant's operator decides (topic `control.events`, compacted, keyed `tenant/kind/name`)."""

from typing import Annotated, Any, Literal

from pydantic import Field

from recallflow.fields import Identifier, Model, Name, Timestamp


class Control(Model):
    """What every control event carries. A revocation is a value with its time, never a deletion."""

    tenant_id: Identifier
    name: Name
    timestamp: Timestamp | None = None
    by: Name | None = None
    why: str | None = None


class TenantSettings(Control):
    """Settings that override the deployment's for one tenant."""

    type: Literal["tenant.settings"]
    settings: dict[str, Any]


class Category(Control):
    """A memory category; `description` is what an LLM selects by."""

    type: Literal["category"]
    description: str
    removed: bool = False


class ApiKey(Control):
    """An API key by its salted hash; `end_users` is the set of users it may act for (null: any of the tenant)."""

    type: Literal["api_key"]
    salt: Name
    hash: Name
    projects: list[Name] | None = None
    environments: list[Identifier] | None = None
    end_users: list[Identifier] | None = None
    revoked: bool = False


class Rollout(Control):
    """The tenant's graph rollout mode."""

    type: Literal["graph.rollout"]
    mode: Literal["off", "shadow", "canary"]


class GateVerdict(Control):
    """The quality gate's verdict on graph expansion."""

    type: Literal["gate.verdict"]
    blocked: bool
    windows: dict[str, Any] = {}


class OwnerMapping(Control):
    """Routes a project owner (`name`) to a workspace."""

    type: Literal["owner.mapping"]
    workspace: Identifier | None


class Quota(Control):
    """A limit for the tenant."""

    type: Literal["quota"]
    limit: Annotated[int, Field(ge=0)] | None


ControlEvent = Annotated[
    TenantSettings | Category | ApiKey | Rollout | GateVerdict | OwnerMapping | Quota, Field(discriminator="type")
]
