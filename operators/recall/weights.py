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
from recallflow.state.index import OwnerIndex, of_memories

# A pair: two people who talk to each other. Notes: what a single person told, with nobody else in the chat, so that
# neighbours are no replies.
Chat = Literal["people", "pair", "assistant", "notes"]
Weights = Mapping[str, float | Column]  # by column; (n,) where an owner's memories are of two kinds

_KINDS: tuple[Kind, ...] = ("spelling", "static", "contextual", "blended")
_FITTED: Mapping[Chat, Mapping[str, tuple[float, float, float, float]]] = {
    "people": {
        "dense": (0.26, 0.2, 0.1, 0.53),
        "reply": (0.02, 0.03, 0.06, 0.07),
        "word": (0.05, 0.19, 0.48, 0.0),
        "word_before": (0.17, 0.34, 0.55, 0.21),
        "own": (0.27, 0.31, 0.0, 0.01),
        "window": (12.59, 11.12, 11.34, 12.56),
        "near": (-1.09, -0.87, -1.35, -1.32),
        "episode": (1.1, 1.04, 0.92, 1.16),
        "phrase": (1.02, 1.12, 0.8, 1.04),
        "answers": (2.21, 2.35, 1.81, 1.83),
        "length": (0.38, 0.08, -0.02, 0.37),
        "speaker": (0.95, 0.92, 1.12, 1.07),
        "speaker_of_two": (1.76, 1.77, 1.55, 1.6),
        "speaker_asks": (-0.56, -0.54, -0.6, -0.48),
        "subject": (1.08, 1.12, 1.07, 1.12),
        "date": (4.61, 4.64, 4.44, 4.89),
        "when": (1.93, 1.82, 1.61, 1.8),
        "opens": (1.0, 1.12, 1.0, 1.01),
    },
    "assistant": {
        "dense": (0.1, 0.1, 0.2, 0.43),
        "reply": (0.15, 0.16, 0.14, 0.13),
        "word": (0.13, 0.36, 0.32, 0.0),
        "own": (2.14, 1.96, 1.78, 2.2),
        "window": (0.0, 1.03, 1.13, 2.65),
        "around": (0.04, 0.03, 0.02, 0.02),
        "phrase": (1.12, 0.99, 0.91, 0.82),
        # A word of the question it answers, half as much as its own: few are in the data.
        "borrowed": (1.0, 1.0, 1.0, 1.0),
        "length": (-0.5, -0.6, -0.44, -0.62),
        "assistant": (-2.37, -2.13, -2.19, -1.97),
        "date": (1.0, 1.0, 1.0, 1.0),  # ten questions of the data give one, which speak neither for it nor against it
        "when": (1.29, 1.2, 1.02, 1.3),
        "opens": (0.53, 0.49, 0.57, 0.62),
    },
}
# A model that reads tokens in their context ranks chats of two better by a set of their own; vectors of spelling, and
# static ones, rank them as well by that of all people (docs/internals/recall-experiments.md).
_PAIR: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.1,
        "reply": 0.03,
        "word": 0.47,
        "word_before": 0.73,
        "own": 0.0,
        "window": 10.18,
        "near": -1.07,
        "episode": 0.37,
        "phrase": 0.68,
        "answers": 1.58,
        "length": -0.19,
        "speaker": 1.16,
        "speaker_of_two": 1.59,
        "speaker_asks": -0.75,
        "subject": 1.08,
        "date": 4.41,
        "when": 1.88,
        "opens": 0.86,
    }
)


# Of vectors that know synonyms and spelling: what a person tells alone is asked for in other words, and its neighbours
# are about something else. Between a fit to everyday facts alone (dense 1.4, own 0.3), which would lose what is asked
# for in the same words, and that of an assistant's chats.
_NOTES: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.6,
        "word": 0.13,
        "own": 1.5,
        "phrase": 1.12,
        "length": -0.5,
        "date": 1.0,
        "when": 1.29,
    }
)


def _sets(at: int) -> dict[Chat, Mapping[str, float]]:
    return {
        chat: MappingProxyType({name: fitted[at] for name, fitted in columns.items()})
        for chat, columns in _FITTED.items()
    }


# Without a set of its own a pair is ranked by that of people, and notes by that of an assistant.
_OWN: Mapping[Kind, Mapping[Chat, Mapping[str, float]]] = MappingProxyType(
    {"contextual": {"pair": _PAIR}, "blended": {"notes": _NOTES}}
)
WEIGHTS: Mapping[Kind, Mapping[Chat, Mapping[str, float]]] = MappingProxyType(
    {kind: MappingProxyType({**_sets(at), **_OWN.get(kind, {})}) for at, kind in enumerate(_KINDS)}
)
BY_VECTOR = ("dense", "reply")
# A vector of a whole text alone, without those of its tokens: words are compared by their spelling then, and what a
# cosine tells beside that, of a model that knows what words mean, is three times what one of spelling tells. That ranks
# conversations as well as weights fitted to them do, left out (docs/internals/decisions/17).
MEANING = 3.0
WHOLE_WEIGHTS: Mapping[Chat, Mapping[str, float]] = MappingProxyType(
    {
        chat: MappingProxyType(
            {name: weight * (MEANING if name in BY_VECTOR else 1.0) for name, weight in columns.items()}
        )
        for chat, columns in WEIGHTS["spelling"].items()
    }
)
# What is left to go by without the question's vector.
LEXICAL_WEIGHTS: Mapping[Chat, Mapping[str, float]] = MappingProxyType(
    {
        chat: MappingProxyType({name: weight for name, weight in columns.items() if name not in BY_VECTOR})
        for chat, columns in WEIGHTS["spelling"].items()
    }
)


def sets_for(kind: Kind, *, by_token: bool) -> Mapping[Chat, Mapping[str, float]]:
    """The sets for what vectors know. `by_token`: whether those of tokens are compared as well."""
    return WEIGHTS[kind] if by_token or kind in ("spelling", "blended") else WHOLE_WEIGHTS


@of_memories
def chat_of(index: OwnerIndex) -> Chat:
    """The kind of chat that most of the owner's memories come from."""
    if 2 * np.count_nonzero(index.with_assistant) > len(index.with_assistant):
        return "assistant"
    return "pair" if index.of_two.any() else "people"


@of_memories
def is_notes(index: OwnerIndex) -> bool:
    """Return whether one person told all memories, and no assistant any."""
    authors, facts = index.conversation.authors, index.conversation.facts
    is_assistants = facts["role"] == index.names.known("assistant")
    return int(np.count_nonzero(authors >= 0)) <= 1 and not bool(is_assistants.any())


@of_memories
def _assisted(index: OwnerIndex) -> tuple[bool, bool]:
    """Return whether any memory comes from a chat with an assistant, and whether all do."""
    some = bool(index.with_assistant.any())
    return some, some and bool(index.with_assistant.all())


def weights_of(index: OwnerIndex, sets: Mapping[Chat, Mapping[str, float]]) -> Weights:
    """The weights of the owner's memories, each of the set that its chat is of."""
    if "notes" in sets and is_notes(index):
        return sets["notes"]
    (some, every), assistant = _assisted(index), sets["assistant"]
    if every:
        return assistant
    others = sets.get("pair", sets["people"]) if index.of_two.any() else sets["people"]
    if not some:
        return others
    mask = index.with_assistant
    return {name: np.where(mask, assistant.get(name, 0.0), others.get(name, 0.0)) for name in {**others, **assistant}}
