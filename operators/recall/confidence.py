"""How likely a memory is evidence for the question: the ranking's log-odds, calibrated.

The signal is fitted as a softmax, so that share = exp(score - log Σ exp(scores)) is a memory's share of all evidence.
Of a question with several pieces of evidence each has a share of its own, and a share is too sure or too unsure of
itself as a probability; two numbers per kind of embedder put that right (Platt, 1999, "Probabilistic outputs for
support vector machines"):

    probability = 1 / (1 + exp(-(offset + slope · ln(share / (1 - share)))))

They come from LoCoMo's development conversations (benchmarks/calibration.py), each ranked with weights fitted to the
others.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Kind

Values = npt.NDArray[np.floating[Any]]

_LEAST = 1e-9  # of a share: keeps its logarithm finite


class Calibration(NamedTuple):
    """The two numbers."""

    offset: float
    slope: float


CALIBRATIONS: Mapping[Kind, Calibration] = MappingProxyType(
    {
        "spelling": Calibration(0.29, 0.89),
        "static": Calibration(0.29, 0.89),
        "contextual": Calibration(0.34, 0.88),
    }
)


def log_total(scores: Values) -> float:
    """log Σ exp(scores) of all memories that may be in the answer."""
    highest = float(scores.max())
    return highest + float(np.log(np.exp(scores - highest).sum()))


def log_odds_of_share(scores: Values, total: float) -> Values:
    """ln(share / (1 - share)) of memories with these log-odds of the signal; `total`: `log_total` of all."""
    share = np.clip(np.exp(scores - total), _LEAST, 1 - _LEAST)
    odds: Values = np.log(share / (1 - share))
    return odds


def probabilities(scores: Values, total: float, kind: Kind) -> Values:
    """The probability of each memory to be evidence. It rises with the score, so that order and probabilities by the
    signal agree."""
    offset, slope = CALIBRATIONS[kind]
    likely: Values = 1 / (1 + np.exp(-(offset + slope * log_odds_of_share(scores, total))))
    return likely
