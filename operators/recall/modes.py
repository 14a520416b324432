"""Ranking modes: from the semantic signal and the other factors to an order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.decay import age_days, recency
from recallflow.operators.recall.question import Question
from recallflow.queries import Decay, Mode, Recall
from recallflow.state.index import OwnerIndex

Values = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.int64]

HYBRID_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "semantic": 0.45,
        "cluster": 0.10,
        "recency": 0.15,
        "importance": 0.10,
        "usage": 0.05,
        "quality": 0.10,
        "decay": 0.05,
    }
)
# What the whole range of another factor is worth, weight for weight, against the semantic signal: one unit of its
# log-odds. Stretching the signal to 0..1 over the batch instead would make its worth depend on the batch's size
# (docs/decisions/0003).
LOG_ODDS_UNIT = 1.0
SPREAD_FLOOR = 0.05  # a factor that varies less over the batch does not tell its memories apart
TIE_FLOOR = 0.02  # a batch whose scores vary less is ordered by the tie-break chain
CANDIDATES_PER_K = 4
CANDIDATES_MIN = 40
EPISODES = 3


@dataclass(slots=True)
class Ranking:
    """Places best first, with their scores and the factors the scores are made of (all arrays follow `places`)."""

    places: Places
    scores: Values
    factors: dict[str, Values] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    tiebreak_applied: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """What a mode ranks: one owner's memories, the question, and the time it is asked at.

    `semantic`: (n,) log-odds per place; `allowed`: places that may be in the answer.
    """

    index: OwnerIndex
    question: Question
    query: Recall
    k: int
    now_ms: int
    semantic: Values
    allowed: Places


def rank(scene: Scene) -> Ranking:
    """The answer's order in the mode that the query names."""
    return MODES[scene.query.mode](scene)


def relevance(scene: Scene) -> Ranking:
    """By the semantic signal alone."""
    places = _best(scene, scene.k)
    semantic = _min_max(scene.semantic[places])
    return Ranking(places, semantic, {"semantic": semantic}, {"semantic": 1.0})


def by_recency(scene: Scene) -> Ranking:
    """By a decay function of age; what was said last comes first."""
    facts = scene.index.conversation.facts[scene.allowed]
    scores = recency(age_days(facts["created_ms"], scene.now_ms), scene.query.decay)
    # A step, or ages beyond a float's reach, leave ties: the event time decides, then the order of arrival.
    order = np.lexsort((-facts["seq"], -facts["created_ms"], -scores))[: scene.k]
    return Ranking(scene.allowed[order], scores[order], {"recency": scores[order]}, {"recency": 1.0})


def hybrid(scene: Scene) -> Ranking:
    """Seven factors, weighted: what is meant, tempered by how recent, important and trusted a memory is."""
    places = _best(scene, max(CANDIDATES_PER_K * scene.k, CANDIDATES_MIN))
    raw = _factors(scene, places)
    signal = scene.semantic[places]
    spread = max(float(np.ptp(signal)), LOG_ODDS_UNIT)
    factors: dict[str, Values] = {"semantic": (signal - signal[-1:]) / spread}  # places come best first
    factors |= {name: _min_max(values) for name, values in raw.items()}
    weights = {n: w if n == "semantic" else w * LOG_ODDS_UNIT / spread for n, w in HYBRID_WEIGHTS.items()}
    scores: Values = sum((weights[name] * values for name, values in factors.items()), np.zeros(len(places)))
    order, tied = _order(scene, places, scores, signal, raw)
    cut = order[: scene.k]
    return Ranking(places[cut], scores[cut], {n: v[cut] for n, v in factors.items()}, weights, tied)


def episode(scene: Scene) -> Ranking:
    """The best episodes by their best member, all their memories, by how often they mention what the question is
    about; among equals in the order they were said."""
    conversation = scene.index.conversation
    segments: list[int] = []
    for place in _best(scene, len(scene.allowed)):
        segment = int(conversation.segment[place])
        if segment not in segments:
            segments.append(segment)
        if len(segments) == EPISODES:
            break
    places = scene.allowed[np.isin(conversation.segment[scene.allowed], segments)]
    mentions = _mentions(scene, places)
    order = np.lexsort((places, -mentions))[: scene.k]
    scores = mentions[order] / max(mentions.max(initial=0), 1)
    return Ranking(
        places[order], scores, {"mentions": mentions[order]}, {"mentions": 1 / max(mentions.max(initial=0), 1)}
    )


MODES: Mapping[Mode, Callable[[Scene], Ranking]] = MappingProxyType(
    {"relevance": relevance, "recency": by_recency, "hybrid": hybrid, "episode": episode}
)


# ---------------------------------------------------------------------- factors


def _factors(scene: Scene, places: Places) -> dict[str, Values]:
    """The six factors beside the semantic one, as they are before normalisation."""
    facts = scene.index.conversation.facts[places]
    ages = age_days(facts["created_ms"], scene.now_ms)
    return {
        "cluster": scene.index.cluster_cosines()[places].astype(np.float64),
        "recency": recency(ages, scene.query.decay),
        "importance": facts["importance"],
        "usage": np.zeros(len(places)),
        "quality": facts["confidence"],
        "decay": recency(ages, Decay(function="hyperbolic")),
    }


def _min_max(values: Values) -> Values:
    """Stretched to 0..1 over the batch; zeros where the spread is below the floor."""
    if not len(values) or np.ptp(values) < SPREAD_FLOOR:
        return np.zeros(len(values))
    stretched: Values = (values - values.min()) / np.ptp(values)
    return stretched


def _order(
    scene: Scene, places: Places, scores: Values, semantic: Values, raw: dict[str, Values]
) -> tuple[Places, bool]:
    """Best first; where the scores hardly differ, by semantic, importance, recency and id, all descending."""
    if len(scores) > 1 and scores.std() < TIE_FLOOR:
        slots = scene.index.conversation.slots[places]
        by_id = np.empty(len(slots), np.int64)
        by_id[sorted(range(len(slots)), key=lambda i: scene.index.ids[slots[i]])] = np.arange(len(slots))
        return np.lexsort((-by_id, -raw["recency"], -raw["importance"], -semantic)), True
    return np.lexsort((places, -semantic, -scores)), False


def _best(scene: Scene, count: int) -> Places:
    """The `count` allowed places with the highest signal, best first; earlier places first among equals."""
    order = np.argsort(-scene.semantic[scene.allowed], kind="stable")[:count]
    return scene.allowed[order]


def _mentions(scene: Scene, places: Places) -> Values:
    """How often each memory mentions the question's key entities: whom it names, else its content words."""
    keys = scene.question.stems
    counts: Values = scene.index.words.counts(dict.fromkeys(keys))[:, scene.index.conversation.slots[places]].sum(
        axis=0
    )
    return counts


def explained(ranking: Ranking, at: int) -> dict[str, dict[str, Any]]:
    """Factors, weights and boosts of the memory at rank `at` (from 0)."""
    return {
        "factors": {name: round(float(values[at]), 6) for name, values in ranking.factors.items()},
        "weights": {name: round(weight, 6) for name, weight in ranking.weights.items()},
        "boosts": {},
    }
