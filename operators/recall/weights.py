"""What the columns of the semantic signal weigh: by what the embedder knows, and by the chat a memory comes from.

People tell each other of themselves, in turns of like length; a user tells an assistant, whose answers are ten times
as long and tell little of the user. From a softmax regression over development conversations of every kind
(benchmarks/fit_weights.py), rounded. Only ratios within a set count, and the scale of their sum is that of log-odds.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from recallflow.embedder import Kind
from recallflow.state.arrays import Column
from recallflow.state.index import OwnerIndex

Chat = Literal["people", "assistant"]
Weights = Mapping[str, float | Column]  # by column; (n,) where an owner's memories are of both kinds

_KINDS: tuple[Kind, ...] = ("spelling", "static", "contextual")
_FITTED: Mapping[Chat, Mapping[str, tuple[float, float, float]]] = {
    "people": {
        "dense": (0.27, 0.2, 0.1),
        "reply": (0.02, 0.03, 0.05),
        "word": (0.05, 0.19, 0.48),
        "word_before": (0.17, 0.34, 0.54),
        "own": (0.28, 0.31, 0.0),
        "window": (12.25, 11.03, 11.34),
        "near": (-1.06, -0.85, -1.34),
        "episode": (1.1, 1.05, 0.94),
        "phrase": (1.03, 1.11, 0.8),
        "answers": (2.19, 2.36, 1.8),
        "length": (0.4, 0.07, -0.03),
        "speaker": (0.97, 0.92, 1.12),
        "speaker_of_two": (1.74, 1.77, 1.55),
        "speaker_asks": (-0.55, -0.54, -0.59),
        "subject": (1.1, 1.08, 1.05),
        "date": (4.4, 4.35, 4.2),
        "when": (1.91, 1.84, 1.63),
        "opens": (1.0, 1.1, 0.98),
    },
    "assistant": {
        "dense": (0.1, 0.1, 0.23),
        "reply": (0.13, 0.07, 0.09),
        "word": (0.09, 0.38, 0.29),
        "own": (2.21, 1.93, 1.75),
        "window": (0.0, 1.06, 0.74),
        "around": (0.04, 0.04, 0.02),
        "phrase": (1.29, 1.09, 0.99),
        "answers": (2.0, 2.0, 2.0),  # as between people: few of the data's assistants ask anything
        "length": (-0.49, -0.61, -0.32),
        "assistant": (-2.53, -2.36, -2.1),
        "date": (1.0, 1.0, 1.0),  # ten questions of the data give one, which speak neither for it nor against it
        "when": (1.29, 1.22, 1.09),
        "opens": (0.6, 0.5, 0.44),
    },
}
WEIGHTS: Mapping[Kind, Mapping[Chat, Mapping[str, float]]] = MappingProxyType(
    {
        kind: MappingProxyType(
            {
                chat: MappingProxyType({name: fitted[at] for name, fitted in columns.items()})
                for chat, columns in _FITTED.items()
            }
        )
        for at, kind in enumerate(_KINDS)
    }
)
BY_VECTOR = ("dense", "reply")
# What is left to go by without the question's vector.
LEXICAL_WEIGHTS: Mapping[Chat, Mapping[str, float]] = MappingProxyType(
    {
        chat: MappingProxyType({name: weight for name, weight in columns.items() if name not in BY_VECTOR})
        for chat, columns in WEIGHTS["spelling"].items()
    }
)


def chat_of(index: OwnerIndex) -> Chat:
    """The kind of chat that most of the owner's memories come from."""
    return "assistant" if 2 * np.count_nonzero(index.with_assistant) > len(index.with_assistant) else "people"


def weights_of(index: OwnerIndex, sets: Mapping[Chat, Mapping[str, float]]) -> Weights:
    """The weights of the owner's memories, each of the set that its chat is of."""
    mask = index.with_assistant
    if mask.all() or not mask.any():
        return sets["assistant" if mask.any() else "people"]
    names = dict.fromkeys(name for columns in sets.values() for name in columns)
    return {name: np.where(mask, sets["assistant"].get(name, 0.0), sets["people"].get(name, 0.0)) for name in names}
