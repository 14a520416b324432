"""Records of the internal topics `enrichment.requests` (from the main flow) and `enrichment.results` (from the
enrichment flow).

A language model does not repeat its output. So its output is stored first, in one record per request
(`EnrichmentResult`), and its events go to `memory.events` from there: they stay the same when they are sent again. The
results have their own topic, so that they do not wait behind requests.
"""

from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field

from recallflow.events import Event
from recallflow.fields import Identifier, Model, Name, Role, Timestamp
from recallflow.llm import Task

EMBEDDED_BYTES = 8_000  # of UTF-8; the usual models read 8,191 tokens


class ShownMemory(Model):
    """A memory for a prompt; `content` may be cut. `similarity` is the cosine to the memory of the request, where it
    was computed. `derived_from` is the memory that it was made from, and to which it adds nothing."""

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
    """An entity of the owner's graph. `key` is the key of its node; `told_by` is a sentence that names it."""

    key: Name
    name: Name
    type: Name | None = None
    urn: Name | None = None
    told_by: str | None = None


class EnrichmentRequest(Event):
    """Request about one memory, one ended episode, or one category.

    `source` is the position of the event that caused it. `memories` are the subject, for a memory just that one;
    `similar`, `recent` and `entities` are the owner's closest or newest other data. `text` is the input of the
    embedding model.
    """

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
    """A failed task of a request, with the `code` of receipts."""

    task: Task
    code: str
    detail: str


class EnrichmentResult(Event):
    """Outcome of the request at position `request`: events in order, failures, the number of refused model claims by
    reason, and the cost."""

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
    """Return the hash that shows whether a result still fits its text: SHA-256 of its UTF-8, in hexadecimal digits."""
    return sha256(content.encode()).hexdigest()


def text_to_embed(author: str | None, content: str) -> str:
    """Return the input of an embedding service for a memory: `author: content` as in a chat, cut to a number of
    bytes that every service accepts, since a text has at most as many tokens as bytes."""
    shown = f"{author}: {content}" if author else content
    return shown.encode()[:EMBEDDED_BYTES].decode(errors="ignore")
