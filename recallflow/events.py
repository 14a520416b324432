"""Memory events: all changes of memory (topic `memory.events`), and records of the internal topics
`enrichment.requests` (from the main flow) and `enrichment.results` (from the enrichment flow).

A language model gives another output at a second call. So its output is stored first, in one record per request
(`EnrichmentResult`). The events for `memory.events` are made from that record: they stay the same when they are sent
again. Results have their own topic, so that they do not wait behind requests."""

from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from recallflow import fields, limits
from recallflow.fields import AnyJson, Fraction, Identifier, Model, Name, NonEmpty, Role, StrictPart, Timestamp
from recallflow.llm import Task
from recallflow.owner import Owner

Labels = Annotated[list[Name], Field(max_length=limits.LABELS_MAX)]
Summary = Annotated[str, Field(max_length=limits.SUMMARY_CHARACTERS)]
NonBlankSummary = Annotated[NonEmpty, Field(max_length=limits.SUMMARY_CHARACTERS)]
Evidence = Annotated[str, Field(max_length=limits.EVIDENCE_CHARACTERS)]
# Kinds of memories that `add` of a Python client accepts. On the wire a kind is any name.
KINDS = (*("fact", "preference", "decision", "plan", "event", "relationship", "skill", "goal", "task", "note", "rule"),
         "message")  # fmt: skip
PRODUCTION = "prod"  # the environment of an event without one


class Event(Model):
    """Fields of every event.

    `id` is the idempotency key (default: the record's position). `timestamp` is the event time (default: the record's
    time). `environment` separates memories as strictly as the tenant."""

    id: Identifier | None = None
    tenant_id: Identifier
    user_id: Identifier
    project_id: Name | None = None
    environment: Identifier = PRODUCTION
    session_id: Identifier | None = None
    timestamp: Timestamp | None = None
    schema_version: fields.Int32 | None = None
    receipt: bool = False

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant_id, self.environment, self.user_id)

    @model_validator(mode="after")
    def _few_unknown(self) -> Self:
        if (count := len(self.model_extra or ())) > limits.UNKNOWN_FIELDS_MAX:
            most = limits.UNKNOWN_FIELDS_MAX
            raise ValueError(f"{count} unknown fields; at most {most} are accepted; put your own under metadata")
        return self


class Source(StrictPart):
    """A source memory. `content_hash` is the SHA-256 of the text (UTF-8) that was the source, in hexadecimal."""

    memory_id: Identifier
    content_hash: fields.ContentHash | None = None


class DerivedFrom(Source):
    """Origin of a derived event, which has no effect if the source memory, or one of `others`, was removed or changed.
    `model` and `prompt_version` identify the generator; `source` is the position of the source memory's event."""

    others: Annotated[list[Source], Field(max_length=limits.SOURCES_MAX)] = []
    model: Name | None = None
    prompt_version: Name | None = None
    source: Name | None = None


class ContentPart(Model):
    """One part of an OpenAI chat message. Only text is remembered; other parts are named by their type."""

    type: Name
    text: str | None = None
    refusal: str | None = None

    def as_text(self) -> str:
        return self.text or self.refusal or ("" if self.type in ("text", "refusal") else f"[{self.type}]")


class Message(Event):
    """A chat message in OpenAI's format. It is stored unchanged; its author is `name`, or else `role`.

    A message without text is accepted only with null content, and either from the assistant (it calls tools) or with
    `metadata`. It is stored, but never ranked."""

    type: Literal["message"]
    role: Role = "user"
    content: NonEmpty | Annotated[list[ContentPart], Field(max_length=limits.PARTS_MAX)] | None
    name: Name | None = None
    metadata: AnyJson | None = None
    embedding: fields.Embedding | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        may_be_empty = self.content is None and (self.role == "assistant" or bool(self.metadata))
        if not may_be_empty and not self.text().strip():
            raise ValueError("content: is blank; give some text")
        return self

    def text(self) -> str:
        """Return the content as plain text; an empty text for null."""
        if isinstance(self.content, list):
            return "\n".join(text for part in self.content if (text := part.as_text()))
        return self.content or ""


class Entity(Model):
    """An entity that a memory names. `urn` is its id in graph queries; `aliases` are its other names."""

    name: Name
    type: Name | None = None
    urn: Name | None = None
    aliases: Annotated[list[Name], Field(max_length=limits.ALIASES_MAX)] | None = None


