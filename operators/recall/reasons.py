"""Strengths of the reasons for each memory, computed from the columns of the signal, the factors and the boosts.

A column counts if its value and its weight are above 0; the 0 of a z-score is the owner's mean. A factor counts by its
excess over the median of all candidates, because a value that all candidates share does not change their order. All
strengths have the unit of the ranking's scores. `why.py` selects and phrases the reasons.
"""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.scene import Ranking

# Reason of a column: words of the memory, or of the memory and its neighbours; similarity to the memory, or to it and
# its predecessors; or a reason code. None: not shown to users.
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
        "semantic": None,  # the columns give the reasons
        "cluster": "typical",
        "recency": "recent",
        "decay": "recent",
        "importance": "important",
        "usage": "recalled",
        "quality": "trusted",
        "proximity": "entity",
        "relevance": None,  # of the episode, as mentions are: not specific to a member
        "mentions": None,
        "confidence": None,  # factors of the product of `decayed` have no weights
        "similarity": None,
    }
)
BOOSTS: Mapping[str, str | None] = MappingProxyType(
    {
        "relationship": "related",
        "personalisation": "liked",
        "session_continuity": "session",
        "update": None,  # `why.say_updates` adds this reason
    }
)
COMPARED = frozenset({"typical", "recent", "important", "trusted"})  # every memory has a value of these

Strengths = dict[str, float]
"""Strength by reason, in the unit of the scores. A reason counts above 0."""


def strengths(ranking: Ranking, columns: Columns) -> list[Strengths]:
    """Return the strengths of each ranked memory's reasons. Ranked memories are few, so that plain numbers are faster
    than arrays."""
    found: list[Strengths] = [{} for _ in ranking.places]
    for name in columns.values:
        says, weight = COLUMNS[name], columns.weights[name]
        if says is None or (isinstance(weight, float) and weight <= 0):
            continue
        # A memory without a known author has the column's mean, which is no reason.
        least = 1.0 if says == "person" else 0.0
        for own, (weight, value) in zip(found, columns.at(name, ranking.places), strict=True):
            if weight > 0 and value >= least:
                own[says] = own.get(says, 0.0) + value * weight * ranking.unit
    for name, weight in ranking.weights.items():
        if (says := FACTORS[name]) is not None:
            middle = ranking.middles[name] if says in COMPARED else 0.0
            for own, value in zip(found, ranking.factors[name].tolist(), strict=True):
                own[says] = own.get(says, 0.0) + max(value - middle, 0.0) * weight
    for boost, gains in ranking.boosts.items():
        if (says := BOOSTS[boost]) is not None:
            for own, gain in zip(found, gains.tolist(), strict=True):
                own[says] = own.get(says, 0.0) + gain
    return found
