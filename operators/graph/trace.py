"""Every step of one query's expansion."""

from dataclasses import asdict

from recallflow.graphs import Trace, TracedMemory, TracedStep
from recallflow.operators.graph.neighbourhood import Vertex
from recallflow.operators.graph.paths import SHARED_NODE, Step
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import Fallback
from recallflow.state.arrays import Column, Places
from recallflow.state.graph_codec import NodeKey
from recallflow.stepped import spend

STEPS = 1_000


def trace(graph: QueryGraph, ranked: Places, scores: Column, hops: int, fallback: Fallback | None) -> Trace:
    """What the graph adds behind the ranked memories, given as places and scores, best first."""
    steps: list[Step] = []
    expansion, _ = graph.measured(ranked, hops, steps)
    score = dict(zip(graph.index.conversation.facts["seq"][ranked], scores, strict=True))
    return Trace(
        seeds=[TracedMemory(id=id_, score=round(float(score[seq]), 6)) for seq, id_ in graph.seeds(ranked).items()],
        steps=[_traced(graph, step) for step in steps[:STEPS]],
        left_out=max(0, len(steps) - STEPS),
        expanded=[TracedMemory(id=item.id, score=round(item.score, 6), why=item.why) for item in expansion.items],
        caps=asdict(expansion.caps),
        fallback=fallback,
    )


def _traced(graph: QueryGraph, step: Step) -> TracedStep:
    edge = step.edge
    spend(1)
    return TracedStep(
        hop=step.hops,
        source=_name(graph, step.source),
        target=_name(graph, step.target),
        type=edge.type if edge else SHARED_NODE,
        weight=edge.weight if edge else 1.0,
        confidence=edge.confidence if edge else 1.0,
        score=None if step.score is None else round(step.score, 6),
        outcome=step.outcome,
    )


def _name(graph: QueryGraph, vertex: Vertex) -> str:
    """The key of a memory, or of another node. The index knows a memory whose graph could not be written, the graph one
    that is not in an index of an earlier moment."""
    if not isinstance(vertex, int):
        return str(vertex)
    if (slot := graph.index.slot(vertex)) is not None:
        return str(NodeKey(graph.index.ids[slot], memory=True))
    return str(graph.graph.links(vertex)[0][0])
