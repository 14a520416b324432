"""Ranking modes: from the semantic signal and the other factors to an order."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from recallflow.operators.recall.boosts import boosts
from recallflow.operators.recall.decay import recency
from recallflow.operators.recall.episode_mode import episode
from recallflow.operators.recall.factors import LOG_ODDS_UNIT, hyperbolic, min_max, proximity, raw, semantic
from recallflow.operators.recall.scene import Places, Ranking, Scene, Values
from recallflow.queries import Mode

TIE_FLOOR = 0.02  # scores that deviate less, of a range of 1, are ordered by the tie-break chain
CANDIDATES_PER_K = 4
CANDIDATES_MIN = 40
DECAYED_CONFIDENCE = 0.6


def rank(scene: Scene) -> Ranking:
    """The answer's order in the scene's mode."""
    return MODES[scene.tuning.mode](scene)


def relevance(scene: Scene) -> Ranking:
    """By the semantic signal alone."""
    places = scene.best(scene.tuning.k)
    factor = min_max(scene.semantic[places])
    return Ranking(places, factor, {"semantic": factor}, {"semantic": 1.0})


def by_recency(scene: Scene) -> Ranking:
    """By a decay function of age; what was said last comes first."""
    scores = recency(scene.ages(scene.allowed), scene.tuning.decay)
    # A step, or ages beyond a float's reach, leave ties: the event time decides, then the order of arrival.
    created_ms, seq = scene.fact("created_ms", scene.allowed), scene.fact("seq", scene.allowed)
    order = np.lexsort((-seq, -created_ms, -scores))[: scene.tuning.k]
    return Ranking(scene.allowed[order], scores[order], {"recency": scores[order]}, {"recency": 1.0})


def hybrid(scene: Scene) -> Ranking:
    """Seven factors, weighted: what is meant, tempered by how recent, important and trusted a memory is. Nearness to
    entities joins them where it is asked for."""
    best = _candidates(scene)
    places = _joined(scene, best, _near(scene))
    meant, spread = semantic(scene, places, best)
    others = raw(scene, places)
    factors = {"semantic": meant} | dict(zip(others, min_max(np.array([*others.values()])), strict=True))
    if scene.tuning.wants_proximity:
        factors["proximity"] = proximity(scene, places)
    scale = LOG_ODDS_UNIT / spread
    weights = {n: w if n == "semantic" else w * scale for n, w in scene.tuning.weights.items() if n in factors}
    return _weighed(scene, places, factors, weights, boosts(scene, places))


def balanced(scene: Scene) -> Ranking:
    """Recency, meaning and nearness to entities, each for what it is worth by itself: the freshest and the nearest
    memories are looked at beside those that fit best."""
    best = _candidates(scene)
    by_age = np.argsort(-scene.fact("created_ms", scene.allowed), kind="stable")
    places = _joined(scene, best, scene.allowed[by_age[: len(best)]], _near(scene))
    factors = {
        "recency": recency(scene.ages(places), scene.tuning.decay),
        "semantic": semantic(scene, places, best)[0],
        "proximity": proximity(scene, places),
    }
    return _weighed(scene, places, factors, dict(scene.tuning.weights), boosts(scene, places))


def entity_focused(scene: Scene) -> Ranking:
    """The memories nearest to the entities, and among those equally near the ones that fit best."""
    best = _candidates(scene)
    places = _joined(scene, best, _near(scene))
    factors = {"proximity": proximity(scene, places), "semantic": semantic(scene, places, best)[0]}
    return _weighed(scene, places, factors, dict(scene.tuning.weights), {})


def decayed(scene: Scene) -> Ranking:
    """confidence · 1/(1 + age/decay_days) · similarity, of memories trusted enough. The signal is log-odds, so the
    similarity is exp(signal - best signal): a memory's odds of being evidence beside the best one's."""
    given = scene.query.filters.min_confidence
    least = DECAYED_CONFIDENCE if given is None else given
    places = scene.allowed[scene.fact("confidence", scene.allowed) >= least]
    signal = scene.semantic[places]
    factors: dict[str, Values] = {
        "confidence": scene.fact("confidence", places),
        "decay": hyperbolic(scene.ages(places), scene.tuning.decay.decay_days),
        "similarity": np.exp(signal - signal.max(initial=-np.inf)),
    }
    scores = np.prod([*factors.values()], axis=0)
    cut = np.lexsort((places, -signal, -scores))[: scene.tuning.k]
    return Ranking(places[cut], scores[cut], {name: values[cut] for name, values in factors.items()})


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


# ---------------------------------------------------------------------- parts


def _candidates(scene: Scene) -> Places:
    """The memories that fit best, best first."""
    return scene.best(_channel(scene))


def _channel(scene: Scene) -> int:
    """How many candidates each way of finding them brings."""
    return max(CANDIDATES_PER_K * scene.tuning.k, CANDIDATES_MIN)


def _near(scene: Scene) -> Places:
    """The memories nearest to the entities asked for, where they are asked for."""
    if scene.proximity is None or not scene.tuning.wants_proximity:
        return scene.allowed[:0]
    near = scene.allowed[scene.proximity[scene.allowed] > 0]
    return near[np.lexsort((near, -scene.semantic[near], -scene.proximity[near]))][: _channel(scene)]


def _joined(scene: Scene, *found: Places) -> Places:
    """All candidates found, with the allowed ones that edges lead to: once each, in conversation order."""
    is_in, may = np.zeros((2, scene.index.conversation.size), np.bool_)
    may[scene.allowed] = True
    is_in[np.fromiter(scene.relationship, np.int64, len(scene.relationship))] = True
    for places in found:
        is_in[places] = True
    return np.flatnonzero(is_in & may)


def _weighed(
    scene: Scene, places: Places, factors: dict[str, Values], weights: dict[str, float], extra: dict[str, Values]
) -> Ranking:
    """Best first by Σ weight · factor + Σ boosts. Where the sums before the boosts hardly differ they count as equal:
    then by boosts, semantic, importance, recency and id, all descending."""
    scores: Values = np.array([weights[name] for name in factors]) @ np.array([*factors.values()])
    boost: Values = sum(extra.values(), np.zeros(len(places)))
    signal = scene.semantic[places]
    apart = scores - scores.sum() / max(len(scores), 1)
    tied = len(scores) > 1 and math.sqrt(apart @ apart / len(scores)) < TIE_FLOOR * sum(weights.values())
    if tied:
        fresh, important = recency(scene.ages(places), scene.tuning.decay), scene.fact("importance", places)
        order = np.lexsort((-_by_id(scene, places), -fresh, -important, -signal, -boost))
    else:
        order = np.lexsort((places, -signal, -(scores + boost)))
    cut = order[: scene.tuning.k]
    return Ranking(
        places[cut],
        (scores + boost)[cut],
        {name: values[cut] for name, values in factors.items()},
        weights,
        {name: values[cut] for name, values in extra.items()},
        tied,
    )


def _by_id(scene: Scene, places: Places) -> Places:
    """Each place's rank by memory id."""
    slots = scene.index.conversation.slots[places]
    ranks = np.empty(len(slots), np.int64)
    ranks[sorted(range(len(slots)), key=lambda at: scene.index.ids[slots[at]])] = np.arange(len(slots))
    return ranks
