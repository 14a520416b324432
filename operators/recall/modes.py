"""Ranking modes: from the semantic signal and the other factors to an order."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from recallflow.operators.recall.factors import (
    ABOUT_AS_OLD,
    LOG_ODDS_UNIT,
    RANGE_LOG_ODDS,
    boosts,
    hyperbolic,
    min_max,
    proximity,
    raw,
    recency,
    semantic,
)
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.queries import K_MAX, Mode
from recallflow.state.arrays import Column, Places

TIE_FLOOR = 0.02  # scores that deviate less, of a range of 1, are ordered by the tie-break chain
CANDIDATES = 4 * K_MAX  # that each way of finding them brings, so that no score depends on k
DECAYED_CONFIDENCE = 0.6
EPISODES = 3  # at least, and as many as it needs for k memories
CENTROID_WEIGHT = 0.25


def rank(scene: Scene) -> Ranking:
    """The answer's order in the scene's mode."""
    return MODES[scene.tuning.mode](scene)


def relevance(scene: Scene) -> Ranking:
    """By the semantic signal alone."""
    best = scene.best(CANDIDATES)
    factor, spread = semantic(scene, places := best[: scene.tuning.k], best)
    return Ranking(places, factor, {"semantic": factor}, {"semantic": 1.0}, unit=1 / spread)


def by_recency(scene: Scene) -> Ranking:
    """By a decay function of age; what was said last comes first."""
    scores = recency(scene.age_days(scene.allowed), scene.tuning.decay)
    # A step, or ages beyond a float's reach, make ties: the event time decides, then the order of arrival.
    created_ms, seq = scene.fact("created_ms", scene.allowed), scene.fact("seq", scene.allowed)
    order = np.lexsort((-seq, -created_ms, -scores))[: scene.tuning.k]
    return Ranking(scene.allowed[order], scores[order], {"recency": scores[order]}, {"recency": 1.0})


def hybrid(scene: Scene) -> Ranking:
    """Seven factors, weighted: meaning, and among memories that fit alike, how recent, important and trusted one is.
    Nearness to entities joins them where it is asked for, and then counts as much as meaning does."""
    best = scene.best(CANDIDATES)
    places = _joined(scene, best, _near(scene))
    meaning, spread = semantic(scene, places, best)
    others = raw(scene, places)
    factors = {"semantic": meaning} | {
        name: min_max(values, ABOUT_AS_OLD.get(name, 0.0)) for name, values in others.items()
    }
    if scene.tuning.wants_proximity:
        factors["proximity"] = proximity(scene, places)
    worth = {"semantic": 1.0, "proximity": LOG_ODDS_UNIT / spread}
    scale = RANGE_LOG_ODDS / spread
    weights = {
        name: weight * worth.get(name, scale) for name, weight in scene.tuning.weights.items() if name in factors
    }
    return _weighed(scene, places, factors, weights, boosts(scene, places), spread)


def balanced(scene: Scene) -> Ranking:
    """Recency, meaning and nearness to entities, each for what it is worth by itself: the freshest and the nearest
    memories are looked at beside those that fit best."""
    best = scene.best(CANDIDATES)
    by_age = np.argsort(-scene.fact("created_ms", scene.allowed), kind="stable")
    places = _joined(scene, best, scene.allowed[by_age[: len(best)]], _near(scene))
    meaning, spread = semantic(scene, places, best)
    factors = {
        "recency": recency(scene.age_days(places), scene.tuning.decay),
        "semantic": meaning,
        "proximity": proximity(scene, places),
    }
    return _weighed(scene, places, factors, dict(scene.tuning.weights), boosts(scene, places), spread)


def entity_focused(scene: Scene) -> Ranking:
    """The memories nearest to the entities, and among those equally near the ones that fit best."""
    best = scene.best(CANDIDATES)
    places = _joined(scene, best, _near(scene))
    meaning, spread = semantic(scene, places, best)
    factors = {"proximity": proximity(scene, places), "semantic": meaning}
    return _weighed(scene, places, factors, dict(scene.tuning.weights), {}, spread)


def decayed(scene: Scene) -> Ranking:
    """confidence · 1/(1 + age/decay_days) · similarity, of memories trusted enough. The similarity is a memory's
    relevance: what has nothing to do with the question has next to none, whatever else is remembered."""
    given = scene.query.filters.min_confidence
    least = DECAYED_CONFIDENCE if given is None else given
    places = scene.allowed[scene.fact("confidence", scene.allowed) >= least]
    signal = scene.semantic[places]
    factors: dict[str, Column] = {
        "confidence": scene.fact("confidence", places),
        "decay": hyperbolic(scene.age_days(places), scene.tuning.decay.decay_days),
        "similarity": scene.relevance(places),
    }
    scores = np.prod([*factors.values()], axis=0)
    cut = np.lexsort((places, -signal, -scores))[: scene.tuning.k]
    return Ranking(places[cut], scores[cut], {name: values[cut] for name, values in factors.items()})


def episode(scene: Scene) -> Ranking:
    """All memories of the best episodes, by how often they mention what the question is about, after Zep's reranker by
    mentions; among equals in the order they were said."""
    places = _members(scene)
    mentions = _mentions(scene, places)
    order = np.lexsort((places, -mentions))[: scene.tuning.k]
    most = float(mentions.max(initial=0.0)) or 1.0
    return Ranking(places[order], mentions[order] / most, {"mentions": mentions[order]}, {"mentions": 1 / most})


MODES: Mapping[Mode, Callable[[Scene], Ranking]] = MappingProxyType(
    {
        "recency": by_recency,
        "relevance": relevance,
        "entity_focused": entity_focused,
        "balanced": balanced,
        "episode": episode,
        "hybrid": hybrid,
        "decayed": decayed,
    }
)


# ---------------------------------------------------------------------- candidates


def _near(scene: Scene) -> Places:
    """The memories nearest to the entities asked for, where they are asked for."""
    if scene.proximity is None or not scene.tuning.wants_proximity:
        return scene.allowed[:0]
    near = scene.allowed[scene.proximity[scene.allowed] > 0]
    return near[np.lexsort((near, -scene.semantic[near], -scene.proximity[near]))][:CANDIDATES]


def _joined(scene: Scene, *found: Places) -> Places:
    """All candidates found, and the allowed ones that edges lead to: once each, in conversation order."""
    joined = np.zeros(scene.index.conversation.size, np.bool_)
    if scene.relationship:
        linked = np.fromiter(scene.relationship, np.int64, len(scene.relationship))
        joined[linked[np.isin(linked, scene.allowed)]] = True
    for places in found:
        joined[places] = True
    return joined.nonzero()[0]


def _members(scene: Scene) -> Places:
    """The allowed members of the best episodes, in conversation order.

    Episodes come by similarity: log Σ exp(signal) over their members, the log-odds that any of them is evidence, plus a
    quarter of the z-score of the cosine between question and centroid. Centroids alone find too little: on LoCoMo (hash
    embedder) the best three episodes hold some evidence for .49 of the questions, by their members for .90.
    """
    segment = scene.index.conversation.segment[scene.allowed]
    present, of, sizes = np.unique(segment, return_inverse=True, return_counts=True)
    odds = np.full(len(present), -np.inf)
    np.logaddexp.at(odds, of, scene.semantic[scene.allowed])
    if scene.vector is not None:
        cosines = scene.index.clusters.centroids(present).astype(np.float64) @ scene.vector
        odds += CENTROID_WEIGHT * (cosines - cosines.mean()) / (cosines.std() + 1e-6)
    order = np.argsort(-odds, kind="stable")
    enough = np.searchsorted(np.cumsum(sizes[order]), scene.tuning.k) + 1
    return scene.allowed[np.isin(of, order[: max(EPISODES, int(enough))])]


# ---------------------------------------------------------------------- scores


def _mentions(scene: Scene, places: Places) -> Column:
    """Σ rarity · times mentioned, over the names and content words of the question; rarity is ln(1 + memories /
    memories that mention it). In a chat between two, each one's name stands at half of all messages: it says next to
    nothing, and what the question is about says a lot."""
    conversation = scene.index.conversation
    standing = [scene.index.standing[stem] for stem in dict.fromkeys(scene.question.stems)]
    known, counts = [found.holders for found in standing], np.zeros((len(standing), len(places)))
    for row, found in enumerate(standing):  # one at a time: together they would be as many as memories times words
        counts[row] = np.bincount(found.places, minlength=conversation.size)[places]
    rarity = np.log1p(conversation.size / np.maximum(known, 1))
    mentions: Column = rarity @ counts
    return mentions


def _weighed(
    scene: Scene,
    places: Places,
    factors: dict[str, Column],
    weights: dict[str, float],
    extra: dict[str, Column],
    spread: float,
) -> Ranking:
    """Best first by Σ weight · factor + Σ boosts. Where the sums before the boosts hardly differ they count as equal:
    then by boosts, semantic, importance, recency, score and id, all descending. `spread`: the signal's, to which the
    semantic factor is stretched."""
    values = np.array([*factors.values()])
    scores: Column = np.array([weights[name] for name in factors]) @ values
    boost: Column = sum(extra.values(), np.zeros(len(places)))
    signal, total = scene.semantic[places], scores + boost
    apart = scores - scores.sum() / max(len(scores), 1)
    tied = len(scores) > 1 and math.sqrt(apart @ apart / len(scores)) <= TIE_FLOOR * sum(weights.values())
    if tied:
        fresh, important = recency(scene.age_days(places), scene.tuning.decay), scene.fact("importance", places)
        order = np.lexsort((-_by_id(scene, places), -scores, -fresh, -important, -signal, -boost))
    else:
        order = np.lexsort((places, -signal, -total))
    cut = order[: scene.tuning.k]
    return Ranking(
        places[cut],
        total[cut],
        {name: column[cut] for name, column in factors.items()},
        weights,
        {name: column[cut] for name, column in extra.items()},
        tied,
        dict(zip(factors, np.partition(values, len(places) // 2)[:, len(places) // 2].tolist(), strict=True)),
        weights["semantic"] / spread,
    )


def _by_id(scene: Scene, places: Places) -> Places:
    """Each place's rank by memory id."""
    ids = [scene.index.ids[slot] for slot in scene.index.conversation.slots[places].tolist()]
    ranks = np.empty(len(ids), np.int64)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return ranks
