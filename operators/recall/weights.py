"""Fitted weights of the semantic signal's columns, by embedder kind and kind of chat.

People in a chat write messages of similar length about themselves. In a chat with an assistant, its answers are ten
times as long and say little about the user. The weights come from a softmax regression over development conversations
of every kind (benchmarks/fit_weights.py), rounded. Only ratios within a set matter; the scale of the sum is that of
log-odds."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from recallflow.embedder import Kind
from recallflow.state.arrays import Column
from recallflow.state.index import OwnerIndex, cached_per_index

# "pair": two people in a chat. "notes": one person alone, so that neighbours are not replies. "unspaced notes": notes,
# for a question in a script without spaces.
Chat = Literal["people", "pair", "assistant", "notes", "unspaced notes"]
Weights = Mapping[str, float | Column]  # by column; (n,) if an owner's memories are of two kinds
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
        # A word of the answered question counts half as much as in `own`. Chosen: the data has few cases.
        "borrowed": (1.0, 1.0, 1.0, 1.0),
        "length": (-0.5, -0.6, -0.44, -0.62),
        "assistant": (-2.37, -2.13, -2.19, -1.97),
        "date": (1.0, 1.0, 1.0, 1.0),  # ten questions of the data have a date, too few for a fit
        "when": (1.29, 1.2, 1.02, 1.3),
        "opens": (0.53, 0.49, 0.57, 0.62),
    },
}
# A contextual token model ranks chats of two people better with a separate set. Spelling and static vectors rank them
# equally well with the set "people" (docs/internals/recall-experiments.md).
_PAIR: Mapping[str, float] = {
    "dense": 0.1, "reply": 0.03, "word": 0.47, "word_before": 0.73, "own": 0.0, "window": 10.18, "near": -1.07,
    "episode": 0.37, "phrase": 0.68, "answers": 1.58, "length": -0.19, "speaker": 1.16, "speaker_of_two": 1.59,
    "speaker_asks": -0.75, "subject": 1.08, "date": 4.41, "when": 1.88, "opens": 0.86,
}  # fmt: skip
Sets = Mapping[Chat, Mapping[str, float]]


def _notes(dense: float, word: float, own: float) -> Mapping[str, float]:
    return {"dense": dense, "word": word, "own": own, "phrase": 1.12, "length": -0.5, "date": 1.0, "when": 1.29}


# Without a separate set, "pair" uses "people", and both kinds of notes use "assistant".
#
# Questions about notes use other words than the notes do, and neighbours are unrelated, so that vectors count more than
# in a chat. The values lie between a fit to everyday facts alone, which would lose exact word matches, and the set
# "assistant". Spelling vectors have no separate set. Words of scripts without spaces are pairs of characters, which
# match more often: the blend's vectors count less there.
_OWN: Mapping[Kind, Sets] = {
    "static": {"notes": _notes(0.2, 0.36, 1.5)},
    "contextual": {"pair": _PAIR, "notes": _notes(0.5, 0.4, 1.2)},
    "blended": {"notes": _notes(0.8, 0.13, 0.75), "unspaced notes": _notes(0.6, 0.13, 1.5)},
}
WEIGHTS: Mapping[Kind, Sets] = {
    kind: {chat: {name: fitted[at] for name, fitted in columns.items()} for chat, columns in _FITTED.items()}
    | dict(_OWN.get(kind, {}))
    for at, kind in enumerate(_KINDS)
}
BY_VECTOR = ("dense", "reply")
# For an embedder with text vectors but no token vectors: words are compared by spelling, and the cosine of a semantic
# model has three times the weight of a spelling cosine. This ranks held-out conversations as well as weights fitted to
# them (docs/internals/decisions/17).
MEANING = 3.0
WHOLE_WEIGHTS: Sets = {
    chat: {name: weight * (MEANING if name in BY_VECTOR else 1.0) for name, weight in columns.items()}
    for chat, columns in WEIGHTS["spelling"].items()
} | {"notes": _notes(0.6, 0.13, 1.2)}
# The columns that need no question vector.
LEXICAL_WEIGHTS: Sets = {
    chat: {name: weight for name, weight in columns.items() if name not in BY_VECTOR}
    for chat, columns in WEIGHTS["spelling"].items()
}


def sets_for(kind: Kind, *, by_token: bool) -> Sets:
    return WEIGHTS[kind] if by_token or kind in ("spelling", "blended") else WHOLE_WEIGHTS


@cached_per_index
def chat_of(index: OwnerIndex) -> Chat:
    """Return the kind of chat of most of the owner's memories."""
    if 2 * np.count_nonzero(index.is_assistant_chat) > len(index.is_assistant_chat):
        return "assistant"
    return "pair" if index.is_chat_of_two.any() else "people"


@cached_per_index
def is_notes(index: OwnerIndex) -> bool:
    """Return whether at most one person wrote memories, and no assistant did."""
    authors, facts = index.conversation.authors, index.conversation.facts
    is_assistants = facts["role"] == index.names.number_of("assistant")
    return int(np.count_nonzero(authors >= 0)) <= 1 and not bool(is_assistants.any())


@cached_per_index
def _assisted(index: OwnerIndex) -> tuple[bool, bool]:
    """Return whether any memory comes from a chat with an assistant, and whether all of them do."""
    some = bool(index.is_assistant_chat.any())
    return some, some and bool(index.is_assistant_chat.all())


def has_one_person(index: OwnerIndex) -> bool:
    """Return whether at most one person wrote memories, alone or in chats with an assistant."""
    return is_notes(index) or _assisted(index)[1]


def weights_of(index: OwnerIndex, sets: Sets, *, is_spaced: bool = True) -> Weights:
    """Return the weights of the owner's memories, each from the set of its chat. `is_spaced` tells whether the question
    is in a script with spaces between words."""
    if "notes" in sets and is_notes(index):
        return sets["notes"] if is_spaced else sets.get("unspaced notes", sets["assistant"])
    (some, every), assistant = _assisted(index), sets["assistant"]
    if every:
        return assistant
    others = sets.get("pair", sets["people"]) if index.is_chat_of_two.any() else sets["people"]
    if not some:
        return others
    mask = index.is_assistant_chat
    return {name: np.where(mask, assistant.get(name, 0.0), others.get(name, 0.0)) for name in {**others, **assistant}}
