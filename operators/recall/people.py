"""Attribution of memories to participants: by author, or, for a memory without an author, by the names in its text."""

from collections.abc import Iterable, Sequence

import numpy as np

from recallflow.language.analysis import read_question, table_of
from recallflow.language.tables import ENGLISH
from recallflow.limits import NAMED_MAX
from recallflow.operators.recall.question import Question, find_participants
from recallflow.state.arrays import Column, Mask
from recallflow.state.index import OwnerIndex, cached_per_index
from recallflow.state.rows import language_in


def subjects_of(index: OwnerIndex, question: Question) -> tuple[str, ...]:
    """Return the participants that a question is about: those it names, or else, for a question in the first person,
    the only user of an assistant chat."""
    if question.named or not question.first_person:
        return question.named
    author, is_users = index.conversation.facts["author"], written_by(index, "user", "role")
    authors = np.unique(author[is_users])
    if len(authors) != 1 or is_users[author >= 0].all():
        return ()
    return (index.names.strings[authors[0]],)


def written_by(index: OwnerIndex, name: str, column: str = "author") -> Mask:
    """Return a mask (n,) of the memories that an author wrote, or with `column="role"`, all authors of a role."""
    mask: Mask = index.conversation.facts[column] == index.names.number_of(name)
    return mask


def attribution(index: OwnerIndex, written: Mask, name: str) -> Column:
    """Return (n,) 1 for memories attributed to the participant and 0 for memories of others. A memory without an author
    (a fact, a preference, a rule) is attributed to a participant that its text names. Without such a name it has the
    mean of the memories with an author. `written` marks the memories that the participant wrote."""
    column, has_author = written * 1.0, _has_author(index)
    if has_author is None:
        return column
    column = impute(column, has_author)
    participants = _participants(index)
    # the participant's own name is applied last, and takes precedence
    for participant in sorted({*participants, name}, key=lambda other: other == name):
        column[~has_author & _is_named(index, participant, participants)] = participant == name
    return column


def attributed_to(index: OwnerIndex, names: Sequence[str], author: str | None, text: str, language: int) -> str | None:
    """Return the author if among `names`. Without an author, return the first of `names` in the text; else None."""
    if author is not None:
        return author if author in names else None
    named = find_participants(text, {*_participants(index), *names}, table_of(text, [language]))
    return next((name for name in named if name in names), None)


def proximity_of_named(index: OwnerIndex, names: Sequence[str], proximity: Column) -> Column:
    """Return (n,) the graph's proximity, and 1 for a memory without an author that names one of the participants. The
    graph does not detect a name at the beginning of a fact."""
    has_author = _has_author(index)
    if not names or has_author is None:
        return proximity
    participants = _participants(index)
    is_about = np.logical_or.reduce([_is_named(index, name, participants) for name in names])
    return np.where(~has_author & is_about, 1.0, proximity)


@cached_per_index
def _has_author(index: OwnerIndex) -> Mask | None:
    """Return a mask (n,) of the memories with an author; None if all have one."""
    found: Mask = index.conversation.facts["author"] >= 0
    return None if found.all() else found


def impute(column: Column, is_known: Mask | None) -> Column:
    """Return the column with the mean of its known values in place of unknown ones. `is_known` marks the known values;
    None means that all are known."""
    if is_known is None or is_known.all() or not is_known.any():
        return column
    return np.where(is_known, column, column[is_known].mean())


def _participants(index: OwnerIndex) -> list[str]:
    return [index.names.strings[author] for author in index.conversation.authors[:NAMED_MAX] if author >= 0]


def _is_named(index: OwnerIndex, name: str, participants: Iterable[str]) -> Mask:
    """Return a mask (n,) of the memories that hold every word of the name, or of its first name if that is unique among
    participants."""
    first_names = {other: _first(other) for other in participants}
    is_unique = all(other == name or first != _first(name) for other, first in first_names.items())
    facts = index.conversation.facts
    languages = np.unique(language_in(facts["flags"][facts["author"] < 0])).tolist()
    words = read_question(_first(name) if is_unique else name, ENGLISH, languages)
    mask = np.full(index.conversation.size, bool(words))
    for stems in words:
        has_any = np.zeros_like(mask)
        for stem in stems:
            has_any[index.stem_occurrences[stem].positions] = True
        mask &= has_any
    return mask


def _first(name: str) -> str:
    return name.split()[0].lower() if name.split() else ""