def _few_aliases(entities: list[Entity]) -> list[Entity]:
    if sum(len(entity.aliases or ()) for entity in entities) > limits.ALIASES_MAX:
        raise ValueError(f"their aliases are more than {limits.ALIASES_MAX}: send some with another memory")
    return entities


def _check_period(model: Any) -> Any:
    if model.valid_from is not None and model.valid_to is not None and model.valid_to < model.valid_from:
        raise ValueError("valid_to: before valid_from")
    return model


class _ValidityPeriod(Model):
    """Validity period: from `valid_from` up to `valid_to`."""

    valid_from: Timestamp | None = None
    valid_to: Timestamp | None = None

    _valid_period = model_validator(mode="after")(_check_period)


class Relation(_ValidityPeriod):
    """A typed edge between two entities, with the memory that states it as evidence."""

    source: Name
    type: Name
    target: Name
    weight: Fraction | None = None
    confidence: Fraction | None = None
    properties: AnyJson | None = None
    archived: bool = False


class MemoryFields(Model):
    """Fields of a memory without its content, for creation and update."""

    summary: Summary | None = None
    kind: Name | None = None
    layer: fields.Layer | None = None
    category: Name | None = None
    tags: Labels | None = None
    topics: Labels | None = None
    entities: Annotated[list[Entity], Field(max_length=limits.ENTITIES_MAX), AfterValidator(_few_aliases)] | None = None
    relations: Annotated[list[Relation], Field(max_length=limits.RELATIONS_MAX)] | None = None
    importance: Fraction | None = None
    confidence: Fraction | None = None
    embedding: fields.Embedding | None = None
    valid_from: Timestamp | None = None
    valid_to: Timestamp | None = None
    expires_at: Timestamp | None = None
    metadata: AnyJson | None = None

    def fields_set(self) -> dict[str, Any]:
        """Return the memory fields in the event with their values, nulls included."""
        names = self.model_fields_set & (MemoryFields.model_fields.keys() | {"content"})
        return {name: getattr(self, name) for name in sorted(names)}


class MemoryAdd(Event, MemoryFields):
    """A fact, preference, rule, …"""

    type: Literal["memory"]
    content: NonEmpty
    name: Name | None = None
    derived_from: DerivedFrom | None = None

    _valid_period = model_validator(mode="after")(_check_period)


class MemoryUpdate(Event, MemoryFields):
    """Changes the fields of a memory that the event has. A null clears a field; a missing field stays unchanged."""

    type: Literal["memory.update"]
    memory_id: Identifier
    content: NonEmpty | None = None
    derived_from: DerivedFrom | None = None

    @field_validator("content")
    @classmethod
    def _content_stays(cls, content: str | None) -> str | None:
        if content is None:
            raise ValueError("cannot be cleared; send memory.forget to remove the memory")
        return content

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.fields_set():
            raise ValueError("names no field to change")
        if self.embedding is not None and self.content is None:
            raise ValueError("embedding: give its content too; memory.embedding adds a vector alone")
        if self.derived_from is None:
            return self
        if self.derived_from.memory_id != self.memory_id:
            raise ValueError("derived_from.memory_id: another memory than the one to update")
        if self.content is not None:
            raise ValueError("content: cannot be derived; send another memory")
        return self


class ForgetFilter(StrictPart):
    """Filter of memories to forget: a memory must meet all conditions."""

    session_id: Identifier | None = None
    category: Name | None = None
    tag: Name | None = None
    older_than: Timestamp | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError("give at least one of session_id, category, tag, older_than")
        return self


class MemoryForget(Event):
    """Removes one memory, or all matches of a filter. No query ever returns a forgotten memory."""

    type: Literal["memory.forget"]
    memory_id: Identifier | None = None
    filter: ForgetFilter | None = None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.memory_id is None) == (self.filter is None):
            raise ValueError("give either memory_id or filter")
        return self


class MemoryFeedback(Event):
    """States whether a recalled memory was useful."""

    type: Literal["memory.feedback"]
    memory_id: Identifier
    useful: bool


class EpisodeEnd(Event):
    """Closes the session's open episode."""

    type: Literal["episode.end"]


class CategorySummary(Event):
    """A summary of one category's memories, from the enrichment flow or the platform."""

    type: Literal["category.summary"]
    category: Name
    summary: NonBlankSummary
    derived_from: DerivedFrom | None = None


