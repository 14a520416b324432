"""Questions that use the graph, and rollouts that let it add memories."""

from typing import Any

from recallflow.control import ControlHistory, Rollout
from tests.unit.operators.harness import make_event

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def rolled_out(mode: str = "canary", *tenants: str) -> ControlHistory:
    """Return decisions that set the rollout mode of tenants, of `acme` where none is given."""
    history = ControlHistory()
    for tenant in tenants or ("acme",):
        rollout = {"type": "graph.rollout", "tenant_id": tenant, "name": "default", "mode": mode}
        history.add(0, Rollout.model_validate(rollout))
    return history


def ask(query: str, **fields: Any) -> dict[str, Any]:
    """Return a question with expansion, about a day after the memories."""
    return make_event("recall", DAY_MS, **{"query": query, "k": 3, "strategy": "hybrid_graph"} | fields)
