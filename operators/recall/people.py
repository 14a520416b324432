"""Whose a memory is: its author's, or, where nobody said it, theirs whom its words name."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from recallflow.language import ENGLISH, read_question
from recallflow.limits import NAMED_MAX
from recallflow.operators.recall.bm25 import live
from recallflow.state.arrays import Column
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import LANGUAGE_SHIFT

Mask = npt.NDArray[np.bool_]


def said_by(index: OwnerIndex, name: str) -> Mask:
    """(n,) whether this participant wrote the memory."""
    mask: Mask = index.conversation.facts["author"] == index.names.known(name)
    return mask


def theirs(index: OwnerIndex, said: Mask, name: str) -> Column:
    """(n,) 1 where a memory is the participant's, who said some of them: 0 where it is another's. A memory without an
    author (a fact, a preference, a rule) is theirs if it names them; if it names nobody, it cannot be told, and counts
    as memories with an author do on average."""
    column, authored = said * 1.0, index.conversation.facts["author"] >= 0
    if authored.all():
        return column
    column = filled(column, authored)
    names = [index.names.strings[author] for author in index.conversation.authors[:NAMED_MAX] if author >= 0]
    firsts = Counter(_first(one) for one in names)
    languages = np.unique(index.conversation.facts["flags"][~authored] >> LANGUAGE_SHIFT).tolist()
    for one in sorted({*names, name}, key=lambda other: other == name):  # theirs is the last word
        short = _first(one) if firsts[_first(one)] <= 1 else one
        column[~authored & _holding(index, read_question(short, ENGLISH, languages))] = one == name
    return column


def filled(column: Column, able: Mask) -> Column:
    """The column, with its mean over memories that can have it in place of what the others cannot have."""
    if able.all() or not able.any():
        return column
    return np.where(able, column, column[able].mean())


def _first(name: str) -> str:
    return name.split()[0].lower() if name.split() else ""


def _holding(index: OwnerIndex, words: Sequence[Iterable[str]]) -> Mask:
    """(n,) whether the memory holds all of some words, each in any of its stems; of no words, none does."""
    mask = np.full(index.conversation.size, bool(words))
    for stems in words:
        any_of = np.zeros_like(mask)
        for stem in stems:
            any_of[live(index.conversation, index.words.occurrences(stem))] = True
        mask &= any_of
    return mask
