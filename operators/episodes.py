"""Episodes: the grouping of a session's messages, as a function of the earlier log.

A message joins the episode whose span, widened by the gap on both sides, contains its event time. The gap is the
setting `episode_gap_minutes` in `flows/settings.py`. A message that matches two episodes merges them under the id of
the older one. An explicit end excludes later messages regardless of the gap; a late message from before the end still
joins. Open or closed is not stored: it depends on the time of the query.

A fact of a session belongs to an episode without changing its span, because most facts are extracted after the
conversation. It joins the episode within reach, or else the last one started by then, or else the first. Facts of a
session without messages wait in an episode that the first message takes over."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import orjson

from recallflow.events import Event, MemoryAdd, Message
from recallflow.owner import Owner
from recallflow.state.hot_owner import with_changes
from recallflow.state.rows import Entry, EpisodeLogEntry, EpisodeRow, MemoryRow, Vectors
from recallflow.state.scoped import ScopedIndex


def joins_episode(event: Event) -> bool:
    """Return whether an event's memory belongs to an episode: messages, and facts of a session."""
    return isinstance(event, Message) or (isinstance(event, MemoryAdd) and event.session_id is not None)


class JoinedEpisode(NamedTuple):
    """The episode that a memory joined, and all episodes changed by it."""

    episode: EpisodeRow
    changed: list[EpisodeRow]


def join(episodes: Sequence[EpisodeRow], opened: EpisodeRow, gap_ms: int) -> JoinedEpisode:
    """Return the memory's episode among the session's current ones, sorted by time. `opened` is the episode that the
    memory would open: its event time as the span, and its own sequence number. It needs no id yet."""
    at_ms = opened.start_ms
    if opened.of_facts:
        return _join_fact(episodes, opened, gap_ms)
    if episodes and episodes[0].of_facts:  # the only episode of the session
        taken = episodes[0]._replace(start_ms=at_ms, last_ms=at_ms, logged=opened.logged, of_facts=False)
        return JoinedEpisode(taken, [taken])
    earlier, later = _around(episodes, at_ms, gap_ms)
    if earlier is not None and later is not None:
        first, second = sorted((_widen(earlier, opened), later), key=lambda e: e.number)
        kept = first._replace(
            start_ms=min(first.start_ms, second.start_ms),
            last_ms=max(first.last_ms, second.last_ms),
            ended_ms=later.ended_ms,
            logged=first.logged and second.logged,
        )
        return JoinedEpisode(kept, [kept, second._replace(merged_into=kept.number)])
    found = earlier or later
    episode = opened if found is None else _widen(found, opened)
    return JoinedEpisode(episode, [episode])


def _join_fact(episodes: Sequence[EpisodeRow], opened: EpisodeRow, gap_ms: int) -> JoinedEpisode:
    if not episodes or episodes[0].of_facts:
        waiting = _widen(episodes[0], opened) if episodes else opened
        return JoinedEpisode(waiting, [waiting])
    earlier, later = _around(episodes, opened.start_ms, gap_ms)
    return JoinedEpisode(earlier or later or episodes[max(_begun(episodes, opened.start_ms) - 1, 0)], [])


def end(episodes: Sequence[EpisodeRow], at_ms: int, gap_ms: int) -> EpisodeRow | None:
    """Return the episode that an explicit end at `at_ms` closes, in its closed state; None if none is open then."""
    begun = (episodes[place] for place in range(_begun(episodes, at_ms) - 1, -1, -1))
    # Episodes do not overlap, so those before an ended one have ended too.
    for episode in takewhile(lambda one: at_ms <= one.last_ms + gap_ms, begun):
        if episode.ended_ms is None and not episode.of_facts:
            return episode._replace(ended_ms=max(at_ms, episode.last_ms))
    return None


def opening(owner: Owner, memory: Entry | MemoryRow) -> EpisodeRow:
    """Return the episode that a memory opens if it joins none: the span is its event time."""
    return _moment(memory)._replace(id=episode_id(owner, memory.session_id, memory.id))


