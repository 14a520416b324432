"""What scores are made of: one value per memory and factor, each in 0..1 before it is stretched over the batch.

| factor | value |
|---|---|
| semantic | the signal of `columns.py` (log-odds), stretched over the best candidates |
| cluster | cosine to the centroid of the memory's episode |
| recency | the decay function asked for, of age |
| importance | as told with the memory |
| usage | ln(1 + times returned) / (1 + days since it was last returned / 30) |
| quality | (2 · confidence + useful) / (2 + useful + not useful): confidence, tempered by feedback |
| decay | 1 / (1 + age / decay_days) |
| proximity | 1 / (1 + hops) to the entities asked for, 0 where there is no way |
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.decay import DAY_MS, Days, recency
from recallflow.operators.recall.scene import Places, Scene, Values
from recallflow.state.usage import Records

# What the whole range of another factor is worth, weight for weight, against the semantic signal: one unit of its
# log-odds. Stretching the signal to 0..1 over the batch instead would make its worth depend on the batch's size
# (docs/decisions/0003).
LOG_ODDS_UNIT = 1.0
SPREAD_FLOOR = 0.05  # a factor that varies less over the batch does not tell its memories apart
USAGE_DAYS = 30.0
CONFIDENCE_VOICES = 2.0  # how many voices of feedback it takes to count as much as the confidence told


def raw(scene: Scene, places: Places) -> dict[str, Values]:
    """The factors beside the semantic one, (len(places),) each, as they are before they are stretched. Without usage,
    as of another moment than now, feedback and usage have no part in them."""
    ages, confidence = scene.ages(places), scene.fact("confidence", places)
    used = None if scene.usage is None else scene.usage.of(scene.fact("seq", places))
    return {
        "cluster": scene.index.clusters.cosines(places).astype(np.float64),
        "recency": recency(ages, scene.tuning.decay),
        "importance": scene.fact("importance", places),
        "usage": np.zeros(len(places)) if used is None else usage(used, scene.now_ms),
        "quality": confidence if used is None else quality(confidence, used),
        "decay": hyperbolic(ages, scene.tuning.decay.decay_days),
    }


def hyperbolic(ages: Days, decay_days: float) -> Values:
    """1/(1 + age/decay_days), ages in days."""
    factor: Values = 1 / (1 + ages / decay_days)
    return factor


def usage(used: Records, now_ms: int) -> Values:
    """Grows with how often a memory was returned, and fades after it was returned last."""
    idle_days = np.where(used["times"] > 0, np.maximum(now_ms - used["last_ms"], 0) / DAY_MS, 0.0)
    factor: Values = np.log1p(used["times"]) / (1 + idle_days / USAGE_DAYS)
    return factor


def quality(confidence: npt.NDArray[np.float64], used: Records) -> Values:
    """The mean of a Beta distribution that begins at the confidence told, and that each voice of feedback moves."""
    voices = used["useful"] + used["not_useful"].astype(np.float64)
    factor: Values = (CONFIDENCE_VOICES * confidence + used["useful"]) / (CONFIDENCE_VOICES + voices)
    return factor


def proximity(scene: Scene, places: Places) -> Values:
    """Zeros without a graph."""
    return np.zeros(len(places)) if scene.proximity is None else scene.proximity[places]


def semantic(scene: Scene, places: Places, best: Places) -> tuple[Values, float]:
    """The signal of `places`, stretched so that `best` (best first) spans 0..1, or less where it spans less than one
    unit of log-odds; and the width of that span. What lies below all of `best` is at 0."""
    lowest = scene.semantic[best[-1]]
    spread = max(float(scene.semantic[best[0]] - lowest), LOG_ODDS_UNIT)
    factor: Values = np.maximum(scene.semantic[places] - lowest, 0.0) / spread
    return factor, spread


def min_max(values: npt.NDArray[np.floating[Any]]) -> Values:
    """Stretched to 0..1 over the batch, along the last axis; zeros where the spread is below the floor."""
    lowest = values.min(axis=-1, keepdims=True, initial=np.inf)
    spread = values.max(axis=-1, keepdims=True, initial=-np.inf) - lowest
    stretched: Values = np.divide(values - lowest, spread, out=np.zeros(values.shape), where=spread >= SPREAD_FLOOR)
    return stretched
