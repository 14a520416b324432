"""Detection of chats with an assistant."""

from collections.abc import Mapping

import numpy as np

from recallflow.state.arrays import Array, Interner, Mask

MACHINES = ("assistant", "system", "tool")  # roles of non-persons


def people(facts: Mapping[str, Array], names: Interner) -> Mask:
    wrote: Mask = facts["author"] >= 0
    return wrote & ~np.isin(facts["role"], [names.known(role) for role in MACHINES])


def with_assistant(facts: Mapping[str, Array], names: Interner) -> Mask:
    """Return a mask of the memories from chats of one person with an assistant.

    The speakers of a session decide: several people, or one person and an assistant. Memories without a session, and
    sessions with a single person so far, count like most of the owner's other memories. If no session decides, all
    authors do: a single person writes notes to an assistant."""
    sessions, persons = facts["session"] + 1, people(facts, names)
    count = int(sessions.max(initial=0)) + 1
    of, wrote = sessions[persons], facts["author"][persons]
    one = np.zeros(count, wrote.dtype)
    one[of] = wrote  # any one person of each session; other persons make it a chat of several
    several = np.bincount(of[wrote != one.take(of)], minlength=count) > 0
    assisted = ~several & (np.bincount(sessions[(facts["author"] >= 0) & ~persons], minlength=count) > 0)
    several[0] = assisted[0] = False  # no session
    found: Mask = assisted.take(sessions)
    between_people = several.take(sessions)
    clear, agreed = found | between_people, int(found.sum()) - int(between_people.sum())
    found[~clear] = agreed >= 0 if clear.any() else bool((wrote == wrote[:1]).all())
    return found
