"""How age lowers a memory's weight. Ages in days, never negative: the future counts as now."""

from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.queries import Decay

Days = npt.NDArray[np.floating[Any]]
DAY_MS = 86_400_000


def age_days(created_ms: npt.NDArray[np.int64], now_ms: int) -> Days:
    """Ages at `now_ms`."""
    ages: Days = np.maximum(now_ms - created_ms, 0) / DAY_MS
    return ages


def recency(ages: Days, decay: Decay) -> Days:
    """exponential exp(-t/τ), linear max(0, 1 - t/max_age), logarithmic 1/(1 + ln(1 + t)), step 1 below the threshold
    else 0, hyperbolic 1/(1 + t/decay)."""
    match decay.function:
        case "exponential":
            factor: Days = np.exp(-ages / decay.tau_days)
        case "linear":
            factor = np.maximum(0.0, 1 - ages / decay.max_age_days)
        case "logarithmic":
            factor = 1 / (1 + np.log1p(ages))
        case "step":
            factor = (ages < decay.threshold_days) * 1.0
        case "hyperbolic":
            factor = 1 / (1 + ages / decay.decay_days)
    return factor
