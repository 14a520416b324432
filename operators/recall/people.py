"""Attribution of memories to participants: by author, or, for a memory without an author, by the names in its text."""

from collections.abc import Iterable, Sequence

import numpy as np

from recallflow.language import ENGLISH, read_question, table_of
from recallflow.limits import NAMED_MAX
from recallflow.operators.recall.question import Question, find_participants
from recallflow.state.arrays import Column, Mask
from recallflow.state.index import OwnerIndex, cached_per_index
from recallflow.state.rows import language_in


def subjects_of(index: OwnerIndex, question: Question) -> tuple[str, ...]:
    """Return the participants a question is about: those it names, else the one user of an assistant chat if it is in
    the first person."""
    if question.named or not question.first_person:
        return question.named
    author, by_users = index.conversation.facts["author"], written_by(index, "user", "role")
    authors = np.unique(author[by_users])
    if len(authors) != 1 or by_users[author >= 0].all():
        return ()
    return (index.names.strings[authors[0]],)


def written_by(index: OwnerIndex, name: str, column: str = "author") -> Mask:
    """Return a mask (n,) of the memories that an author wrote, or with `column="role"`, all authors of a role."""
    mask: Mask = index.conversation.facts[column] == index.names.number_of(name)
    return mask


def attribution(index: OwnerIndex, written: Mask, name: str) -> Column:
    """Return (n,) 1 for memories attributed to the participant and 0 for memories of others. A memory without an author
    (a fact, a preference, a rule) belongs to a participant it names. If it names none, it counts as the mean of the
    memories with an author. `written` marks the memories that the participant wrote."""
    column, authored = written * 1.0, _authored(index)
    if authored is None:
        return column
    column = impute(column, authored)
    participants = _participants(index)
    # the participant's own name is applied last, and takes precedence
    for one in sorted({*participants, name}, key=lambda other: other == name):
        column[~authored & _naming(index, one, participants)] = one == name
    return column


def attributed_to(index: OwnerIndex, names: Sequence[str], author: str | None, text: str, language: int) -> str | None:
    """Return the one of `names` who wrote a memory or, if it has no author, whom its text names first."""
    if author is not None:
        return author if author in names else None
    known = find_participants(text, {*_participants(index), *names}, table_of(text, [language]))
    return next((name for name in known if name in names), None)


def proximity_of_named(index: OwnerIndex, names: Sequence[str], proximity: Column) -> Column:
    """Return (n,) the graph's proximity, and 1 for a memory without an author that names one of the participants. The
    graph does not detect a name at the beginning of a fact."""
    authored = _authored(index)
    if not names or authored is None:
        return proximity
    participants = _participants(index)
    about = np.logical_or.reduce([_naming(index, name, participants) for name in names])
    return np.where(~authored & about, 1.0, proximity)


@cached_per_index
def _authored(index: OwnerIndex) -> Mask | None:
    """Return a mask (n,) of the memories with an author; None if all have one."""
    found: Mask = index.conversation.facts["author"] >= 0
    return None if found.all() else found


def impute(column: Column, able: Mask | None) -> Column:
    """Return the column with the mean of its known values in place of unknown ones. `able` marks the known values; None
    if all are known."""
    if able is None or able.all() or not able.any():
        return column
    return np.where(able, column, column[able].mean())


def _participants(index: OwnerIndex) -> list[str]:
    return [index.names.strings[author] for author in index.conversation.authors[:NAMED_MAX] if author >= 0]


def _naming(index: OwnerIndex, name: str, participants: Iterable[str]) -> Mask:
    """Return a mask (n,) of the memories that hold every word of the name, or of its first name if that is unique among
    participants."""
    firsts = {other: _first(other) for other in participants}
    alone = all(other == name or first != _first(name) for other, first in firsts.items())
    facts = index.conversation.facts
    languages = np.unique(language_in(facts["flags"][facts["author"] < 0])).tolist()
    words = read_question(_first(name) if alone else name, ENGLISH, languages)
    mask = np.full(index.conversation.size, bool(words))
    for stems in words:
        any_of = np.zeros_like(mask)
        for stem in stems:
            any_of[index.stem_occurrences[stem].positions] = True
        mask &= any_of
    return mask


def _first(name: str) -> str:
    return name.split()[0].lower() if name.split() else ""
