"""Episodes: the grouping of a session's messages, as a function of the earlier log.

A message joins the episode whose span, widened by the gap on both sides, contains its event time. The gap is the
setting `episode_gap_minutes`. A message that matches two episodes merges them under the id of the older one. An
explicit end excludes messages after it, even within the gap; a late message from before the end still joins. Whether an
episode is open is not stored, because it depends on the time of the query.

A fact of a session belongs to an episode without changing its span, because most facts are extracted after the
conversation. It joins the episode whose widened span contains its event time; otherwise the last episode that started
before it; otherwise the first. Facts of a session without messages are in an episode that its first message takes over.

The functions take the current episodes of one session, sorted by time, without overlaps."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import orjson

from recallflow.owner import Owner
from recallflow.state.hot_owner import with_changes
from recallflow.state.rows import Entry, EpisodeLogEntry, EpisodeRow, MemoryRow, Vectors
from recallflow.state.scoped import ScopedIndex


class JoinedEpisode(NamedTuple):
    """The episode that a memory joined, and all episodes changed by it."""

    episode: EpisodeRow
    changed: list[EpisodeRow]


def join(episodes: Sequence[EpisodeRow], candidate: EpisodeRow, gap_ms: int) -> JoinedEpisode:
    """Return the episode that a memory joins. `candidate` is the episode that the memory would open: its span is the
    memory's event time, and its number the memory's `seq`. It needs no id."""
    at_ms = candidate.start_ms
    if candidate.of_facts:
        return _join_fact(episodes, candidate, gap_ms)
    if episodes and episodes[0].of_facts:  # the only episode of the session
        taken_over = episodes[0]._replace(start_ms=at_ms, last_ms=at_ms, logged=candidate.logged, of_facts=False)
        return JoinedEpisode(taken_over, [taken_over])
    earlier, later = _within_gap(episodes, at_ms, gap_ms)
    if earlier is not None and later is not None:
        first, second = sorted((_widen(earlier, candidate), later), key=lambda e: e.number)
        merged = first._replace(
            start_ms=min(first.start_ms, second.start_ms),
            last_ms=max(first.last_ms, second.last_ms),
            ended_ms=later.ended_ms,
            logged=first.logged and second.logged,
        )
        return JoinedEpisode(merged, [merged, second._replace(merged_into=merged.number)])
    only = earlier or later
    episode = candidate if only is None else _widen(only, candidate)
    return JoinedEpisode(episode, [episode])


def _join_fact(episodes: Sequence[EpisodeRow], candidate: EpisodeRow, gap_ms: int) -> JoinedEpisode:
    if not episodes or episodes[0].of_facts:
        of_facts = _widen(episodes[0], candidate) if episodes else candidate
        return JoinedEpisode(of_facts, [of_facts])
    earlier, later = _within_gap(episodes, candidate.start_ms, gap_ms)
    return JoinedEpisode(earlier or later or episodes[max(_started_count(episodes, candidate.start_ms) - 1, 0)], [])


def end(episodes: Sequence[EpisodeRow], at_ms: int, gap_ms: int) -> EpisodeRow | None:
    """Return the episode that an explicit end at `at_ms` closes, in its closed state; None if none is open then."""
    started = (episodes[number] for number in range(_started_count(episodes, at_ms) - 1, -1, -1))
    # Episodes do not overlap, so all episodes before one outside of the gap are outside too.
    for episode in takewhile(lambda one: at_ms <= one.last_ms + gap_ms, started):
        if episode.ended_ms is None and not episode.of_facts:
            return episode._replace(ended_ms=max(at_ms, episode.last_ms))
    return None


def opened_episode(owner: Owner, memory: Entry | MemoryRow) -> EpisodeRow:
    """Return the episode that a memory opens if it joins none. Its span is the memory's event time."""
    return _candidate(memory)._replace(id=episode_id(owner, memory.session_id, memory.id))


