"""Zep-style episodes: which messages of a session belong together, as a function of what came before.

A message joins the episode of its session whose span, widened by the gap to both sides, holds its event time. Where
that is true of two, the message bridges them: they become one, under the id of the one applied first. An explicit
end keeps later messages out, whatever the gap; a late message from before the end still finds its episode. Open or
closed is no state: it follows from the asking time.

A fact told of a session belongs to an episode too, and shapes none: most are read out of a conversation when it is long
over. It joins the episode in whose reach it is, or else the last that had begun by then, or else the first. Facts of a
session in which nothing was said yet wait together, in an episode that its first message takes over.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import orjson

from recallflow.events import Event, MemoryAdd, Message
from recallflow.owner import Owner
from recallflow.state.rows import Entry, Episode, MemoryRow


def joins_episode(event: Event) -> bool:
    """Whether an event brings a memory that belongs to an episode: all that was said, and facts told of a session."""
    return isinstance(event, Message) or (isinstance(event, MemoryAdd) and event.session_id is not None)


class Joined(NamedTuple):
    """The episode that a memory joined, and every episode that the joining changed."""

    episode: Episode
    changed: list[Episode]


def join(episodes: Sequence[Episode], opened: Episode, gap_ms: int) -> Joined:
    """Finds the memory's episode among the session's standing ones, sorted by time.

    `opened` is the episode it would open: a span of just its event time, numbered by its own sequence number. It needs
    no id yet.
    """
    at_ms = opened.start_ms
    if opened.of_facts:
        return _join_fact(episodes, opened, gap_ms)
    if episodes and episodes[0].of_facts:  # the only one there is
        taken = episodes[0]._replace(start_ms=at_ms, last_ms=at_ms, logged=opened.logged, of_facts=False)
        return Joined(taken, [taken])
    earlier, later = _around(episodes, at_ms, gap_ms)
    if earlier is not None and later is not None:
        first, second = sorted((_widen(earlier, opened), later), key=lambda e: e.number)
        kept = first._replace(
            start_ms=min(first.start_ms, second.start_ms),
            last_ms=max(first.last_ms, second.last_ms),
            ended_ms=later.ended_ms,
            logged=first.logged and second.logged,
        )
        return Joined(kept, [kept, second._replace(merged_into=kept.number)])
    found = earlier or later
    episode = opened if found is None else _widen(found, opened)
    return Joined(episode, [episode])


def _join_fact(episodes: Sequence[Episode], opened: Episode, gap_ms: int) -> Joined:
    if not episodes or episodes[0].of_facts:
        waiting = _widen(episodes[0], opened) if episodes else opened
        return Joined(waiting, [waiting])
    earlier, later = _around(episodes, opened.start_ms, gap_ms)
    return Joined(earlier or later or episodes[max(_begun(episodes, opened.start_ms) - 1, 0)], [])


def end(episodes: Sequence[Episode], at_ms: int, gap_ms: int) -> Episode | None:
    """The episode that an explicit end at `at_ms` closes, closed; None where none is open then."""
    begun = (episodes[place] for place in range(_begun(episodes, at_ms) - 1, -1, -1))
    # Of those behind one that was over by then, each was over before.
    for episode in takewhile(lambda one: at_ms <= one.last_ms + gap_ms, begun):
        if episode.ended_ms is None and not episode.of_facts:
            return episode._replace(ended_ms=max(at_ms, episode.last_ms))
    return None


def opening(owner: Owner, memory: Entry | MemoryRow) -> Episode:
    """The episode that a memory opens where it joins none: a span of just its event time."""
    return _moment(memory)._replace(id=episode_id(owner, memory.session_id, memory.id))


def join_or_open(standing: Sequence[Episode], owner: Owner, memory: Entry | MemoryRow, gap_ms: int) -> Joined:
    """The memory's episode among the session's standing ones, or the one it opens."""
    joined = join(standing, _moment(memory), gap_ms)
    if joined.episode.number != memory.seq:
        return joined
    opened = opening(owner, memory)
    return Joined(opened, [opened])


def _moment(memory: Entry | MemoryRow) -> Episode:
    """The span of just a memory's event time, still without an id: few memories open an episode."""
    at_ms, of_facts = memory.created_ms, memory.role is None
    return Episode(memory.seq, "", memory.session_id, at_ms, at_ms, logged=memory.created_logged, of_facts=of_facts)


def is_open(episode: Episode, now_ms: int, gap_ms: int) -> bool:
    """Whether a message at `now_ms` could still continue the episode."""
    return episode.ended_ms is None and now_ms <= episode.last_ms + gap_ms


def episode_id(owner: Owner, session_id: str | None, opener_id: str) -> str:
    """The same log gives the same ids: an episode is named after the memory that opened it."""
    named = orjson.dumps([*owner, session_id, opener_id])
    return "ep_" + hashlib.blake2b(named, digest_size=8).hexdigest()


def _around(episodes: Sequence[Episode], at_ms: int, gap_ms: int) -> tuple[Episode | None, Episode | None]:
    """The episodes that the moment belongs to: one it lies in or behind, and one it lies before. Episodes of a session
    do not overlap, so there is at most one of each."""
    place = _begun(episodes, at_ms)
    later = episodes[place] if place < len(episodes) and episodes[place].start_ms - at_ms <= gap_ms else None
    if not place or not _accepts(earlier := episodes[place - 1], at_ms, gap_ms):
        return None, later
    # What was ended explicitly is not joined to what came after the end.
    return earlier, None if earlier.ended_ms is not None else later


def _begun(episodes: Sequence[Episode], at_ms: int) -> int:
    """How many of the episodes, by time, had begun at a moment."""
    if not episodes or episodes[-1].start_ms <= at_ms:  # most messages come in order
        return len(episodes)
    return bisect_right(episodes, at_ms, key=attrgetter("start_ms"))


def _accepts(episode: Episode, at_ms: int, gap_ms: int) -> bool:
    return at_ms <= episode.last_ms + gap_ms and (episode.ended_ms is None or at_ms < episode.ended_ms)


def _widen(episode: Episode, opened: Episode) -> Episode:
    return Episode(  # with every message: `_replace` takes half as long again
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
