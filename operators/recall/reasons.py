"""How much each reason speaks for a memory: out of the columns of the signal, the factors and the boosts.

A column speaks for a memory where it has a value above 0, which for a z-score is the owner's mean, and a weight above
0; a factor where its value is above the middle of all that was looked at, for it lifts nobody whom it lifts with all
others. All of it is counted in the unit of the ranking's scores. What the reasons rest on, and how they are said, is in
`why.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.scene import Ranking

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
        "relevance": None,  # of the episode, as its mentions are: they say nothing of a member
        "mentions": None,
        "confidence": None,  # what the product of `decayed` is made of has no weights
        "similarity": None,
    }
)
BOOSTS: Mapping[str, str | None] = MappingProxyType(
    {
        "relationship": "related",
        "personalisation": "liked",
        "session_continuity": "session",
        "update": None,  # `why.say_updates` tells it
    }
)
COMPARED = frozenset({"typical", "recent", "important", "trusted"})  # every memory has some of it

Strengths = dict[str, float]
"""By what speaks for a memory, in the unit of the scores; 0 or less where it does not."""


def strengths(ranking: Ranking, columns: Columns) -> list[Strengths]:
    """How much each thing speaks for each ranked memory. They are few: plain numbers cost less than arrays of them."""
    found: list[Strengths] = [{} for _ in ranking.places]
    for name in columns.values:
        says, weight = COLUMNS[name], columns.weights[name]
        if says is None or (isinstance(weight, float) and weight <= 0):
            continue
        # Whose a memory is that can be nobody's stands at the mean, which says nothing of it.
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
