"""Updates of an index of some projects, equal to building it for a past moment: a memory joins the episodes of its own
projects, independent of other projects' messages in its session."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recallflow.operators.episodes import end, join, opening
from recallflow.owner import Owner
from recallflow.state.hot_owner import with_changes
from recallflow.state.rows import Entry, EpisodeMark, EpisodeRow, Vectors
from recallflow.state.scoped import ScopedIndex


class Changed(NamedTuple):
    """The changes of one event to an owner: current memories with vectors, removed memories, and ended episodes."""

    entries: Sequence[tuple[Entry, Vectors | None]]
    removed: Sequence[int]
    ends: Iterable[EpisodeMark]


def follow_change(scoped: ScopedIndex, owner: Owner, changed: Changed) -> None:
    """Apply the changes of an event that belong to the index's projects."""
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
    """Return the episode number of a memory in the index."""
    slot = scoped.index.slot(entry.seq)
    if slot is not None:
        return int(scoped.index.facts["episode"][slot])
    if entry.episode < 0:
        return entry.episode
    joined = join(scoped.sessions.get(entry.session_id, []), opening(owner, entry), scoped.gap_ms)
    if joined.changed:
        _put(scoped, entry.session_id, joined.changed)
    return joined.episode.number


def _put(scoped: ScopedIndex, session_id: str | None, changed: list[EpisodeRow]) -> None:
    scoped.sessions[session_id] = with_changes(scoped.sessions.get(session_id, []), changed)
    for episode in changed:
        scoped.index.put_episode(episode)
