"""Responses and receipts of the engine (topics `recall.responses`, `memory.receipts`)."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, NotRequired, Self, TypeVar

import orjson
from pydantic import SkipValidation
from typing_extensions import TypedDict

from recallflow.errors import InvalidRecord, RecallflowError
from recallflow.fields import Model, Truncatable
from recallflow.graphs import ExploredEdge, Facts, GraphReport, InvalidReason, Subgraph, Trace

# Reasons why an event has no effect: its source memories have changed; a source has too many derivatives; its vector is
# not from the configured model; it is not later than the erasure of its user.
RefusalOutcome = Literal["outdated", "too_many", "other_model", "erased"]
Outcome = Literal[
    "created", "updated", "unchanged", "duplicate", "forgotten", "ended", "erased", "outdated", "too_many",
    "other_model", "degraded",
]  # fmt: skip
Tier = Literal["fast", "standard", "graph", "llm"]
# Formats of responses whose schema is in a registry.
JSON_SCHEMA, AVRO, PROTOBUF = REGISTERED_FORMATS = ("json-schema", "avro", "protobuf")
RESPONSE_NAME = "recallflow.Response"  # of our own schemas in Avro and Protobuf
M = TypeVar("M", bound=Model)


def unchecked(model: type[M], **fields: Any) -> M:
    """Build a model without validation, in a fifth of the time."""
    instance, put = model.__new__(model), object.__setattr__
    put(instance, "__dict__", _defaults(model) | fields)
    put(instance, "__pydantic_fields_set__", {*fields})
    put(instance, "__pydantic_extra__", {})
    put(instance, "__pydantic_private__", None)
    return instance


@cache
def _defaults(model: type[Model]) -> dict[str, Any]:
    return {name: field.default for name, field in model.model_fields.items()}


class Warn(Truncatable):
    """A warning of an answer."""

    code: str
    detail: str


class Meaning(NamedTuple):
    """Meaning of a warning. An answer with a warning that `degrades` is incomplete or of lower quality."""

    degrades: bool
    text: str


WARNINGS: Mapping[str, Meaning] = {
    "catching_up": Meaning(True, "after a start or an outage, the engine has not applied all memory events yet"),
    "content_cut": Meaning(True, "the response exceeded its topic's size: the largest texts are `truncated`"),
    "deadline": Meaning(True, "optional steps were skipped to meet `sla_target_ms`; the detail names them"),
    "decryption_failed": Meaning(True, "texts could not be decrypted; they are redacted and ranked last"),
    "embedding_fallback": Meaning(True, "the embedder failed: the question was compared by words only"),
    "graph_expansion_error": Meaning(True, "graph expansion failed and added nothing"),
    "no_graph": Meaning(True, "proximity to entities was not used: the graph is unavailable"),
    "llm_failed": Meaning(True, "a language-model step failed; the detail names step, code and fallback"),
    "llm_off": Meaning(True, "no language model is configured; the detail names the skipped steps"),
    "rerank_failed": Meaning(True, "the reranker failed or was busy: the first ranking is used"),
    "rows_missing": Meaning(True, "rows of found memories are missing in the store"),
    "stale_read": Meaning(True, "answered before the positions in `wait_for`, or earlier events, were applied"),
    "wrong_dimension": Meaning(True, "the model returned a vector of the wrong size: only words were compared"),
    "depth_clamped": Meaning(False, "`traversal_depth` is outside 1 to 3; the nearest bound was used"),
    "filter_cut": Meaning(True, "an entity of `filters` has too many memories: only the newest were considered"),
    "future_timestamp": Meaning(False, "some memories are later than the query's time; their age counts as 0"),
    "graph_failed": Meaning(True, "graph code failed; the detail names the missing part"),
    "k_clamped": Meaning(False, "`k` is outside 1 to 50; the nearest bound was used"),
    "k_exceeds_memories": Meaning(False, "fewer than `k` memories match"),
    "llm_skipped": Meaning(False, "a language-model step had no input; the detail names it"),
    "no_content_words": Meaning(False, "the question contains function words only: only its vector was used"),
    "no_memories": Meaning(False, "no memory is stored, or none matches the filters"),
    "nothing_relevant": Meaning(False, "probably no memory answers the question, or none reaches `min_relevance`"),
    "query_cut": Meaning(False, "only the first 8,000 characters of the question were used"),
    "unknown_entity": Meaning(False, "no stored entity has this URN or name"),
    "unknown_field": Meaning(False, "an unknown field, probably misspelt"),
}


def status_of(warnings: Iterable[Warn]) -> Literal["ok", "degraded"]:
    """Return the status of an answer with these warnings."""
    return "degraded" if any(w.code in WARNINGS and WARNINGS[w.code].degrades for w in warnings) else "ok"


class FieldError(Truncatable):
    """One wrong field of a request."""

    field: str
    problem: str


class ErrorBody(Truncatable):
    """The reason of a refused or failed request, with every wrong field."""

    code: str
    message: str
    fields: list[FieldError] = []

    @classmethod
    def of(cls, error: InvalidRecord) -> Self:
        fields = [FieldError(field=field, problem=problem) for field, problem in error.fields]
        return cls(code=error.code, message=str(error), fields=fields)


class QueryFailed(RecallflowError):
    """The engine answered with an error: `error` contains the reason and every wrong field."""

    def __init__(self, query_id: str, error: ErrorBody) -> None:
        self.query_id, self.error = query_id, error
        super().__init__(query_id, error)

    def __str__(self) -> str:
        return f"query {self.query_id}: {self.error.code}: {self.error.message}"


class CatchingUp(QueryFailed):
    """The engine found nothing, and has not read all memories yet after a start or an outage: ask again."""


class Span(TypedDict):
    """A range of characters in a `content`, counted from 0, the end exclusive."""

    start: int
    end: int


class Matched(TypedDict):
    """A word of the memory that matches a word of the question, exactly or by stem, with its ranges in `content`."""

    word: str
    places: list[Span]


class Neighbour(TypedDict):
    """Another memory that supports a reason, with the sentence, or a part of it."""

    id: str
    quote: str


class Reason(TypedDict):
    """A reason for a memory in the answer: a readable phrase, with its evidence."""

    code: str
    text: str
    words: NotRequired[list[Matched]]
    person: NotRequired[str]
    date: NotRequired[str]
    neighbour: NotRequired[Neighbour]
    edge: NotRequired[dict[str, Any]]


class Explanation(Model):
    """Parts of a memory's score: Σ weight · factor + Σ boosts; without weights, Π factors (docs/concepts/recall.md)."""

    factors: dict[str, float]
    weights: dict[str, float]
    boosts: dict[str, float]


