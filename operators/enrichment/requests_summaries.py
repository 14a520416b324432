"""What is to be summed up: an episode that has ended, and a category that has grown.

An episode has ended where the next one of its session begins behind it, or an event says so. A category has grown at 5,
10, 20 and 40 memories, and with one in 40 after that: which one its id decides, as nobody counts a large category.
"""

from collections.abc import Iterator
from zlib import crc32

from recallflow.enrichment import ShownMemory
from recallflow.events import EpisodeEnd, Event
from recallflow.operators.enrichment.requests_shown import SHOWN_CHARACTERS, is_blank, shown
from recallflow.operators.graph.write import Remembered
from recallflow.operators.view import View
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.rows import Episode, MemoryRow

EPISODE_MESSAGES = 50  # the newest
EPISODE_CHARACTERS = 20_000
LEAST_MESSAGES = 2  # a single one says it shorter than a summary would
CATEGORY_MEMORIES = 40  # the newest
GROWN = (5, 10, 20, 40)


def ended_episode(view: View, event: Event) -> Episode | None:
    """The episode that an event ended, if it ended one."""
    for session_id, (changed, *_) in view.changed_episodes.items():
        if isinstance(event, EpisodeEnd):
            return changed
        before = next(iter(view.episodes(session_id)[-1:]), None)
        is_opened = changed.number == view.newest and not changed.of_facts
        if is_opened and before is not None and before.last_ms < changed.start_ms:
            return None if before.ended_ms is not None or before.of_facts else before
    return None


def messages(view: View, episode: Episode) -> list[ShownMemory]:
    """What was said in an episode, in its order: the newest, within bounds; none where that is too little."""
    seqs = view.graph.members(node_key(EPISODE_KIND, episode.id), 2 * EPISODE_MESSAGES)
    said = [entry for entry in view.entries_of(seqs) if entry.role is not None]
    said.sort(key=lambda entry: (-entry.created_ms, -entry.seq))
    kept = [*_within(view.rows(said[:EPISODE_MESSAGES]), EPISODE_CHARACTERS)]
    return kept[::-1] if len(kept) >= LEAST_MESSAGES else []


def grown_category(view: View, memory: Remembered) -> str | None:
    """The category that the memory joined, where it is time for a summary of it."""
    row = memory.row
    if row.category is None or (row.version and view.row(row.id, row.version - 1).category == row.category):
        return None
    others = [seq for seq in _members(view, row.category, GROWN[-1] + 1) if seq != row.seq]
    count = 1 + len(others)
    due = count in GROWN or (count > GROWN[-1] and crc32(row.id.encode()) % GROWN[-1] == 0)
    return row.category if due else None


def of_category(view: View, category: str, newest: MemoryRow) -> list[ShownMemory]:
    """The newest memories of a category, the newest first."""
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
