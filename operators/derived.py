"""Derived memories and summaries: whether an event still matches its sources, and the effects of changed sources.

A memory derived from a message is forgotten with it. If the message's text changes, the derived memory ends: it stays
visible in the past only. A summary is deleted with the first of its sources that is forgotten or changed, because it
may contain removed content. The summary of an episode is valid as long as its messages are unchanged."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from recallflow import events
from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.events import MemoryEvent, Message, Source, content_hash
from recallflow.limits import MADE_EVER_MAX, MADE_MAX
from recallflow.operators.view import View, stored_sources
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner
from recallflow.state.rows import Entry, EpisodeRow, MemoryRow

# The types with `derived_from`. A tuple, because isinstance with a union takes three times as long.
_DERIVED_TYPES = events.MemoryAdd, events.MemoryUpdate, events.CategorySummary, events.EpisodeSummary, events.GraphEdges
_MEMBERS_SEARCHED = 1_000  # the newest members of an episode that are searched for messages newer than a summary


def sources_of(event: MemoryEvent) -> list[Source]:
    """Return the sources of an event; none for an event that was not derived."""
    if isinstance(event, Message):  # the most frequent type, checked first for speed
        return []
    if isinstance(event, events.MemoryEmbedding):
        return [Source(memory_id=event.memory_id, content_hash=event.content_hash)]
    if not isinstance(event, _DERIVED_TYPES) or event.derived_from is None:
        return []
    return [event.derived_from, *event.derived_from.others]


def has_unchanged_sources(view: View, event: MemoryEvent) -> bool:
    """Return whether all sources of an event still exist with the same text."""
    return all(_is_unchanged(view, one.memory_id, one.content_hash) for one in sources_of(event))


def _is_unchanged(view: View, memory_id: str, text_hash: str | None) -> bool:
    """Return whether a memory has the text of this hash, and its own sources are unchanged."""
    current = view.changeable(memory_id)
    if current is None:
        return False
    row = view.row(memory_id, current.version)
    if text_hash is not None and content_hash(row.content) != text_hash:
        return False
    return all(_is_unchanged(view, one["memory_id"], one["content_hash"]) for one in stored_sources(row))


def provenance(view: View, derived_from: events.DerivedFrom) -> dict[str, Any]:
    """Return the stored provenance of a memory, with a hash per source. Raise InvalidRecord for a derived source."""
    stored = derived_from.model_dump(exclude_none=True)
    for number, one in enumerate([stored, *stored["others"]]):
        current = view.current(one["memory_id"])
        if current is None:
            raise KeyError("a source of an accepted event is missing")
        row = view.row(one["memory_id"], current.version)
        if row.derived_from is not None:
            name = f"derived_from.others.{number - 1}.memory_id" if number else "derived_from.memory_id"
            problem = f"was itself derived from {row.derived_from['memory_id']}: name that memory"
            raise InvalidRecord.of("invalid_event", problem, name)
        # `has_unchanged_sources` has compared a hash in the event with the text.
        one["content_hash"] = one.get("content_hash") or content_hash(row.content)
    return {name: value for name, value in stored.items() if value}


def has_room(view: View, event: MemoryEvent) -> bool:
    """Return whether further memories may be derived from an event's sources. Ended derivatives count too."""
    existing = map(view.derivatives, view.seqs(one.memory_id for one in sources_of(event)))
    return all(len(one.memories) + len(one.ended) < MADE_EVER_MAX for one in existing)


def link(view: View, row: MemoryRow) -> None:
    """Record at each source that a memory was derived from it. Raise InvalidRecord over the limit."""
    for seq in view.source_seqs(row):
        existing = view.derivatives(seq)
        if len(existing.memories) >= MADE_MAX:
            problem = f"{MADE_MAX} memories were derived from this one already: forget some of them"
            raise InvalidRecord.of("invalid_event", problem, "derived_from")
        view.put_derivatives(seq, existing._replace(memories=[*existing.memories, row.seq]))


def with_derived(view: View, entry: Entry) -> Iterator[Entry]:
    """Yield the memories derived from a memory, and then the memory itself, except forgotten ones."""
    existing = view.derivatives(entry.seq)
    for seq in (*existing.memories, *existing.ended):
        if not view.is_forgotten(seq):
            yield view.entry(seq)
    if not view.is_forgotten(entry.seq):
        yield entry


def withdraw(view: View, seq: int, edited: tuple[int, bool]) -> None:
    """End memories, and delete summaries, derived from a memory's text before its change at event time `edited`."""
    existing = view.derivatives(seq)
    for one in existing.memories:
        _end(view, view.entry(one), edited)
    for category, change in existing.summaries:
        view.drop_summary(category, change)
    view.drop_episode_summary(view.entry(seq))


def _end(view: View, entry: Entry, edited: tuple[int, bool]) -> None:
    """End a derived memory with a new version without entities and relations. It ends at the event or ingestion time,
    whichever is earlier; if neither is from the log, at 0 (epoch), so that each replay gives the same result."""
    current = view.current(entry.id)
    if current is None:
        raise KeyError(f"memory {entry.seq} has no head")
    before = view.row(entry.id, entry.version)
    for seq in view.source_seqs(before):
        others = view.derivatives(seq).without(entry.seq)
        view.put_derivatives(seq, others._replace(ended=[*others.ended, entry.seq]))
    times_ms = (edited, (view.ingested_ms, view.ingested_logged))
    ended_ms = min((at_ms for at_ms, is_logged in times_ms if is_logged), default=0)
    ended_ms = max(ended_ms, before.valid_from_ms or ended_ms)
    if before.valid_to_ms is not None and before.valid_to_ms <= ended_ms:
        return
    after = view.next_version(before, edited, valid_to_ms=ended_ms, entities=[], relations=[])
    changed = {name: getattr(after, name) for name in ("version", "change", "ingested_ms", "valid_to_ms", "edited_ms")}
    view.put(after, entry._replace(**changed), view.vectors(entry.seq), current.digest, ended=True)


def known_summary(hot: HotOwner, episode: EpisodeRow, at_ms: int | None = None) -> str | None:
    """Return the summary of an episode; None if it has none, or one that covers messages after `at_ms` (epoch ms)."""
    if not episode.summarised or (at_ms is not None and at_ms < episode.last_ms):
        return None
    try:
        return hot.episode_summary(episode.number)
    except DecryptionFailed:
        return None


def put_episode_summary(view: View, event: events.EpisodeSummary) -> bool:
    """Store the summary of an episode if it is valid: its sources are all in the episode, and include the last message.
    Return whether it is. Raise InvalidRecord for an unknown episode."""
    sources = [view.entry(seq) for seq in view.seqs(one.memory_id for one in sources_of(event))]
    session_id = sources[0].session_id if sources else event.session_id
    episode = next((one for one in reversed(view.episodes(session_id)) if one.id == event.episode_id), None)
    if sources:
        if episode is None or any(view.episode_id(one.session_id, one.episode) != episode.id for one in sources):
            return False
        newest = max(one.seq for one in sources)
        members = view.graph.members(node_key(EPISODE_KIND, episode.id), _MEMBERS_SEARCHED)
        if any(view.entry(seq).role is not None for seq in takewhile(lambda seq: seq > newest, members)):
            return False
    elif episode is None:
        problem = "no episode of this session has this id: name the episode's session_id"
        raise InvalidRecord.of("not_found", problem, "episode_id")
    view.put_episode_summary(episode, event.summary)
    return True