class EpisodeSummary(Event):
    """A summary of one episode, from the enrichment flow or the platform."""

    type: Literal["episode.summary"]
    episode_id: Identifier
    summary: NonBlankSummary
    derived_from: DerivedFrom | None = None


class GraphEdge(_ValidityPeriod):
    """A typed edge between memory ids or node keys, valid from `valid_from` to `valid_to`, not after `expires_at`."""

    source: Name
    target: Name
    type: Name
    weight: Fraction = 1.0
    confidence: Fraction = 1.0
    evidence: Evidence | None = None
    expires_at: Timestamp | None = None
    archived: bool = False


class GraphEdges(Event):
    """Edges from the enrichment flow or the platform."""

    type: Literal["graph.edges"]
    edges: Annotated[list[GraphEdge], Field(min_length=1, max_length=limits.EDGES_MAX)]
    derived_from: DerivedFrom | None = None


class MemoryEmbedding(Event):
    """A vector for one version of a memory's content, computed outside of the engine."""

    type: Literal["memory.embedding"]
    memory_id: Identifier
    embedding: fields.Embedding
    model: Name
    content_hash: fields.ContentHash
    source: Name | None = None


class GraphArchive(Event):
    """Excludes entities or edges from traversal, or includes them again."""

    type: Literal["graph.archive"]
    entities: Annotated[list[Name], Field(max_length=limits.EDGES_MAX)] = []
    edges: Annotated[list[GraphEdge], Field(max_length=limits.EDGES_MAX)] = []
    archived: bool = True

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.entities and not self.edges:
            raise ValueError("give entities, edges or both")
        return self


class UserErase(Event):
    """Removes a user: data, indexes and keys. Events of the user up to its `timestamp` have no effect afterwards.

    `environment` limits the removal to one environment; without it, all are removed."""

    type: Literal["user.erase"]
    environment: Identifier | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for part in ("project_id", "session_id"):
            if getattr(self, part) is not None:
                raise ValueError(f"{part}: a user is erased as a whole; send memory.forget to remove some memories")
        return self

    @property
    def owner(self) -> Owner:
        """Return an owner of the user in one environment; all owners of a user are in one state partition."""
        return Owner(self.tenant_id, self.environment or PRODUCTION, self.user_id)

    def covers(self, owner: Owner) -> bool:
        """Return whether an owner is this user, in an affected environment."""
        is_affected = self.environment in (None, owner.environment)
        return is_affected and (owner.tenant_id, owner.user_id) == (self.tenant_id, self.user_id)


# Types of events that may be derived from memories.
DERIVED_TYPES = ("memory", "memory.update", "memory.embedding", "category.summary", "episode.summary", "graph.edges")
MemoryEvent = Annotated[
    Message | MemoryAdd | MemoryUpdate | MemoryForget | MemoryFeedback | EpisodeEnd
    | CategorySummary | EpisodeSummary | GraphEdges | MemoryEmbedding | GraphArchive | UserErase,
    Field(discriminator="type"),
]  # fmt: skip
EMBEDDED_BYTES = 8_000  # of UTF-8; the usual models read 8,191 tokens


class ShownMemory(Model):
    """A memory for a prompt; `content` may be cut. `similarity` is the cosine to the memory of the request, where it
    was computed. `derived_from` is the id of the memory from which this one was derived, without new information."""

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
    """An entity of the owner's graph. `key` is the key of its node; `told_by` is a sentence that names the entity."""

    key: Name
    name: Name
    type: Name | None = None
    urn: Name | None = None
    told_by: str | None = None


class EnrichmentRequest(Event):
    """Request about one memory, one ended episode, or one category.

    `source` is the position of the event that caused the request. `memories` are its subject: the memory, or all of
    the episode or category; `similar` and `recent` are others. `entities` are known entities. `text` is to be embedded.
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
    """A failed task of a request. Receipts have the same `code`."""

    task: Task
    code: str
    detail: str


class EnrichmentResult(Event):
    """Outcome of the request at position `request`: events in order, failures, numbers of refused claims, cost."""

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
    """Return the SHA-256 of a text (UTF-8) in hexadecimal digits. It shows whether a derived event is outdated."""
    return sha256(content.encode()).hexdigest()


def embedding_input(author: str | None, content: str) -> str:
    """Return the input of an embedding service for a memory: `author: content` as in a chat, cut to a number of
    bytes that every service accepts, since a text has at most as many tokens as bytes."""
    text = f"{author}: {content}" if author else content
    return text.encode()[:EMBEDDED_BYTES].decode(errors="ignore")
