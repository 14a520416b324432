"""What scores are made of: factors, (places,) each in 0..1 before it is stretched over the batch, and boosts on top.

| factor | value |
|---|---|
| semantic | the signal of `columns.py` (log-odds): 1 for the best, 0 for the last of the best candidates |
| cluster | cosine to the centroid of the memory's episode |
| recency | the decay function asked for, of age |
| importance | as given with the memory |
| usage | ln(1 + times returned) / (1 + days since it was last returned / 30) |
| quality | (2 · confidence + useful) / (2 + useful + not useful): confidence, tempered by feedback |
| decay | 1 / (1 + age / decay_days); 30 days, unless the query or the tenant asks for hyperbolic decay |
| proximity | 1 / (1 + hops) to the entities asked for, 0 where there is no way |

| boost | worth |
|---|---|
| relationship | of the best edge from another candidate, by its type (see docs/graph.md) |
| personalisation | 0.10 · cosine to the mean of what the user found useful (the newest 100), never negative |
| session_continuity | 0.03 where the memory was returned earlier in the same session |

A memory whose vector has not come yet stands at the mean of the others in the batch, in `cluster` and in
`personalisation`: it counts neither for nor against it.
"""

from collections.abc import Callable
from itertools import islice

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.people import filled
from recallflow.operators.recall.scene import DAY_MS, Scene
from recallflow.queries import Decay
from recallflow.state.arrays import Column, Mask, Places
from recallflow.state.usage import Records

# The signal is stretched so that one unit of its log-odds is worth the same in every batch; what the whole range of
# another factor is worth beside it, weight for weight: enough to tell apart memories that fit alike
# (docs/decisions/0003).
LOG_ODDS_UNIT = 1.0
RANGE_LOG_ODDS = 0.1
WHOLE_RANGE = 0.5  # what a factor has to vary by over the batch to span 0..1: of two memories a week apart none is old
# Of a batch that spans no more than this (eight days, as it is set), none is newer: what was said there fits together.
ABOUT_AS_OLD = {"recency": 0.25, "decay": 0.25}
USAGE_DAYS = 30.0
DECAY_DAYS = 30.0
CONFIDENCE_VOICES = 2.0  # how many voices of feedback count as much as the confidence given
PERSONALISATION = 0.10
LIKED_MOST = 100
SESSION_CONTINUITY = 0.03

# ---------------------------------------------------------------------- factors


def raw(scene: Scene, places: Places) -> dict[str, Column]:
    """The factors beside the semantic one as they are before they are stretched. Without usage, as of another moment
    than now, feedback and usage have no part in them."""
    ages, confidence = scene.age_days(places), scene.fact("confidence", places)
    used = None if scene.usage is None else scene.usage.of(scene.fact("seq", places))
    return {
        "cluster": filled(scene.index.clusters.cosines(places).astype(np.float64), _embedded(scene, places)),
        "recency": recency(ages, scene.tuning.decay),
        "importance": scene.fact("importance", places),
        "usage": np.zeros(len(places)) if used is None else usage(used, scene.now_ms),
        "quality": confidence if used is None else quality(confidence, used),
        "decay": hyperbolic(ages, _own_days(scene.tuning.decay)),
    }


def recency(age_days: Column, decay: Decay) -> Column:
    """exponential exp(-t/τ), linear max(0, 1 - t/max_age), logarithmic 1/(1 + ln(1 + t)), step 1 below the threshold
    else 0, hyperbolic 1/(1 + t/decay)."""
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


def _own_days(decay: Decay) -> float:
    """The days that the factor `decay` counts by: those given are the parameter of hyperbolic decay alone."""
    return decay.decay_days if decay.function == "hyperbolic" else DECAY_DAYS


def hyperbolic(age_days: Column, decay_days: float) -> Column:
    """1/(1 + age/decay_days)."""
    factor: Column = 1 / (1 + age_days / decay_days)
    return factor