def join_or_open(episodes: Sequence[EpisodeRow], owner: Owner, memory: Entry | MemoryRow, gap_ms: int) -> JoinedEpisode:
    joined = join(episodes, _candidate(memory), gap_ms)
    if joined.episode.number != memory.seq:
        return joined
    opened = opened_episode(owner, memory)
    return JoinedEpisode(opened, [opened])


def _candidate(memory: Entry | MemoryRow) -> EpisodeRow:
    """Return the episode that a memory would open, without an id: an id is costly, and few memories open an episode."""
    at_ms, of_facts = memory.created_ms, memory.role is None
    return EpisodeRow(memory.seq, "", memory.session_id, at_ms, at_ms, logged=memory.created_logged, of_facts=of_facts)


def is_open(episode: EpisodeRow, now_ms: int, gap_ms: int) -> bool:
    """Return whether a message at `now_ms` could still join the episode."""
    return episode.ended_ms is None and now_ms <= episode.last_ms + gap_ms


def episode_id(owner: Owner, session_id: str | None, opener_id: str) -> str:
    """Return the deterministic id of an episode, from the memory that opened it."""
    names = orjson.dumps([*owner, session_id, opener_id])
    return "ep_" + hashlib.blake2b(names, digest_size=8).hexdigest()


def _within_gap(episodes: Sequence[EpisodeRow], at_ms: int, gap_ms: int) -> tuple[EpisodeRow | None, EpisodeRow | None]:
    """Return the episode that contains or precedes a time, and the next one; None for one that is outside the gap."""
    started = _started_count(episodes, at_ms)
    later = episodes[started] if started < len(episodes) and episodes[started].start_ms - at_ms <= gap_ms else None
    if not started:
        return None, later
    earlier = episodes[started - 1]
    if at_ms > earlier.last_ms + gap_ms or (earlier.ended_ms is not None and at_ms >= earlier.ended_ms):
        return None, later
    # An explicitly ended episode is not merged with a later one.
    return earlier, None if earlier.ended_ms is not None else later


def _started_count(episodes: Sequence[EpisodeRow], at_ms: int) -> int:
    """Return the number of episodes that had started at a time."""
    if not episodes or episodes[-1].start_ms <= at_ms:  # most messages come in order
        return len(episodes)
    return bisect_right(episodes, at_ms, key=attrgetter("start_ms"))


def _widen(episode: EpisodeRow, candidate: EpisodeRow) -> EpisodeRow:
    return EpisodeRow(  # a hot path; `_replace` takes 50 % longer
        episode.number,
        episode.id,
        episode.session_id,
        min(episode.start_ms, candidate.start_ms),
        max(episode.last_ms, candidate.last_ms),
        episode.ended_ms,
        episode.merged_into,
        episode.logged and candidate.logged,
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
    """Apply an event's changes to a project index: memories with vectors, removed memories, ended episodes."""
    index = scoped.index
    index.remove(*removed)
    for entry, vectors in entries:
        if scoped.holds(entry.project_id):
            own = entry._replace(episode=_episode_of(scoped, owner, entry))
            index.add([own], {(entry.seq, entry.version): vectors})
    for explicit in ends:
        session = scoped.sessions.setdefault(explicit.session_id, [])
        if explicit.ended_ms is not None and (ended := end(session, explicit.ended_ms, scoped.gap_ms)) is not None:
            _put(scoped, explicit.session_id, [ended])


def _episode_of(scoped: ScopedIndex, owner: Owner, entry: Entry) -> int:
    slot = scoped.index.slot(entry.seq)
    if slot is not None:
        return int(scoped.index.facts["episode"][slot])
    if entry.episode < 0:
        return entry.episode
    joined = join(scoped.sessions.get(entry.session_id, []), opened_episode(owner, entry), scoped.gap_ms)
    if joined.changed:
        _put(scoped, entry.session_id, joined.changed)
    return joined.episode.number


def _put(scoped: ScopedIndex, session_id: str | None, changed: list[EpisodeRow]) -> None:
    scoped.sessions[session_id] = with_changes(scoped.sessions.get(session_id, []), changed)
    for episode in changed:
        scoped.index.put_episode(episode)
