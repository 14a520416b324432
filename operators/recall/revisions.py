"""What edges between memories say of a memory: that a newer one refines it (it is out of answers about now), or that
another one contradicts it (both stay, and each names the other)."""

import numpy as np

from recallflow.operators.recall.filters import Mask
from recallflow.operators.recall.moment import Moment
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import CONTRADICTS, NodeKey
from recallflow.state.index import OwnerIndex

EDGES_MOST = 64  # looked at per memory: its newest, and those to similar memories


def superseded(graph: OwnerGraph, index: OwnerIndex, moment: Moment) -> Mask:
    """(n,) in conversation order: which memories a newer one had refined by the moment. A refinement that had not
    happened yet, was not known yet or has expired refines nothing."""
    facts = index.conversation.facts
    refined = graph.superseded()
    if not refined or moment.history:
        return np.zeros(index.conversation.size, np.bool_)
    created_ms = {
        index.ids[slot]: int(at) for slot, at in zip(index.conversation.slots, facts["created_ms"], strict=True)
    }
    seqs = [
        seq
        for seq, refinements in refined.items()
        if any(
            one.by in created_ms
            and (moment.happened_by_ms is None or created_ms[one.by] <= moment.happened_by_ms)
            and (moment.known_by_ms is None or one.ingested_ms <= moment.known_by_ms)
            and (one.expires_ms is None or moment.now_ms < one.expires_ms)
            for one in refinements
        )
    ]
    mask: Mask = np.isin(facts["seq"], seqs)
    return mask


def conflicts(graph: OwnerGraph, memory_ids: list[str], moment: Moment) -> dict[str, list[str]]:
    """Memory id → the memories that contradict it, for those that any does."""
    if not graph.has_stated():
        return {}
    found = {memory_id: _contradicting(graph, memory_id, moment) for memory_id in memory_ids}
    return {memory_id: others for memory_id, others in found.items() if others}


def _contradicting(graph: OwnerGraph, memory_id: str, moment: Moment) -> list[str]:
    edges = graph.edges(NodeKey(memory_id, memory=True), EDGES_MOST)
    return sorted(edge.target.text for edge in edges if edge.type == CONTRADICTS and _holds(edge, moment))


def _holds(edge: Edge, moment: Moment) -> bool:
    return (
        not edge.archived
        and (edge.expires_ms is None or moment.now_ms < edge.expires_ms)
        and (moment.known_by_ms is None or edge.ingested_ms <= moment.known_by_ms)
    )