def usage(used: Records, now_ms: int) -> Column:
    """Grows with how often a memory was returned, and fades after it was returned last."""
    idle_days = np.where(used["times"] > 0, np.maximum(now_ms - used["last_ms"], 0) / DAY_MS, 0.0)
    factor: Column = np.log1p(used["times"]) / (1 + idle_days / USAGE_DAYS)
    return factor


def quality(confidence: npt.NDArray[np.float64], used: Records) -> Column:
    """The mean of a Beta distribution that begins at the confidence given, and that each voice of feedback moves."""
    voices = used["useful"] + used["not_useful"].astype(np.float64)
    factor: Column = (CONFIDENCE_VOICES * confidence + used["useful"]) / (CONFIDENCE_VOICES + voices)
    return factor


def proximity(scene: Scene, places: Places) -> Column:
    """Zeros without a graph."""
    return np.zeros(len(places)) if scene.proximity is None else scene.proximity[places]


def semantic(scene: Scene, places: Places, best: Places) -> tuple[Column, float]:
    """The signal of `places`, stretched so that `best` (best first) spans 1 to 0, or less where it spans less than one
    unit of log-odds; and the width of that span. What lies below all of `best` is at 0."""
    highest = float(scene.semantic[best[0]])
    spread = max(highest - float(scene.semantic[best[-1]]), LOG_ODDS_UNIT)
    factor: Column = np.maximum(1 - (highest - scene.semantic[places]) / spread, 0.0)
    return factor, spread


def min_max(values: Column, nothing: float = 0.0) -> Column:
    """Stretched over the batch: from 0 to 1 where the values vary by half of 0..1 or more, to less where they vary by
    less, and to 0 where it is no more than `nothing`."""
    lowest = values.min(initial=np.inf)
    spread = values.max(initial=-np.inf) - lowest
    if spread <= nothing:
        return np.zeros(len(values))
    reached = min((spread - nothing) / (WHOLE_RANGE - nothing), 1.0)
    stretched: Column = (values - lowest) * (reached / spread)
    return stretched


# ---------------------------------------------------------------------- boosts


def boosts(scene: Scene, places: Places) -> dict[str, Column]:
    """The boosts that any of the places has, each times its weight; those of weight 0 are none."""
    weights, found = scene.tuning.boosts, dict[str, Column]()

    def add(name: str, worth: Callable[[], Column | None]) -> None:
        weight = weights.get(name, 1.0)
        if weight > 0 and (values := worth()) is not None:
            found[name] = weight * values

    add("relationship", lambda: _related(scene, places))
    add("personalisation", lambda: _liked(scene, places))
    add("session_continuity", lambda: _returned(scene, places))
    return found


def _related(scene: Scene, places: Places) -> Column | None:
    if not scene.relationship:
        return None
    return np.array([scene.relationship.get(place, 0.0) for place in places.tolist()])


def _liked(scene: Scene, places: Places) -> Column | None:
    if (taste := _taste(scene)) is None:
        return None
    cosines = scene.index.vectors.of(scene.index.conversation.slots[places]) @ taste
    boost: Column = PERSONALISATION * np.clip(cosines.astype(np.float64), 0.0, 1.0)
    return filled(boost, _embedded(scene, places))


def _returned(scene: Scene, places: Places) -> Column | None:
    if not len(scene.returned):
        return None
    again = (scene.fact("seq", places)[:, None] == scene.returned).any(axis=1)
    return np.where(again, SESSION_CONTINUITY, 0.0)


def _embedded(scene: Scene, places: Places) -> Mask:
    """Whether each place's memory has a vector."""
    return scene.index.vectors.holds(scene.index.conversation.slots[places])


def _taste(scene: Scene) -> Column | None:
    """The mean vector, (dimension,) of length 1, of the newest memories that were more often said to be useful than
    not."""
    liked = () if scene.usage is None else scene.usage.liked()
    known = (slot for seq in liked if (slot := scene.index.slot(seq)) is not None)
    slots = [*islice(known, LIKED_MOST)][::-1]
    if not slots:
        return None
    mean = scene.index.vectors.of(np.array(slots, np.int64)).mean(axis=0)
    norm = np.linalg.norm(mean)
    return mean / norm if norm else None  # 0 where none of them has a vector
