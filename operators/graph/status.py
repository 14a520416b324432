"""Counts of an owner's graph, and the state of the tenant's rollout."""

from collections import Counter
from itertools import islice

from recallflow.fields import format_time
from recallflow.graphs import GateState, GraphFailure, GraphReport, RolloutState
from recallflow.operators.graph.gates import Watched, blocks
from recallflow.operators.graph.rollout import Expansions
from recallflow.state.graph import OwnerGraph

COUNTED = 5_000  # nodes, and as many edges; counting more would hold up the queries behind this one


def status(graph: OwnerGraph, expansions: Expansions, tenant_id: str, at_ms: int) -> GraphReport:
    """The report for `graph.status` at a time (epoch ms). Nodes are counted by kind, and edges by type, one of a
    symmetric type in both directions."""
    nodes = Counter(node.kind for node in islice(graph.nodes(), COUNTED))
    edges = Counter(edge.type for edge in islice(graph.all_edges(), COUNTED))
    watched = expansions.watched(tenant_id)
    return GraphReport(
        nodes=dict(sorted(nodes.items())),
        edges=dict(sorted(edges.items())),
        complete=max(nodes.total(), edges.total()) < COUNTED,
        rollout=_rollout(expansions, tenant_id, at_ms),
        gate=_gate(expansions, watched, tenant_id, at_ms),
        failures=[
            GraphFailure(at=format_time(failure.at_ms), query_id=failure.query_id, error=failure.error)
            for failure in watched.failures
        ],
    )


def _gate(expansions: Expansions, watched: Watched, tenant_id: str, at_ms: int) -> GateState:
    held = expansions.verdict_held(tenant_id, at_ms)
    return GateState(
        blocked=blocks(held),
        since=None if held is None else format_time(held.append_ms),
        by=None if held is None else held.event.by,
        why=None if held is None else held.event.why,
        windows=watched.figures,
        edge_types=watched.types,
    )


def _rollout(expansions: Expansions, tenant_id: str, at_ms: int) -> RolloutState:
    mode, decision = expansions.mode(tenant_id, at_ms)
    return RolloutState(
        mode=mode,
        enabled=expansions.enabled,
        since=None if decision is None else format_time(decision.append_ms),
        by=None if decision is None else decision.event.by,
        why=None if decision is None else decision.event.why,
    )
