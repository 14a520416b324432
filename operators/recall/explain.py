"""How a memory's score came about, and how likely it is evidence for the question: the ranking's log-odds, calibrated.

The signal is fitted as a softmax, so that share = exp(score - log Σ exp(scores)) is a memory's share of all evidence.
Of a question with several pieces of evidence each has a share of its own, and a share is too sure or too unsure of
itself as a probability; two numbers per kind of embedder and of chat put that right (Platt, 1999, "Probabilistic
outputs for support vector machines"):

    probability = 1 / (1 + exp(-(offset + slope · ln(share / (1 - share)))))

They come from development conversations of every kind (benchmarks/calibration.py), each ranked with weights fitted to
the others.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Kind
from recallflow.operators.recall.scene import Ranking
from recallflow.operators.recall.weights import Chat
from recallflow.state.arrays import Column

_LEAST = 1e-9  # of a share: keeps its logarithm finite


class Calibration(NamedTuple):
    """The two numbers."""

    offset: float
    slope: float


CALIBRATIONS: Mapping[Kind, Mapping[Chat, Calibration]] = MappingProxyType(
    {
        "spelling": {
            "people": Calibration(-0.05, 0.89),
            "pair": Calibration(0.33, 0.89),
            "assistant": Calibration(1.46, 1.04),
        },
        "static": {
            "people": Calibration(0.20, 0.97),
            "pair": Calibration(0.31, 0.88),
            "assistant": Calibration(1.64, 1.11),
        },
        "contextual": {
            "people": Calibration(-0.05, 0.85),
            "pair": Calibration(0.36, 0.86),
            "assistant": Calibration(1.70, 1.12),
        },
        "blended": {
            "people": Calibration(-0.06, 0.86),
            "pair": Calibration(0.21, 0.82),
            "assistant": Calibration(1.64, 1.13),
        },
    }
)


def explained(ranking: Ranking) -> list[dict[str, dict[str, float]]]:
    """The fields of each memory's `Explanation`, best first."""
    count, weights = len(ranking.places), {name: round(weight, 6) for name, weight in ranking.weights.items()}
    factors, boosts = (
        np.round(np.array([*parts.values()]).reshape(len(parts), count), 6).T.tolist()
        for parts in (ranking.factors, ranking.boosts)
    )
    return [
        {
            "factors": dict(zip(ranking.factors, own, strict=True)),
            "weights": weights,
            "boosts": {name: boost for name, boost in zip(ranking.boosts, more, strict=True) if boost},
        }
        for own, more in zip(factors, boosts, strict=True)
    ]


def log_total(scores: Column) -> float:
    """log Σ exp(scores) of all memories that may be in the answer."""
    highest = float(scores.max())
    return highest + float(np.log(np.exp(scores - highest).sum()))


def log_odds_of_share(scores: Column, total: float) -> Column:
    """ln(share / (1 - share)) of memories with these log-odds of the signal; `total`: `log_total` of all."""
    share = np.clip(np.exp(scores - total), _LEAST, 1 - _LEAST)
    odds: Column = np.log(share / (1 - share))
    return odds


def probabilities(scores: Column, total: float, kind: Kind, chat: Chat) -> Column:
    """The probability of each memory to be evidence. It rises with the score, so that order and probabilities by the
    signal agree."""
    offset, slope = CALIBRATIONS[kind][chat]
    likely: Column = 1 / (1 + np.exp(-(offset + slope * log_odds_of_share(scores, total))))
    return likely
