"""How much each reason speaks for a memory: out of the columns of the signal, the factors and the boosts.

A column speaks for a memory where it has a value above 0, which for a z-score is the owner's mean, and a weight above
0; a factor where its value is above the middle of the answer's, for it lifts nobody whom it lifts with all others. All
of it is counted in the unit of the ranking's scores. What the reasons rest on, and how they are said, is in `why.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.state.arrays import Column

# What a column says: words of the memory itself, or of it and its neighbours; likeness to the memory itself, or to it
# and those before it; or the code of a reason. None: of no interest to a person.
WORDS, WORDS_NEAR, ALIKE, ALIKE_NEAR = "words", "words_near", "alike", "alike_near"
COLUMNS: Mapping[str, str | None] = MappingProxyType(
    {
        "dense": ALIKE,
        "reply": None,
        "word": ALIKE,
        "word_before": ALIKE_NEAR,
        "own": WORDS,
        "window": WORDS_NEAR,
        "near": WORDS_NEAR,
        "episode": None,
        "around": WORDS_NEAR,
        "phrase": WORDS,
        "answers": "answers",
        "borrowed": "answers",
        "speaker": "person",
        "speaker_of_two": "person",
        "speaker_asks": None,
        "subject": "person",
        "date": "date",
        "when": "time",
        "length": None,
        "assistant": None,
        "opens": None,
    }
)
FACTORS: Mapping[str, str | None] = MappingProxyType(
    {
        "semantic": None,  # the columns say why
        "cluster": "typical",
        "recency": "recent",
        "decay": "recent",
        "importance": "important",
        "usage": "recalled",
        "quality": "trusted",
        "proximity": "entity",
        "mentions": WORDS,
        "confidence": None,  # what the product of `decayed` is made of has no weights
        "similarity": None,
    }
)
BOOSTS: Mapping[str, str] = MappingProxyType(
    {"relationship": "related", "personalisation": "liked", "session_continuity": "session"}
)
COMPARED = frozenset({"typical", "recent", "important", "trusted"})  # every memory has some of it

Strengths = dict[str, Column]
"""By what speaks, (memories,) in the unit of the scores, 0 where it does not."""


def strengths(scene: Scene, ranking: Ranking, columns: Columns) -> Strengths:
    """How much each thing speaks for each ranked memory."""
    found: Strengths = {}
    if columns.values and scene.tuning.mode != "episode":  # its order is by mentions
        telling = [name for name in columns.values if COLUMNS[name] is not None]
        weights, values = columns.at(ranking.places, telling)
        # Whose a memory is that can be nobody's stands at the mean, which says nothing of it.
        least = np.array([1.0 if COLUMNS[name] == "person" else 0.0 for name in telling])[:, np.newaxis]
        parts = np.where((values >= least) & (weights > 0), values * weights, 0.0) * _worth(scene, ranking)
        for name, part in zip(telling, parts, strict=True):
            _add(found, COLUMNS[name] or "", part)
    weighed = [(says, name) for name in ranking.weights if (says := FACTORS[name]) is not None]
    if weighed:
        values = np.array([ranking.factors[name] for _, name in weighed])
        middle = np.partition(values, values.shape[1] // 2)[:, values.shape[1] // 2]
        lowest = middle * [says in COMPARED for says, _ in weighed]
        weights = np.array([ranking.weights[name] for _, name in weighed])
        gains = np.maximum(values - lowest[:, np.newaxis], 0.0) * weights[:, np.newaxis]
        for (says, _), gain in zip(weighed, gains, strict=True):
            _add(found, says, gain)
    for boost, values in ranking.boosts.items():
        _add(found, BOOSTS[boost], values)
    return found


def _add(found: Strengths, says: str, values: Column) -> None:
    found[says] = found[says] + values if says in found else values


def _worth(scene: Scene, ranking: Ranking) -> float:
    """What one unit of log-odds adds to a score."""
    if not ranking.weights:
        return 1.0
    signal, factor = scene.semantic[ranking.places], ranking.factors["semantic"]
    high, low = int(signal.argmax()), int(signal.argmin())
    span = float(signal[high] - signal[low])
    slope = float(factor[high] - factor[low]) / span if span > 0 else 1.0
    return ranking.weights["semantic"] * slope
