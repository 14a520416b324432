"""Which memories come from a chat with an assistant."""

from collections.abc import Mapping

import numpy as np

from recallflow.state.arrays import Array, Mask
from recallflow.state.interner import Interner

MACHINES = ("assistant", "system", "tool")  # roles of what is no person


def people(facts: Mapping[str, Array], names: Interner) -> Mask:
    """Whether a person wrote each memory."""
    wrote: Mask = facts["author"] >= 0
    return wrote & ~np.isin(facts["role"], [names.known(role) for role in MACHINES])


def with_assistant(facts: Mapping[str, Array], names: Interner) -> Mask:
    """Whether each memory comes from a chat of one person with an assistant.

    A session tells by who speaks in it: several people, or one and an assistant. One in which a single person has
    spoken so far, and what stands outside any session (a fact, say), counts as most of the owner's other memories do.
    Where no session tells, all who wrote decide: a single person writes notes to an assistant.
    """
    sessions, persons = facts["session"] + 1, people(facts, names)
    count = int(sessions.max(initial=0)) + 1
    # A pair as one number: NumPy sorts pairs twenty times as slowly.
    authors = int(facts["author"].max(initial=0)) + 1
    of, wrote = np.divmod(np.unique(sessions[persons] * np.int64(authors) + facts["author"][persons]), authors)
    several = np.bincount(of, minlength=count) > 1
    assisted = ~several & (np.bincount(sessions[(facts["author"] >= 0) & ~persons], minlength=count) > 0)
    several[0] = assisted[0] = False  # no session
    found: Mask = assisted.take(sessions)
    between_people = several.take(sessions)
    clear, agreed = found | between_people, int(found.sum()) - int(between_people.sum())
    found[~clear] = agreed >= 0 if clear.any() else len(np.unique(wrote)) <= 1
    return found
