"""Score explanations: the factors, weights and boosts of each ranked memory."""

import numpy as np

from recallflow.operators.recall.ranking_input import Ranking


def explained(ranking: Ranking) -> list[dict[str, dict[str, float]]]:
    """Return the fields of each memory's `Explanation`, best first."""
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