class UpdatedBy(TypedDict):
    """A later memory that probably updates a statement: its id, its event time, and the probability of an update."""

    id: str
    at: str
    probability: float


class RecalledMemory(Truncatable):
    """One version of a memory in an answer.

    `version` counts from 0, `updated_at` is the event time of the version, and `current` is true for the latest version
    of a valid memory. Times are RFC 3339 in UTC; `rank` starts at 1. `relevance` is the probability that the memory is
    evidence for the question. With `explain`, `why` has at least one reason, the strongest first, and `explanation`
    has the parts of `score` (not for memories that the graph added). `excerpt` is the best passage of a long text.
    `derived_from` are the source memories. `question` is the subquery that found the memory, if not the query itself.
    `updated_by` is a later memory that probably replaces the memory's statement."""

    id: str
    version: int
    current: bool
    content: str
    summary: str | None
    kind: str
    layer: str
    category: str | None
    role: str | None
    name: str | None
    tags: list[str]
    entities: list[dict[str, Any]]
    session_id: str | None
    project_id: str | None
    episode_id: str | None
    created_at: str
    updated_at: str
    importance: float
    confidence: float
    score: float
    rank: int
    relevance: float
    explanation: Explanation | None = None
    why: SkipValidation[list[Reason] | None] = None  # built from validated parts
    excerpt: Span | None = None
    conflicts_with: list[str] | None = None
    updated_by: UpdatedBy | None = None
    rerank_score: float | None = None
    derived_from: dict[str, Any] | None = None
    question: str | None = None


class ListedMemory(Truncatable):
    """A memory, in its version at the requested time. `marks` are the reasons why recall omits the memory."""

    id: str
    version: int
    content: str
    summary: str | None
    kind: str
    layer: str
    category: str | None
    role: str | None
    name: str | None
    tags: list[str]
    topics: list[str]
    entities: list[dict[str, Any]]
    session_id: str | None
    project_id: str | None
    episode_id: str | None
    created_at: str
    updated_at: str
    importance: float
    confidence: float
    metadata: dict[str, Any] | None
    derived_from: dict[str, Any] | None
    marks: list[InvalidReason]


class MemoryPage(Model):
    """A page of a user's memories, newest first by event time. `total` counts all pages; `after` is the next cursor."""

    memories: list[ListedMemory]
    total: int
    after: str | None


class ContextItem(Truncatable):
    """One memory of a context, in one version. `score` is null for a rule, which is included without a rank. `until` is
    the time when a later memory replaced the memory's statement; `content` states this time too. If the whole text
    exceeds the budget, `content` is a passage and `excerpt` the passage's range in the memory's text. If the passage is
    too long as well, `content` is the summary. The author's tokens (`name`, or else `role`) count too."""

    id: str
    version: int
    content: str
    summary: str | None
    category: str | None
    confidence: float
    score: float | None
    created_at: str
    role: str | None = None
    name: str | None = None
    excerpt: Span | None = None
    until: str | None = None


