"""/graph/rollout: whether a tenant's answers may have what the graph adds."""

import time
from typing import cast

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.asked import Described
from recallflow.connectors.http.bodies import credentials_of, with_fields
from recallflow.connectors.http.deciding import Rollouts
from recallflow.connectors.http.door import ACCEPTED, Door
from recallflow.connectors.http.errors import JSON, Problem
from recallflow.connectors.http.openapi import json_body, operation, reference
from recallflow.connectors.http.parameters import Parameters
from recallflow.control import DEFAULT, Rollout
from recallflow.parsing import parse_control

_TENANT = Parameters(Rollout, only=("tenant_id",))
_DECISION = json_body(
    reference("RolloutDecision"),
    shadow={"tenant_id": "acme", "mode": "shadow", "by": "kim", "why": "measure it for a week"},
)


def routes(door: Door, rollouts: Rollouts) -> APIRouter:
    """The routes, for what was decided."""
    router = APIRouter(route_class=Described)
    shown = operation("What was decided of a tenant's graph", parameters=_TENANT, answer="RolloutShown", routed=False)

    @router.get("/graph/rollout", openapi_extra=shown)
    async def state(request: Request) -> Response:
        fields = _TENANT.fields(request)
        if "tenant_id" not in fields:
            raise Problem("invalid_event", "is missing", "tenant_id")
        found = rollouts.state(fields["tenant_id"], credentials_of(request))
        return Response(found.model_dump_json(), media_type=JSON)

    decided = operation("DecisionSender it anew", body=_DECISION, status=202, answer="RolloutDecision", routed=False)

    @router.post("/graph/rollout", status_code=202, openapi_extra=decided)
    async def decide(request: Request) -> Response:
        now_ms = time.time_ns() // 1_000_000
        fields = {"type": "graph.rollout", "name": DEFAULT, "timestamp": now_ms}
        rollout = cast(Rollout, parse_control(with_fields(await door.body(request), fields)))
        for name in ("by", "why"):
            if not getattr(rollout, name):
                raise Problem("invalid_event", "is missing: decisions are kept, with who made them and why", name)
        await rollouts.decide(rollout, credentials_of(request), door.limits.timeout_s)
        content = {name: getattr(rollout, name) for name in ("tenant_id", "mode", "by", "why")}
        return Response(orjson.dumps(content), ACCEPTED, media_type=JSON)

    return router
