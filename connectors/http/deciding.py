"""What operators decide about a tenant, for who asks for it over HTTP."""

from typing import Protocol

from recallflow.control import Rollout, RolloutMode
from recallflow.credentials import Headers
from recallflow.fields import Model


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