class Omitted(Model):
    """Numbers of missing entries of a section: excluded by the query's `filters`, and exceeding the `budget`."""

    filters: int
    budget: int


class Context(Truncatable):
    """A context within the requested token budget. Summaries by category are added until half of the budget is used,
    then memories until four fifths are used, then entities with their relations until all is used. `counted_by` is the
    tokenizer that counted `token_count`. `omitted` counts missing entries by section."""

    summaries: dict[str, str]
    relevant_items: list[ContextItem]
    graph_context: list[dict[str, Any]]
    token_count: int
    counted_by: str
    omitted: dict[str, Omitted]


class MemoryUsage(Model):
    """Usage of a memory: `count` of answers with the memory, and of feedback. Times are RFC 3339 in UTC."""

    count: int
    last_accessed_at: str | None
    useful: int
    not_useful: int


class MemoryVersion(Truncatable):
    """One version of a memory, counted from 0. Times are RFC 3339 in UTC. Only the call `get` sets `usage`."""

    id: str
    version: int
    content: str
    summary: str | None = None
    kind: str | None = None
    layer: str | None = None
    category: str | None = None
    role: str | None = None
    name: str | None = None
    tags: list[str] = []
    topics: list[str] = []
    entities: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    session_id: str | None = None
    project_id: str | None = None
    importance: float | None = None
    confidence: float | None = None
    metadata: dict[str, Any] | None = None
    derived_from: dict[str, Any] | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ingested_at: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    expires_at: str | None = None
    usage: MemoryUsage | None = None


class EpisodeInfo(Truncatable):
    """One episode: the messages of a session up to an inactivity gap."""

    id: str
    session_id: str | None
    started_at: str
    ended_at: str
    open: bool
    messages: int
    summary: str


class RecalledEpisode(Truncatable):
    """An episode of an answer in the mode `episode`. `start` and `end` are the times of its first and last message;
    `size` is its number of memories, `members_returned` the number in the answer; `relevance` is the probability
    that it contains the answer."""

    id: str
    session_id: str | None
    start: str
    end: str
    size: int
    summary: str
    relevance: float
    members_returned: int


class Response(Model):
    """The answer to one query. Fields that do not apply to the query's type are absent."""

    query_id: str
    status: Literal["ok", "degraded", "error"]
    memories: list[RecalledMemory] | None = None
    memory_page: MemoryPage | None = None
    answerable: float | None = None
    versions: list[dict[str, Any]] | None = None
    edges: list[ExploredEdge] | None = None
    usage: MemoryUsage | None = None
    episodes: list[EpisodeInfo] | list[RecalledEpisode] | None = None
    stats: dict[str, Any] | None = None
    graph_status: GraphReport | None = None
    graph_trace: Trace | None = None
    subgraph: Subgraph | None = None
    graph_facts: Facts | None = None
    context: Context | None = None
    sufficient: bool | None = None
    query_intent: str | None = None
    computation_tier: Tier | None = None
    sla_target_ms: float | None = None
    sla_met: bool | None = None
    processing_time_ms: float | None = None
    routing_info: dict[str, Any] | None = None
    tiebreak_applied: bool | None = None
    fallback: str | None = None
    warnings: list[Warn] = []
    applied: list[str] | None = None
    error: ErrorBody | None = None

    def warned(self, warnings: Iterable[Warn]) -> Self:
        """Return the response with added warnings and the resulting status."""
        every = [*self.warnings, *warnings]
        status = "error" if self.status == "error" else status_of(every)
        return self.model_copy(update={"warnings": every, "status": status})

    def checked(self) -> Self:
        """Return the response. Raise QueryFailed for an error response."""
        if self.status != "error":
            return self
        reason = self.error or ErrorBody(code="unknown", message="the response contains no reason")
        raise (CatchingUp if reason.code == "catching_up" else QueryFailed)(self.query_id, reason)

    def encode(self) -> bytes:
        """Return the bytes of `model_dump_json(exclude_unset=True)`, in a third of its time."""
        return orjson.dumps(self, default=_set_fields)


def _set_fields(model: object) -> dict[str, Any]:
    if not isinstance(model, Model):
        raise TypeError(f"{type(model).__name__} cannot be a part of a response")
    names = model.__pydantic_fields_set__
    return {name: value for name, value in model.__dict__.items() if name in names}


class Receipt(Model):
    """Outcome of a memory event with `"receipt": true`, or of an event that was applied in part: then `code` is the
    missing part, and `detail` the consequence. `purged` is false while files still contain the erased (unreadable)
    data; `user.stats` reports the completion."""

    id: str
    position: str
    outcome: Outcome
    memory_id: str | None = None
    code: str | None = None
    detail: str | None = None
    purged: bool | None = None
