"""Keeps an index of some projects up to date, with the code that builds it anew for a past moment: a memory joins the
episodes of its own projects, whatever the others said in its session."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recallflow.operators.episodes import end, join, opening
from recallflow.owner import Owner
from recallflow.state.hot_owner import with_changes
from recallflow.state.rows import Entry, Episode, EpisodeMark, Vectors
from recallflow.state.scoped_index import ScopedIndex


class Changed(NamedTuple):
    """What one event changed of an owner: memories that are there now, with their vectors, those that are gone, and
    where it ended episodes."""

    entries: Sequence[tuple[Entry, Vectors | None]]
    removed: Sequence[int]
    ends: Iterable[EpisodeMark]


def follow_change(scoped: ScopedIndex, owner: Owner, changed: Changed) -> None:
    """Takes in what an event changed, as far as it is of the index's projects."""
    index = scoped.index
    index.remove(*changed.removed)
    for entry, vectors in changed.entries:
        if scoped.holds(entry.project_id):
            own = entry._replace(episode=_episode_of(scoped, owner, entry))
            index.add([own], {(entry.seq, entry.version): vectors})
    for mark in changed.ends:
        session = scoped.sessions.setdefault(mark.session_id, [])
        if mark.ended_ms is not None and (ended := end(session, mark.ended_ms, scoped.gap_ms)) is not None:
            _put(scoped, mark.session_id, [ended])


def _episode_of(scoped: ScopedIndex, owner: Owner, entry: Entry) -> int:
    """The number of a memory's episode: the one it is in, or, of a new one, the one that it joins."""
    slot = scoped.index.slot(entry.seq)
    if slot is not None:
        return int(scoped.index.facts["episode"][slot])
    if entry.episode < 0:
        return entry.episode
    joined = join(scoped.sessions.get(entry.session_id, []), opening(owner, entry), scoped.gap_ms)
    if joined.changed:
        _put(scoped, entry.session_id, joined.changed)
    return joined.episode.number


def _put(scoped: ScopedIndex, session_id: str | None, changed: list[Episode]) -> None:
    scoped.sessions[session_id] = with_changes(scoped.sessions.get(session_id, []), changed)
    for episode in changed:
        scoped.index.put_episode(episode)