def join_or_open(standing: Sequence[EpisodeRow], owner: Owner, memory: Entry | MemoryRow, gap_ms: int) -> JoinedEpisode:
    """Return the memory's episode among the session's current ones, or a new one."""
    joined = join(standing, _moment(memory), gap_ms)
    if joined.episode.number != memory.seq:
        return joined
    opened = opening(owner, memory)
    return JoinedEpisode(opened, [opened])


def _moment(memory: Entry | MemoryRow) -> EpisodeRow:
    """Return the episode of a memory's event time without an id, because few memories open an episode."""
    at_ms, of_facts = memory.created_ms, memory.role is None
    return EpisodeRow(memory.seq, "", memory.session_id, at_ms, at_ms, logged=memory.created_logged, of_facts=of_facts)


def is_open(episode: EpisodeRow, now_ms: int, gap_ms: int) -> bool:
    """Return whether a message at `now_ms` could still join the episode."""
    return episode.ended_ms is None and now_ms <= episode.last_ms + gap_ms


def episode_id(owner: Owner, session_id: str | None, opener_id: str) -> str:
    """Return the deterministic id of an episode, from the memory that opened it."""
    named = orjson.dumps([*owner, session_id, opener_id])
    return "ep_" + hashlib.blake2b(named, digest_size=8).hexdigest()


def _around(episodes: Sequence[EpisodeRow], at_ms: int, gap_ms: int) -> tuple[EpisodeRow | None, EpisodeRow | None]:
    """Return the episode that contains or precedes the time, and the one that follows, within reach."""
    place = _begun(episodes, at_ms)
    later = episodes[place] if place < len(episodes) and episodes[place].start_ms - at_ms <= gap_ms else None
    if not place:
        return None, later
    earlier = episodes[place - 1]
    if at_ms > earlier.last_ms + gap_ms or (earlier.ended_ms is not None and at_ms >= earlier.ended_ms):
        return None, later
    # An explicitly ended episode is not merged with a later one.
    return earlier, None if earlier.ended_ms is not None else later


def _begun(episodes: Sequence[EpisodeRow], at_ms: int) -> int:
    """Return the number of episodes that had started at a time."""
    if not episodes or episodes[-1].start_ms <= at_ms:  # most messages come in order
        return len(episodes)
    return bisect_right(episodes, at_ms, key=attrgetter("start_ms"))


def _widen(episode: EpisodeRow, opened: EpisodeRow) -> EpisodeRow:
    return EpisodeRow(  # a hot path; `_replace` takes 50 % longer
        episode.number,
        episode.id,
        episode.session_id,
        min(episode.start_ms, opened.start_ms),
        max(episode.last_ms, opened.last_ms),
        episode.ended_ms,
        episode.merged_into,
        episode.logged and opened.logged,
        episode.of_facts,
        episode.summarised,
    )


def follow_change(
    scoped: ScopedIndex,
    owner: Owner,
    entries: Iterable[tuple[Entry, Vectors | None]],
    removed: Iterable[int],
    ends: Iterable[EpisodeLogEntry],
) -> None:
    """Apply the changes of an event that belong to the index's projects: current memories with vectors, removed
    memories, and ended episodes."""
    index = scoped.index
    index.remove(*removed)
    for entry, vectors in entries:
        if scoped.holds(entry.project_id):
            own = entry._replace(episode=_episode_of(scoped, owner, entry))
            index.add([own], {(entry.seq, entry.version): vectors})
    for mark in ends:
        session = scoped.sessions.setdefault(mark.session_id, [])
        if mark.ended_ms is not None and (ended := end(session, mark.ended_ms, scoped.gap_ms)) is not None:
            _put(scoped, mark.session_id, [ended])


def _episode_of(scoped: ScopedIndex, owner: Owner, entry: Entry) -> int:
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
