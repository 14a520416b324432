"""What leaves the engine: responses and receipts (topics `recall.responses`, `memory.receipts`)."""

from typing import Any, Literal, Self

from recallflow.errors import InvalidRecord
from recallflow.fields import Model

Outcome = Literal["created", "updated", "unchanged", "duplicate", "forgotten", "ended"]


class Warn(Model):
    """Something the asker should know about an answer that was given all the same."""

    code: str
    detail: str


class FieldError(Model):
    """One wrong field of a request."""

    field: str
    problem: str


class ErrorBody(Model):
    """Why a request could not be answered, every wrong field at once."""

    code: str
    message: str
    fields: list[FieldError] = []

    @classmethod
    def of(cls, error: InvalidRecord) -> Self:
        """The error as an answer shows it."""
        fields = [FieldError(field=field, problem=problem) for field, problem in error.fields]
        return cls(code=error.code, message=str(error), fields=fields)


class RecalledMemory(Model):
    """One memory of an answer. Times are RFC 3339 in UTC; `rank` starts at 1."""

    id: str
    content: str
    summary: str | None
    kind: str
    layer: str
    category: str | None
    role: str | None
    name: str | None
    tags: list[str]
    session_id: str | None
    episode_id: str | None
    created_at: str
    confidence: float
    score: float
    rank: int
    why_included: dict[str, Any]


class Explanation(Model):
    """How a memory's score came about: score = Σ weight · factor + Σ boosts (see docs/recall.md)."""

    factors: dict[str, float]
    weights: dict[str, float]
    boosts: dict[str, float]


class Context(Model):
    """An assembled context within the asked token budget."""

    summaries: dict[str, str]
    relevant_items: list[dict[str, Any]]
    graph_context: list[dict[str, Any]]
    token_count: int


class EpisodeInfo(Model):
    """One episode: the messages of a session up to an inactivity gap."""

    id: str
    session_id: str | None
    started_at: str
    ended_at: str
    open: bool
    messages: int
    summary: str


class Response(Model):
    """The answer to one query. Fields that do not apply to the query's type are absent."""

    query_id: str
    status: Literal["ok", "degraded", "error"]
    memories: list[RecalledMemory] | None = None
    versions: list[dict[str, Any]] | None = None
    episodes: list[EpisodeInfo] | None = None
    stats: dict[str, Any] | None = None
    context: Context | None = None
    query_intent: str | None = None
    explanations: dict[str, Explanation] | None = None
    confidence_scores: dict[str, float] | None = None
    computation_tier: Literal["fast", "standard", "graph", "llm"] | None = None
    sla_target_ms: float | None = None
    sla_met: bool | None = None
    processing_time_ms: float | None = None
    routing_info: dict[str, Any] | None = None
    tiebreak_applied: bool | None = None
    fallback: str | None = None
    warnings: list[Warn] = []
    applied: list[str] | None = None
    error: ErrorBody | None = None


class Receipt(Model):
    """What became of a memory event that asked with `"receipt": true`."""

    id: str
    position: str
    outcome: Outcome
    memory_id: str | None = None
    detail: str | None = None
