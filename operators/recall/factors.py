"""Factors and boosts: the values from 0 to 1 that the ranking modes weigh.

| factor | value |
|---|---|
| semantic | the signal of `columns.py` (log-odds): 1 for the best candidate, 0 for the last of the best candidates |
| cluster | cosine to the centroid of the memory's episode |
| recency | 1 - ln(1 + age / 30) / ln(1 + oldest / 30); the decay function, if the query or the tenant sets `decay` |
| importance | the importance of the memory |
| usage | u / (1 + u) / (1 + days since it was last returned / 30), where u = ln(1 + times returned) |
| quality | (2 · confidence + useful) / (2 + useful + not useful): confidence, tempered by feedback |
| decay | 1 / (1 + age / decay_days); 30 days, unless the query or the tenant asks for hyperbolic decay |
| proximity | 1 / (1 + hops) to the entities asked for, 0 without a path |

| boost | value |
|---|---|
| relationship | strength of the best edge from another candidate, by its type (see docs/concepts/graph.md) |
| personalisation | cosine to the mean of what the user found useful (the newest 100), never negative |
| session_continuity | 1 if the memory was returned earlier in the same session |

In `hybrid` a weight is the worth of the whole range of a factor or boost, 0 to 1, in log-odds of the signal. Values are
not stretched over the candidates, so that two memories that differ in a factor differ in its value. The default weights
are small: they order memories that fit about alike (docs/internals/decisions/09).

A memory without a vector counts as the mean of the other candidates in `cluster` and in `personalisation`."""

from itertools import islice

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.people import filled
from recallflow.operators.recall.ranking_input import DAY_MS, RankingInput
from recallflow.queries import WEIGHTS, Decay
from recallflow.state.arrays import Column, Mask, Places
from recallflow.state.index import OwnerIndex, of_memories
from recallflow.state.usage import Records

LEAST_SPREAD = 1.0  # log-odds: best candidates with a smaller span are not stretched to 0..1
LEAST_OLDEST_DAYS = 365.0  # candidates that are all newer span less than 0..1: within a week none is old
USAGE_DAYS = 30.0
DECAY_DAYS = 30.0
CONFIDENCE_VOICES = 2.0  # number of feedback votes that weigh as much as the stated confidence
LIKED_MOST = 100


def raw(inputs: RankingInput, places: Places) -> dict[str, Column]:
    """Return the factors of `hybrid` other than the semantic one and proximity. Usage and feedback count nothing if the
    answer is about another moment than now."""
    decay = inputs.tuning.decay
    ages, confidence = inputs.age_days(places), inputs.fact("confidence", places)
    used = None if inputs.usage is None else inputs.usage.of(inputs.fact("seq", places))
    return {
        "cluster": filled(inputs.index.clusters.cosines(places).astype(np.float64), _embedded(inputs, places)),
        "recency": recency(ages, decay) if decay.model_fields_set else log_recency(ages),
        "importance": inputs.fact("importance", places),
        "usage": np.zeros(len(places)) if used is None else usage(used, inputs.now_ms),
        "quality": confidence if used is None else quality(confidence, used),
        "decay": hyperbolic(ages, decay.decay_days if decay.function == "hyperbolic" else DECAY_DAYS),
    }


def log_recency(age_days: Column) -> Column:
    """Return recency on a scale on which each doubling of age beyond a month costs about the same. It is 1 at the age
    0, and 0 at the age of the oldest candidate or one year, whichever is older."""
    oldest = age_days.max(initial=LEAST_OLDEST_DAYS)
    factor: Column = 1 - np.log1p(age_days / DECAY_DAYS) / np.log1p(oldest / DECAY_DAYS)
    return factor


def recency(age_days: Column, decay: Decay) -> Column:
    """Return exponential exp(-t/τ), linear max(0, 1 - t/max_age), logarithmic 1/(1 + ln(1 + t)), hyperbolic 1/(1 +
    t/decay), or step: 1 below the threshold, else 0."""
    match decay.function:
        case "exponential":
            factor: Column = np.exp(-age_days / decay.tau_days)
        case "linear":
            factor = np.maximum(0.0, 1 - age_days / decay.max_age_days)
        case "logarithmic":
            factor = 1 / (1 + np.log1p(age_days))
        case "step":
            factor = (age_days < decay.threshold_days) * 1.0
        case "hyperbolic":
            factor = hyperbolic(age_days, decay.decay_days)
    return factor


