"""Whose a memory is, or whom it is about: its author's, or, where nobody said it, theirs whom its words name."""

from collections.abc import Iterable, Sequence

import numpy as np

from recallflow.language import ENGLISH, read_question, table_of
from recallflow.limits import NAMED_MAX
from recallflow.operators.recall.question import Question, named_in
from recallflow.state.arrays import Column, Mask
from recallflow.state.index import OwnerIndex, of_memories
from recallflow.state.rows import language_in


def asked_about(index: OwnerIndex, question: Question) -> tuple[str, ...]:
    """Whom a question is about: the participants it names; or, where it names none and says I, the one user of a chat
    with an assistant."""
    if question.named or not question.first_person:
        return question.named
    written, said = index.conversation.facts["author"], users(index)
    authors = np.unique(written[said])
    if len(authors) != 1 or said[written >= 0].all():
        return ()
    return (index.names.strings[authors[0]],)


def users(index: OwnerIndex) -> Mask:
    """(n,) whether a user said it."""
    mask: Mask = index.conversation.facts["role"] == index.names.known("user")
    return mask


def said_by(index: OwnerIndex, name: str) -> Mask:
    """(n,) whether this participant wrote the memory."""
    mask: Mask = index.conversation.facts["author"] == index.names.known(name)
    return mask


def theirs(index: OwnerIndex, said: Mask, name: str) -> Column:
    """(n,) 1 where a memory is the participant's, who said some of them: 0 where it is another's. A memory without an
    author (a fact, a preference, a rule) is theirs if it names them; if it names nobody, it cannot be told, and counts
    as memories with an author do on average."""
    column, authored = said * 1.0, _authored(index)
    if authored is None:
        return column
    column = filled(column, authored)
    participants = _participants(index)
    for one in sorted({*participants, name}, key=lambda other: other == name):  # theirs is the last word
        column[~authored & _naming(index, one, participants)] = one == name
    return column


def whose(index: OwnerIndex, names: Sequence[str], author: str | None, text: str, language: int) -> str | None:
    """Which of the participants wrote a memory; or, where nobody did, which of them its text names first."""
    if author is not None:
        return author if author in names else None
    known = named_in(text, {*_participants(index), *names}, table_of(text, [language]))
    return next((name for name in known if name in names), None)


def nearness(index: OwnerIndex, names: Sequence[str], proximity: Column) -> Column:
    """(n,) the nearness that the graph tells, and 1 for a memory without an author that names one of the participants:
    facts begin with a name, where the graph takes none for one."""
    authored = _authored(index)
    if not names or authored is None:
        return proximity
    participants = _participants(index)
    about = np.logical_or.reduce([_naming(index, name, participants) for name in names])
    return np.where(~authored & about, 1.0, proximity)


@of_memories
def _authored(index: OwnerIndex) -> Mask | None:
    """(n,) whether somebody wrote each place's memory; None where somebody wrote all."""
    found: Mask = index.conversation.facts["author"] >= 0
    return None if found.all() else found


def filled(column: Column, able: Mask | None) -> Column:
    """The column, with its mean over memories that can have it in place of what the others cannot have; `able`: None
    where all can."""
    if able is None or able.all() or not able.any():
        return column
    return np.where(able, column, column[able].mean())


def _participants(index: OwnerIndex) -> list[str]:
    return [index.names.strings[author] for author in index.conversation.authors[:NAMED_MAX] if author >= 0]


def _naming(index: OwnerIndex, name: str, participants: Iterable[str]) -> Mask:
    """(n,) whether the memory's words hold the name, or the first one of it where no other participant bears that."""
    firsts = {other: _first(other) for other in participants}
    alone = all(other == name or first != _first(name) for other, first in firsts.items())
    facts = index.conversation.facts
    languages = np.unique(language_in(facts["flags"][facts["author"] < 0])).tolist()
    return _holding(index, read_question(_first(name) if alone else name, ENGLISH, languages))


def _first(name: str) -> str:
    return name.split()[0].lower() if name.split() else ""


def _holding(index: OwnerIndex, words: Sequence[Iterable[str]]) -> Mask:
    """(n,) whether the memory holds all of some words, each in any of its stems; of no words, none does."""
    mask = np.full(index.conversation.size, bool(words))
    for stems in words:
        any_of = np.zeros_like(mask)
        for stem in stems:
            any_of[index.standing[stem].places] = True
        mask &= any_of
    return mask
