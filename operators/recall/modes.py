"""Ranking modes: combine the semantic signal with other factors into an order."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from recallflow.operators.recall.episode_mode import episode
from recallflow.operators.recall.factors import (
    boosts,
    hyperbolic,
    proximity,
    raw,
    recency,
    semantic,
)
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.queries import K_MAX, Mode
from recallflow.state.arrays import Column, Places

TIE_FLOOR = 0.02  # the tie-break chain orders scores with a smaller deviation, for a range of 1
CANDIDATES = 4 * K_MAX  # per source of candidates, so that no score depends on k
DECAYED_CONFIDENCE = 0.6


def rank(scene: Scene) -> Ranking:
    """Rank the memories in the scene's mode."""
    return MODES[scene.tuning.mode](scene)


def relevance(scene: Scene) -> Ranking:
    """Rank by the semantic signal alone."""
    best = scene.best(CANDIDATES)
    factor, spread = semantic(scene, places := best[: scene.tuning.k], best)
    return Ranking(places, factor, {"semantic": factor}, {"semantic": 1.0}, unit=1 / spread)


def by_recency(scene: Scene) -> Ranking:
    """Rank by a decay function of age, the newest first."""
    scores = recency(scene.age_days(scene.allowed), scene.tuning.decay)
    # A step function, or ages beyond float precision, produce ties. Event time orders them, then arrival.
    created_ms, seq = scene.fact("created_ms", scene.allowed), scene.fact("seq", scene.allowed)
    order = np.lexsort((-seq, -created_ms, -scores))[: scene.tuning.k]
    return Ranking(scene.allowed[order], scores[order], {"recency": scores[order]}, {"recency": 1.0})


def hybrid(scene: Scene) -> Ranking:
    """Rank by the log-odds of the signal, plus weight · value of six other factors and of proximity if asked for.

    Scores are divided by the log-odds that the semantic factor spans, as that factor is.
    """
    best = scene.best(CANDIDATES)
    places = _joined(scene, best, _near(scene))
    meaning, spread = semantic(scene, places, best)
    factors = {"semantic": meaning} | raw(scene, places)
    if scene.tuning.wants_proximity:
        factors["proximity"] = proximity(scene, places)
    weights = {name: scene.tuning.weights[name] / (1 if name == "semantic" else spread) for name in factors}
    return _weighed(scene, places, factors, weights, boosts(scene, places, spread), spread)


def balanced(scene: Scene) -> Ranking:
    """Rank by recency, meaning and proximity to entities. Candidates are the best memories by signal, the newest, and
    the nearest in the graph."""
    best = scene.best(CANDIDATES)
    by_age = np.argsort(-scene.fact("created_ms", scene.allowed), kind="stable")
    places = _joined(scene, best, scene.allowed[by_age[: len(best)]], _near(scene))
    meaning, spread = semantic(scene, places, best)
    factors = {
        "recency": recency(scene.age_days(places), scene.tuning.decay),
        "semantic": meaning,
        "proximity": proximity(scene, places),
    }
    return _weighed(scene, places, factors, dict(scene.tuning.weights), boosts(scene, places, spread), spread)


def entity_focused(scene: Scene) -> Ranking:
    """Rank by proximity to the entities, and by meaning at equal proximity."""
    best = scene.best(CANDIDATES)
    places = _joined(scene, best, _near(scene))
    meaning, spread = semantic(scene, places, best)
    factors = {"proximity": proximity(scene, places), "semantic": meaning}
    return _weighed(scene, places, factors, dict(scene.tuning.weights), {}, spread)


def decayed(scene: Scene) -> Ranking:
    """Rank memories of sufficient confidence by confidence · 1/(1 + age/decay_days) · similarity. The similarity is a
    memory's relevance, which is absolute: an unrelated memory has nearly none."""
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
    """Return the memories nearest to the requested entities, or none if the mode does not use proximity."""
    if scene.proximity is None or not scene.tuning.wants_proximity:
        return scene.allowed[:0]
    near = scene.allowed[scene.proximity[scene.allowed] > 0]
    return near[np.lexsort((near, -scene.semantic[near], -scene.proximity[near]))][:CANDIDATES]


def _joined(scene: Scene, *found: Places) -> Places:
    """Return the union of all candidates and the allowed positions with edges from them, in conversation order."""
    if not scene.relationship and not any(map(len, found[1:])):
        return np.sort(found[0])
    joined = np.zeros(scene.index.conversation.size, np.bool_)
    if scene.relationship:
        linked = np.fromiter(scene.relationship, np.int64, len(scene.relationship))
        joined[linked[np.isin(linked, scene.allowed)]] = True
    for places in found:
        joined[places] = True
    return joined.nonzero()[0]


# ---------------------------------------------------------------------- scores


def _weighed(
    scene: Scene,
    places: Places,
    factors: dict[str, Column],
    weights: dict[str, float],
    extra: dict[str, Column],
    spread: float,
) -> Ranking:
    """Rank by Σ weight · factor + Σ boosts.

    If the sums before the boosts hardly differ, they count as equal. Boosts then decide, then the semantic factor,
    importance, recency, score and id, all descending.

    Args:
        spread: the log-odds that the semantic factor spans.
    """
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
    """Return each position's rank by memory id."""
    ids = [scene.index.ids[slot] for slot in scene.index.conversation.slots[places].tolist()]
    ranks = np.empty(len(ids), np.int64)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return ranks
