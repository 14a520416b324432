"""Ranks what may be in the answer, with the graph's part in scores, and judges how relevant it is (steps 6, 7, 9)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress

import numpy as np

from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.recall import people, rerank
from recallflow.operators.recall.columns import known
from recallflow.operators.recall.deadline import Step
from recallflow.operators.recall.modes import CANDIDATES, rank
from recallflow.operators.recall.relevance import NEAREST, Judge, Judged
from recallflow.operators.recall.relevance_weights import Basis
from recallflow.operators.recall.scene import NO_SEQS, Ranking, Scene
from recallflow.operators.recall.stages import Asked, Candidates, Ranked, Understood
from recallflow.queries import HOPS_MIN
from recallflow.state.arrays import Column


def rank_candidates(asked: Asked, understood: Understood, candidates: Candidates, at_least: int = 0) -> Ranked:
    """Ranks `at_least` so many; the query's k, where a reranker has not ordered them anew."""
    query, moment, index, hot = asked.query, asked.moment, asked.index, asked.hot
    permitted, columns, tuning = candidates.permitted, candidates.signal.columns, understood.tuning
    scores = {} if asked.said.scored is None else asked.said.scored.scores
    # An episode's members are no more where some of them are left out.
    judged_first = query.min_relevance is not None and tuning.mode != "episode"
    most = max(at_least, rerank.BEST if scores else 0, CANDIDATES if judged_first else 0)
    semantic = columns.score() if columns.values else np.zeros(index.conversation.size)
    graph = QueryGraph(
        graph=asked.graph,
        index=index,
        semantic=semantic,
        permitted=permitted,
        now_ms=moment.now_ms,
        expansions=asked.engine.expansions,
        request=asked.request,
    )
    graph.warn_of_unknown(query.entity_urns)
    asked.laps.lap("score")
    session_id = query.session_id if moment.is_now else None
    judge = _judge(asked, understood, candidates)
    scene = Scene(
        index=index,
        question=understood.question,
        query=query,
        now_ms=moment.now_ms,
        semantic=semantic,
        allowed=permitted,
        tuning=replace(tuning, k=most) if most > tuning.k else tuning,
        relevance=judge.at,
        vector=candidates.signal.vector,
        proximity=_proximity(asked, graph, understood),
        relationship=_relationship(asked, graph, understood),
        usage=hot.usage() if moment.is_now else None,
        returned=NO_SEQS if session_id is None else hot.returned(session_id),
    )
    ranking = rank(scene) if len(permitted) else Ranking(permitted, np.zeros(0))
    before: list[int] = []
    if scores:
        places = ranking.places
        slots, versions = index.conversation.slots[places].tolist(), scene.fact("version", places).tolist()
        ranked = [rerank.key(index.ids[slot], version) for slot, version in zip(slots, versions, strict=True)]
        ranking, before = rerank.reordered(ranking, ranked, scores, scene.tuning.k)
    asked.laps.lap("rank")
    judged = _judged(judge, scene, ranking)
    if (least := query.min_relevance) is not None:
        enough = judged.relevance >= least
        ranking, judged = ranking.only(enough), judged.only(enough)
        before = [*compress(before, enough.tolist())]
    cut = slice(max(at_least, tuning.most))
    ranking, judged, before = ranking.only(cut), judged.only(cut), before[cut]
    asked.laps.lap("judge")
    return Ranked(scene, ranking, graph, before, judged)


def _judge(asked: Asked, understood: Understood, candidates: Candidates) -> Judge:
    """Who tells how relevant memories are. Without the question's vector, words alone were compared, whatever the
    model; in the mode `recency`, nothing was."""
    found, question = candidates.signal, understood.question
    basis: Basis = asked.engine.embedder.kind if found.vector is not None else "words"
    columns = found.columns if found.columns.values else known(asked.index, question)
    return Judge.of(asked.index, question, columns, basis, len(candidates.permitted))


def _judged(judge: Judge, scene: Scene, ranking: Ranking) -> Judged:
    """How relevant the ranked memories are, and whether those permitted hold an answer."""
    if scene.tuning.mode == "recency":
        return Judged(judge, None, judge.at(ranking.places))
    if not len(scene.allowed):
        return Judged(judge, 0.0, np.zeros(0))
    places = scene.best(NEAREST)
    figures = judge.figures(np.concatenate([places, ranking.places]))
    nearest, ranked = figures.only(slice(len(places))), figures.only(slice(len(places), None))
    answerable = judge.answerable(nearest)
    return Judged(judge, answerable, judge.relevance(ranked), judge.hopeless(nearest, answerable))


def _proximity(asked: Asked, graph: QueryGraph, understood: Understood) -> Column | None:
    """How near memories are to the entities asked for or named, where the ranking asks and the graph can tell; none is
    near any where there is no time to look."""
    if not understood.tuning.wants_proximity:
        return None
    if "proximity" in understood.dropped:
        near: Column | None = np.zeros(asked.index.conversation.size)
    else:
        near = graph.proximity(asked.query.entity_urns, understood.question.text)
        _took(asked, "proximity")
    return None if near is None else people.nearness(graph.index, understood.question.named, near)


def _relationship(asked: Asked, graph: QueryGraph, understood: Understood) -> Mapping[int, float]:
    """What edges between candidates add to scores, by place, where the ranking asks and there is time."""
    hops = asked.query.traversal_depth
    if hops <= HOPS_MIN or "boosts" in understood.dropped or not understood.tuning.wants_neighbours:
        return {}
    found = graph.boosts(hops)
    _took(asked, "boosts")
    return found


def _took(asked: Asked, step: Step) -> None:
    """Notes what an optional step of the graph took."""
    asked.engine.shared.costs.add(step, asked.laps.lap(step))
