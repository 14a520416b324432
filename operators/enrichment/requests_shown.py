"""Memories in requests: shortened texts, in limited numbers."""

from collections.abc import Iterable

from recallflow.enrichment import ShownMemory, content_hash
from recallflow.operators.view import View
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.rows import Entry, MemoryRow

OWN_CHARACTERS = 8_000  # of the memory of a request
SHOWN_CHARACTERS = 2_000  # of each memory in its context
EPISODES_BACK = 2  # episodes of a session that are searched for its newest memories


def shown(row: MemoryRow, characters: int = SHOWN_CHARACTERS, similarity: float | None = None) -> ShownMemory:
    """Return a memory in the form of a request. Stored fields are valid, so they are not validated again."""
    return ShownMemory.model_construct(
        memory_id=row.id,
        content=row.content[:characters],
        content_hash=content_hash(row.content),
        kind=row.kind,
        role=row.role,
        name=row.name,
        category=row.category,
        created_at=row.created_ms,
        similarity=similarity,
        derived_from=None if row.derived_from is None else row.derived_from["memory_id"],
    )


def recent(view: View, row: MemoryRow, most: int) -> list[ShownMemory]:
    """Return the owner's newest memories of the same project, with the same session first. Restricting the context to
    one project keeps derived memories in that project."""
    if not most:
        return []
    entries = _newest(view, row, most)
    return [shown(one) for one in view.rows(entries) if not is_blank(one.content)]


def is_blank(content: str) -> bool:
    return not content or content.isspace()


def _newest(view: View, row: MemoryRow, most: int) -> list[Entry]:
    seqs = dict.fromkeys(_of_session(view, row, most + 1))
    seqs |= dict.fromkeys(range(view.newest, max(-1, view.newest - most - 1), -1))
    seqs.pop(row.seq, None)
    return [one for one in view.entries_of([*seqs][: 2 * most]) if one.project_id == row.project_id][:most]


def _of_session(view: View, row: MemoryRow, most: int) -> Iterable[int]:
    if row.session_id is None and row.role is None:  # a fact without a conversation
        return
    for episode in view.episodes(row.session_id)[: -EPISODES_BACK - 1 : -1]:
        yield from view.graph.members(node_key(EPISODE_KIND, episode.id), most)
