"""Triggers of summaries: the end of an episode, and the growth of a category.

An episode ends when the next one of its session starts, or by an event. A category is summarised at 5, 10, 20 and 40
memories. Large categories are not counted: after that, the hash of a memory's id triggers a summary for one memory in
40."""

from collections.abc import Iterator
from zlib import crc32

from recallflow.enrichment import ShownMemory
from recallflow.events import EpisodeEnd, Event
from recallflow.operators.enrichment.requests_shown import SHOWN_CHARACTERS, is_blank, shown
from recallflow.operators.graph.write import Remembered
from recallflow.operators.view import View
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.rows import Episode, MemoryRow

EPISODE_MESSAGES = 50  # the newest messages of an episode
EPISODE_CHARACTERS = 20_000
LEAST_MESSAGES = 2  # a single message needs no summary
CATEGORY_MEMORIES = 40  # the newest memories of a category
GROWN = (5, 10, 20, 40)


def ended_episode(view: View, event: Event) -> Episode | None:
    """Return the episode that an event ended, if any."""
    for session_id, (changed, *_) in view.changed_episodes.items():
        if isinstance(event, EpisodeEnd):
            return changed
        before = next(iter(view.episodes(session_id)[-1:]), None)
        is_opened = changed.number == view.newest and not changed.of_facts
        if is_opened and before is not None and before.last_ms < changed.start_ms:
            return None if before.ended_ms is not None or before.of_facts else before
    return None


def messages(view: View, episode: Episode) -> list[ShownMemory]:
    """Return the newest messages of an episode in order, within limits; none if there are too few."""
    seqs = view.graph.members(node_key(EPISODE_KIND, episode.id), 2 * EPISODE_MESSAGES)
    spoken = [entry for entry in view.entries_of(seqs) if entry.role is not None]
    spoken.sort(key=lambda entry: (-entry.created_ms, -entry.seq))
    kept = [*_within(view.rows(spoken[:EPISODE_MESSAGES]), EPISODE_CHARACTERS)]
    return kept[::-1] if len(kept) >= LEAST_MESSAGES else []


def grown_category(view: View, memory: Remembered) -> str | None:
    """Return the category that the memory joined, if a summary is due."""
    row = memory.row
    if row.category is None or (row.version and view.row(row.id, row.version - 1).category == row.category):
        return None
    others = [seq for seq in _members(view, row.category, GROWN[-1] + 1) if seq != row.seq]
    count = 1 + len(others)
    due = count in GROWN or (count > GROWN[-1] and crc32(row.id.encode()) % GROWN[-1] == 0)
    return row.category if due else None


def of_category(view: View, category: str, newest: MemoryRow) -> list[ShownMemory]:
    """Return the newest memories of a category, newest first."""
    seqs = [seq for seq in _members(view, category, CATEGORY_MEMORIES) if seq != newest.seq]
    rows = [newest, *view.rows(view.entries_of(seqs[: CATEGORY_MEMORIES - 1]))]
    return [shown(row, SHOWN_CHARACTERS) for row in rows if not is_blank(row.content)]


def _members(view: View, category: str, at_most: int) -> list[int]:
    return view.graph.members(node_key("category", category), at_most)


def _within(rows: list[MemoryRow], characters: int) -> Iterator[ShownMemory]:
    for row in rows:
        one = shown(row, min(SHOWN_CHARACTERS, characters))
        characters -= len(one.content)
        if not is_blank(one.content):
            yield one
        if characters <= 0:
            return