def hyperbolic(age_days: Column, decay_days: float) -> Column:
    return 1 / (1 + age_days / decay_days)


def usage(used: Records, now_ms: int) -> Column:
    """Return u / (1 + u), u = ln(1 + times returned), which halves 30 days after the memory was returned last."""
    idle_days = np.where(used["times"] > 0, np.maximum(now_ms - used["last_ms"], 0) / DAY_MS, 0.0)
    often = np.log1p(used["times"])
    factor: Column = often / (1 + often) / (1 + idle_days / USAGE_DAYS)
    return factor


def quality(confidence: npt.NDArray[np.float64], used: Records) -> Column:
    """Return the mean of a Beta distribution that starts at the stated confidence and that each feedback vote
    updates."""
    voices = used["useful"] + used["not_useful"].astype(np.float64)
    factor: Column = (CONFIDENCE_VOICES * confidence + used["useful"]) / (CONFIDENCE_VOICES + voices)
    return factor


def proximity(inputs: RankingInput, places: Places) -> Column:
    """Return the proximity of each position, or zeros without a graph."""
    return np.zeros(len(places)) if inputs.proximity is None else inputs.proximity[places]


def semantic(inputs: RankingInput, places: Places, best: Places) -> tuple[Column, float]:
    """Return the signal of `places`, stretched so that `best` (best first) spans 1 to 0, and the log-odds of that span.
    `best` spans less if its log-odds span less than one unit. Places below all of `best` have 0."""
    highest = float(inputs.semantic[best[0]])
    spread = max(highest - float(inputs.semantic[best[-1]]), LEAST_SPREAD)
    factor: Column = np.maximum(1 - (highest - inputs.semantic[places]) / spread, 0.0)
    return factor, spread


def boosts(inputs: RankingInput, places: Places, spread: float) -> dict[str, Column]:
    """Return weight · value of each boost in the unit of scores, without boosts of weight 0 or without data. `spread`
    are the log-odds that the semantic factor spans, which are worth its default weight."""
    unit = WEIGHTS[inputs.tuning.mode]["semantic"] / spread
    weights = {name: weight * unit for name, weight in inputs.tuning.boosts.items() if weight * unit > 0}
    found: dict[str, Column] = {}
    if "relationship" in weights and inputs.relationship:
        found["relationship"] = np.array([inputs.relationship.get(place, 0.0) for place in places.tolist()])
    if "personalisation" in weights and (taste := _taste(inputs)) is not None:
        cosines = inputs.index.vectors.of(inputs.index.conversation.slots[places]) @ taste
        found["personalisation"] = filled(np.clip(cosines.astype(np.float64), 0.0, 1.0), _embedded(inputs, places))
    if "session_continuity" in weights and len(inputs.returned):
        again = (inputs.fact("seq", places)[:, None] == inputs.returned).any(axis=1)
        found["session_continuity"] = again * 1.0
    return {name: weights[name] * values for name, values in found.items()}


def _embedded(inputs: RankingInput, places: Places) -> Mask | None:
    """Return whether each position's memory has a vector; None if all memories have one."""
    found = _with_vectors(inputs.index)
    return None if found is None else found.take(places)


@of_memories
def _with_vectors(index: OwnerIndex) -> Mask | None:
    found = index.vectors.holds(index.conversation.slots)
    return None if found.all() else found


def _taste(inputs: RankingInput) -> Column | None:
    """Return the mean vector, (dimension,) of length 1, of the newest memories with more useful than not useful
    votes."""
    liked = () if inputs.usage is None else inputs.usage.liked()
    known = (slot for seq in liked if (slot := inputs.index.slot(seq)) is not None)
    slots = [*islice(known, LIKED_MOST)][::-1]
    if not slots:
        return None
    mean = inputs.index.vectors.of(np.array(slots, np.int64)).mean(axis=0)
    norm = np.linalg.norm(mean)
    return mean / norm if norm else None  # 0 without vectors
