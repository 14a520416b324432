"""Enrichment requests of an event: a pure function of state, event and settings.

A new memory, or one with a new text, makes one request for all its tasks. A derived memory is only compared with
similar ones, to find contradictions; nothing is derived from it again. Facts are extracted from messages of users and
of the assistant, which may promise or recommend, but not from texts of systems and tools."""

from typing import Any

from recallflow.decisions import History, categories
from recallflow.enrichment import EnrichmentRequest, text_to_embed
from recallflow.events import Event, MemoryAdd, MemoryEmbedding, MemoryUpdate, Message
from recallflow.llm import Task
from recallflow.operators.enrichment.requests_entities import NO_ENTITIES, entities
from recallflow.operators.enrichment.requests_shown import OWN_CHARACTERS, is_blank, recent, shown
from recallflow.operators.enrichment.requests_similar import similar
from recallflow.operators.enrichment.requests_summaries import ended_episode, grown_category, messages, of_category
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.operators.events import Write
from recallflow.operators.graph.write import Remembered
from recallflow.operators.view import View
from recallflow.state.rows import MemoryRow

# Tasks of requests. Further tasks belong to queries, which wait for them.
TASKS: tuple[Task, ...] = (
    "embed",
    "classify",
    "extract",
    "facts",
    "resolve",
    "categorise",
    "summarise_episode",
    "summarise_category",
)
MEMORY, EPISODE, CATEGORY = 10, 11, 12  # output numbers of requests by subject
SPEAKERS = frozenset(("user", "assistant"))
_IN_CONTEXT = frozenset(("extract", "facts", "resolve"))


def requests(view: View, write: Write, wanted: Wanted, decisions: History) -> list[tuple[int, EnrichmentRequest]]:
    """Return the requests of an applied event, each with its output number."""
    memory = next((one for one in view.touched if isinstance(one, Remembered)), None)
    made: list[tuple[int, EnrichmentRequest | None]] = []
    if memory is not None:
        made.append((MEMORY, _of_memory(view, write, memory, wanted, decisions)))
    if wanted.summaries:
        made.append((EPISODE, _of_episode(view, write)))
        if memory is not None:
            made.append((CATEGORY, _of_category(view, write, memory)))
    return [(number, request) for number, request in made if request is not None]


def _of_memory(
    view: View, write: Write, memory: Remembered, wanted: Wanted, decisions: History
) -> EnrichmentRequest | None:
    event, row = write.event, memory.row
    is_embedded = isinstance(event, MemoryEmbedding)
    if is_blank(row.content) or not (is_embedded or _has_new_text(view, event, row)):
        return None
    reads = not is_embedded and row.derived_from is None
    alike = similar(view, memory, wanted) if wanted.relationships else []
    named = entities(view, row) if reads and (wanted.relationships or wanted.facts) else NO_ENTITIES
    asks: dict[Task, bool] = {
        "embed": wanted.embed and memory.vectors is None,
        "classify": bool(alike),
        "extract": reads and wanted.relationships and len(row.content) >= wanted.min_chars,
        "facts": reads and wanted.facts and _is_said(row),
        "resolve": wanted.relationships and named.in_doubt,
        "categorise": reads and wanted.categories and row.category is None and _has_categories(write, decisions),
    }
    tasks = [task for task, is_asked in asks.items() if is_asked]
    if not tasks:
        return None
    in_context = not _IN_CONTEXT.isdisjoint(tasks)
    return EnrichmentRequest.model_construct(
        **_scope(write),
        tasks=tasks,
        memories=[shown(row, OWN_CHARACTERS)],
        similar=alike,
        recent=recent(view, row, wanted.recent) if in_context else [],
        entities=named.shown if in_context else [],
        text=text_to_embed(row.author, row.content) if asks["embed"] else None,
    )


def _of_episode(view: View, write: Write) -> EnrichmentRequest | None:
    episode = ended_episode(view, write.event)
    shown_ones = [] if episode is None else messages(view, episode)
    if episode is None or not shown_ones:
        return None
    scope = _scope(write) | {"session_id": episode.session_id, "episode_id": episode.id}
    return EnrichmentRequest.model_construct(**scope, tasks=["summarise_episode"], memories=shown_ones)


def _of_category(view: View, write: Write, memory: Remembered) -> EnrichmentRequest | None:
    category = grown_category(view, memory)
    shown_ones = [] if category is None else of_category(view, category, memory.row)
    if category is None or not shown_ones:
        return None
    so_far = view.summary(category)
    return EnrichmentRequest.model_construct(
        **_scope(write), tasks=["summarise_category"], memories=shown_ones, category=category, summary=so_far
    )


def _is_said(row: MemoryRow) -> bool:
    """Return whether a person or the assistant said it."""
    return row.role in SPEAKERS or (row.role is not None and row.name is not None)


def _has_categories(write: Write, decisions: History) -> bool:
    return bool(categories(decisions, write.event.tenant_id, write.record.append_ms))


def _has_new_text(view: View, event: Event, row: MemoryRow) -> bool:
    """Return whether an event changed the text of a memory."""
    if isinstance(event, Message | MemoryAdd):
        return True
    return isinstance(event, MemoryUpdate) and view.row(row.id, row.version - 1).content != row.content


def _scope(write: Write) -> dict[str, Any]:
    """Return the owner, source and time of a request. The tenant's decisions of that time apply."""
    event = write.event
    return {
        "type": "enrichment.request",
        "tenant_id": event.tenant_id,
        "environment": event.environment,
        "user_id": event.user_id,
        "project_id": event.project_id,
        "session_id": event.session_id,
        "timestamp": write.record.append_ms,
        "source": str(write.record.position),
    }
