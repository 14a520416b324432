"""The mode `episode`: whole conversations, the most relevant first, each in conversation order.

| factor | value of an episode |
|---|---|
| relevance | the relevance of the best memory overall, times the episode's share of all evidence |
| mentions | n / (1 + n), where n members mention requested or named entities |

An episode's share is exp(odds - log Σ exp(odds of all)). Its odds are log Σ exp(signal) over its members, the log-odds
that any of them is evidence, plus a quarter of the z-score of the cosine between question and centroid. The cosine term
is 0 if no member has a vector. Centroids alone have too little recall: on LoCoMo (hash embedder) the best three
episodes hold evidence for .49 of the questions by centroid, and for .90 by members.

A memory's score is its episode's score. Episodes with equal scores, and members of an episode, are ordered by event
time. A memory outside any episode is an episode by itself.
"""

from typing import NamedTuple

import numpy as np

from recallflow.operators.recall.people import filled
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.state.arrays import Column, Ints, Mask, Places

SPREAD = 3  # episodes that share the remaining slots if they do not fit whole
CENTROID_WEIGHT = 0.25
BEST = 50  # memories with the highest signal, from which the most relevant one is taken
NAMED = 0.2  # share of the weight of mentions if no entity is requested
MENTIONED = 1.0  # proximity of a memory that mentions an entity directly


class _Episodes(NamedTuple):
    """The episodes with members that may be in the answer.

    Attributes:
        members: positions of the members in conversation order.
        first: index of each episode's first member in `members`.
        sizes: number of members of each episode.
    """

    members: Places
    first: Ints
    sizes: Ints

    def of(self, number: int) -> Places:
        """Return the members of one episode."""
        return self.members[self.first[number] : self.first[number] + self.sizes[number]]


def episode(scene: Scene) -> Ranking:
    """Rank the memories of the best episodes."""
    found = _grouped(scene)
    factors = {"relevance": _relevance(scene, found), "mentions": _mentions(scene, found)}
    weights = _weights(scene)
    scores: Column = sum((weights[name] * values for name, values in factors.items()), np.zeros(len(found.first)))
    began_ms = scene.fact("created_ms", found.members[found.first])
    order = np.lexsort((found.first, began_ms, -scores))
    answered = _answered(scene, found, order)
    places, own = np.concatenate(answered), np.repeat(order[: len(answered)], [len(one) for one in answered])
    return Ranking(places, scores[own], {name: values[own] for name, values in factors.items()}, weights)


def _weights(scene: Scene) -> dict[str, float]:
    """Return the weights of the factors. Requested entities have full weight; entities that the question names have
    little, because the signal already counts their words. Named participants have none."""
    weights, query = dict(scene.tuning.weights), scene.query
    if not query.entity_urns and "mentions" not in (query.weights or {}):
        weights["mentions"] *= 0.0 if scene.question.named else NAMED
    return weights


def _grouped(scene: Scene) -> _Episodes:
    segment = scene.index.conversation.segment[scene.allowed]
    first = np.flatnonzero(np.diff(segment, prepend=-1))
    return _Episodes(scene.allowed, first, np.diff(first, append=len(segment)))


def _relevance(scene: Scene, found: _Episodes) -> Column:
    odds: Column = np.logaddexp.reduceat(scene.semantic[found.members], found.first)
    if scene.vector is not None:
        segments = scene.index.conversation.segment[found.members[found.first]]
        centroids = scene.index.clusters.centroids(segments)
        embedded: Mask = np.linalg.norm(centroids, axis=1) > 0
        if embedded.any():
            cosines = filled(centroids.astype(np.float64) @ scene.vector, embedded)
            known = cosines[embedded]
            odds = odds + CENTROID_WEIGHT * (cosines - known.mean()) / (known.std() + 1e-6)
    relevance: Column = np.exp(odds - np.logaddexp.reduce(odds)) * scene.relevance(scene.best(BEST)).max()
    return relevance


def _mentions(scene: Scene, found: _Episodes) -> Column:
    if scene.proximity is None:
        return np.zeros(len(found.first))
    counts = np.add.reduceat((scene.proximity[found.members] >= MENTIONED) * 1.0, found.first)
    mentions: Column = counts / (1 + counts)
    return mentions


def _answered(scene: Scene, found: _Episodes, order: Ints) -> list[Places]:
    """Return the positions of each answered episode, best first. Episodes are included whole while they fit; the next
    ones share the remaining slots by their best members."""
    tuning = scene.tuning
    room = tuning.most
    best = [found.of(number) for number in order[: tuning.max_episodes or tuning.k].tolist()]
    whole, taken = 0, 0
    while whole < len(best) and taken < tuning.k and taken + len(best[whole]) <= room:
        taken += len(best[whole])
        whole += 1
    if taken >= tuning.k or taken == room:
        return best[:whole]
    rest = best[whole : max(whole + 1, SPREAD)]
    if not rest:
        return best
    every = np.concatenate(rest)
    chosen = np.zeros(scene.index.conversation.size, np.bool_)
    chosen[every[np.argsort(-scene.semantic[every], kind="stable")[: room - taken]]] = True
    return [*best[:whole], *(one[chosen[one]] for one in rest)]
