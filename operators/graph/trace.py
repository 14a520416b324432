"""One query's expansion, every step of it."""

from recallflow.graphs import Trace, TracedMemory, TracedStep
from recallflow.operators.graph.gate import Places, Signal
from recallflow.operators.graph.neighbourhood import Place
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import Fallback
from recallflow.operators.graph.traverse import SHARED_NODE, Step

STEPS = 1_000


def trace(graph: QueryGraph, ranked: Places, scores: Signal, hops: int, fallback: Fallback | None) -> Trace:
    """What the graph makes of the ranked memories: places and their scores, best first."""
    steps: list[Step] = []
    expansion = graph.expand(ranked, hops, watch=steps.append)
    score = dict(zip(graph.ids(ranked), scores, strict=True))
    return Trace(
        seeds=[TracedMemory(id=seed.id, score=round(float(score[seed.id]), 6)) for seed in graph.seeds(ranked)],
        steps=[_step(graph, step) for step in steps[:STEPS]],
        left_out=max(0, len(steps) - STEPS),
        expanded=[TracedMemory(id=item.id, score=round(item.score, 6), why=item.why) for item in expansion.items],
        caps=expansion.caps.named(),
        fallback=fallback,
    )


def _step(graph: QueryGraph, step: Step) -> TracedStep:
    edge = step.edge
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


def _name(graph: QueryGraph, place: Place) -> str:
    return graph.memory_id(place) if isinstance(place, int) else str(place)
