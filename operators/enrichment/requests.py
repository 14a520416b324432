"""Which event asks the enrichment flow for what: a pure function of state, event and settings.

A new memory asks, in one request, for all that is wanted of it; so does one whose text is another now. A memory that
was derived from others is compared with those like it, so that a fact that contradicts it is found, and asks for
nothing else: nothing is read out of what was read out. Facts are read out of what people said, and out of what the
assistant did, as it promises and recommends; not out of what systems and tools put in.
"""

from collections.abc import Iterator
from typing import Any

from recallflow.decisions import History, categories
from recallflow.enrichment import EnrichmentRequest, text_to_embed
from recallflow.events import Event, Memory, MemoryUpdate, Message
from recallflow.llm import Task
from recallflow.operators.enrichment.requests_shown import OWN_CHARACTERS, is_blank, recent, shown
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.operators.events import Write
from recallflow.operators.graph.write import Remembered
from recallflow.operators.view import View
from recallflow.state.rows import MemoryRow

# What requests ask for; the rest is asked about a question, while it waits.
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
MEMORY = 10  # number of a request among its record's outputs: by what it is about
SPEAKERS = frozenset(("user", "assistant"))
_IN_CONTEXT = frozenset(("extract", "facts", "resolve"))


def requests(view: View, write: Write, wanted: Wanted, decisions: History) -> list[tuple[int, EnrichmentRequest]]:
    """What an event that was applied through a view asks for: requests, each with its number among the outputs."""
    memory = next((one for one in view.touched if isinstance(one, Remembered)), None)
    made = [(MEMORY, None if memory is None else _of_memory(view, write, memory, wanted, decisions))]
    return [(number, request) for number, request in made if request is not None]


def _of_memory(
    view: View, write: Write, memory: Remembered, wanted: Wanted, decisions: History
) -> EnrichmentRequest | None:
    event, row = write.event, memory.row
    if is_blank(row.content) or not _has_new_text(view, event, row):
        return None
    tasks = [*_tasks(write, memory, wanted, decisions)]
    if not tasks:
        return None
    return EnrichmentRequest.model_construct(
        **_scope(write),
        tasks=tasks,
        memories=[shown(row, OWN_CHARACTERS)],
        recent=recent(view, row, wanted.recent) if _IN_CONTEXT.intersection(tasks) else [],
        text=text_to_embed(row.author, row.content) if "embed" in tasks else None,
    )


def _tasks(write: Write, memory: Remembered, wanted: Wanted, decisions: History) -> Iterator[Task]:
    row, event = memory.row, write.event
    if wanted.embed and memory.vectors is None:
        yield "embed"
    if isinstance(event, Memory | MemoryUpdate) and event.derived_from is not None:
        return
    if wanted.relationships and len(row.content) >= wanted.min_chars:
        yield "extract"
    if wanted.facts and (row.role in SPEAKERS or (row.role is not None and row.name is not None)):
        yield "facts"
    if wanted.categories and row.category is None and categories(decisions, event.tenant_id, write.record.append_ms):
        yield "categorise"


def _has_new_text(view: View, event: Event, row: MemoryRow) -> bool:
    """Whether an event brought the text that a memory has."""
    if isinstance(event, Message | Memory):
        return True
    return isinstance(event, MemoryUpdate) and view.row(row.id, row.version - 1).content != row.content


def _scope(write: Write) -> dict[str, Any]:
    """Whose request it is, and since when: tenants' decisions are read as of then."""
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
