"""What crosses the topics `enrichment.requests`, the main flow's, and `enrichment.results`, the enrichment flow's. Both
are internal.

A language model does not answer the same twice. So what it said is written down first, in one record a request
(`EnrichmentResult`), and the events in it go to `memory.events` from there: they are the same however often they are
sent again. They have a topic of their own: behind requests that wait for their turn they would wait, too.
"""

from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field

from recallflow.events import Event
from recallflow.fields import Identifier, Model, Name, Role, Timestamp
from recallflow.llm import Task

EMBEDDED_BYTES = 8_000  # of UTF-8; the usual models read 8,191 tokens


class ShownMemory(Model):
    """A memory as a model is shown it; `content` may be cut. `similarity`: the cosine to the one it is about, where
    their vectors were compared. `derived_from`: the memory that it was made from, which it says nothing new to."""

    memory_id: Identifier
    content: str
    content_hash: Name
    kind: Name
    role: Role | None = None
    name: Name | None = None
    category: Name | None = None
    created_at: Timestamp
    similarity: float | None = None
    derived_from: Identifier | None = None


class ShownEntity(Model):
    """An entity that the owner's graph knows. `key`: its node's; `told_by`: a sentence that names it."""

    key: Name
    name: Name
    type: Name | None = None
    urn: Name | None = None
    told_by: str | None = None


class EnrichmentRequest(Event):
    """What is to be found out about one memory, one episode that has ended, or one category.

    `source`: the position of the event that it comes from. `memories`: those it is about, for a memory just that one;
    `similar`, `recent` and `entities`: what the owner remembers beside it, the closest or the newest first. `text`:
    what the embedding model is to read."""

    type: Literal["enrichment.request"]
    tasks: Annotated[list[Task], Field(min_length=1)]
    source: Name
    memories: Annotated[list[ShownMemory], Field(min_length=1)]
    similar: list[ShownMemory] = []
    recent: list[ShownMemory] = []
    entities: list[ShownEntity] = []
    text: str | None = None
    episode_id: Identifier | None = None
    category: Name | None = None
    summary: str | None = None


class TaskFailure(Model):
    """A task that a request wanted and did not get; `code`: as receipts show it."""

    task: Task
    code: str
    detail: str


class EnrichmentResult(Event):
    """All that came of one request, whose position `request` is: the events to send, in their order, what failed, how
    many of a model's claims were refused and why, and what it cost."""

    type: Literal["enrichment.result"]
    request: Name
    source: Name
    memory_id: Identifier
    events: list[dict[str, Any]]
    failures: list[TaskFailure] = []
    refused: dict[str, int] = {}
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    embedding_tokens: int = 0


def content_hash(content: str) -> str:
    """What tells whether a result still fits the text it was made for: SHA-256 of its UTF-8, in hexadecimal digits."""
    return sha256(content.encode()).hexdigest()


def text_to_embed(author: str | None, content: str) -> str:
    """What an embedding service reads of a memory: `author: content`, as a chat shows it, up to so many bytes that no
    service refuses it, as no tokenizer makes more tokens of a text than it has bytes."""
    shown = f"{author}: {content}" if author else content
    return shown.encode()[:EMBEDDED_BYTES].decode(errors="ignore")
