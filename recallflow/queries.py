"""Query events: everything that asks (topic `query.events`)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from recallflow.events import Event
from recallflow.fields import Identifier, Layer, Model, Name, NonEmpty, Role, Share, Timestamp
from recallflow.records import Position

Mode = Literal["recency", "relevance", "entity_focused", "balanced", "episode", "hybrid", "decayed", "auto"]
DecayFunction = Literal["exponential", "linear", "logarithmic", "step", "hyperbolic"]
Days = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]

K_MIN, K_MAX = 1, 50
QUERY_CHARACTERS = 8_000


def _position(text: str) -> str:
    try:
        Position.parse(text)
    except ValueError:
        raise ValueError("not a position; give topic:partition:offset") from None
    return text


PositionText = Annotated[str, StringConstraints(max_length=512), AfterValidator(_position)]


class Decay(Model):
    """How age lowers a memory's recency. Only the parameter of the chosen function counts; all in days."""

    function: DecayFunction = "exponential"
    tau_days: Days = 30.0
    max_age_days: Days = 365.0
    threshold_days: Days = 30.0
    decay_days: Days = 30.0


class Filters(Model):
    """Which memories may be in the answer. All that is given must hold; within a list any value will do."""

    categories: list[Name] | None = None
    tags: list[Name] | None = None
    kinds: list[Name] | None = None
    layers: list[Layer] | None = None
    roles: list[Role] | None = None
    names: list[Name] | None = None
    project_id: Name | None = None
    session_ids: list[Identifier] | None = None
    created_after: Timestamp | None = None
    created_before: Timestamp | None = None
    min_confidence: Share | None = None


class AsOf(Model):
    """A point in time: `event_time` for what had happened by then, `ingestion_time` for what was known by then."""

    event_time: Timestamp | None = None
    ingestion_time: Timestamp | None = None


class ReplyTo(Model):
    """Another response topic, out of the list in the settings."""

    topic: Name
    partition: Annotated[int, Field(ge=0)] | None = None


class Recall(Event):
    """Asks for ranked memories. `k` is clamped to 1-50 and `traversal_depth` to 1-3; a long query is cut and warned."""

    type: Literal["recall"]
    query: NonEmpty
    k: int = 10
    mode: Mode = "hybrid"
    strategy: Literal["baseline", "hybrid_graph"] = "baseline"
    traversal_depth: int = 1
    decay: Decay = Decay()
    filters: Filters = Filters()
    entity_urns: list[Name] = []
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    select_categories: bool = False
    check_sufficiency: bool = False
    as_of: AsOf | None = None
    include_history: bool = False
    wait_for: PositionText | list[PositionText] | None = None
    wait_timeout_ms: Annotated[int, Field(ge=0, le=60_000)] = 2_000
    sla_target_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    explain: bool = True
    reply_to: ReplyTo | None = None


class MemoryGet(Event):
    """Asks for one memory by its id."""

    type: Literal["memory.get"]
    memory_id: Identifier
    reply_to: ReplyTo | None = None


class MemoryHistory(Event):
    """Asks for all versions of one memory."""

    type: Literal["memory.history"]
    memory_id: Identifier
    reply_to: ReplyTo | None = None


class EpisodesList(Event):
    """Asks for the user's episodes, newest first; `session_id` narrows to one session."""

    type: Literal["episodes.list"]
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    reply_to: ReplyTo | None = None


class GraphStatus(Event):
    """Asks for the owner's graph counts and the tenant's rollout."""

    type: Literal["graph.status"]
    reply_to: ReplyTo | None = None


class GraphTrace(Event):
    """Asks for every step of one query's graph expansion."""

    type: Literal["graph.trace"]
    query: NonEmpty
    traversal_depth: int = 1
    reply_to: ReplyTo | None = None


class GraphExplore(Event):
    """Asks for a bounded subgraph."""

    type: Literal["graph.explore"]
    nodes: list[Name] = []
    hops: int = 1
    reply_to: ReplyTo | None = None


class UserStats(Event):
    """Asks for the owner's counts and bytes."""

    type: Literal["user.stats"]
    reply_to: ReplyTo | None = None


QueryEvent = Annotated[
    Recall | MemoryGet | MemoryHistory | EpisodesList | GraphStatus | GraphTrace | GraphExplore | UserStats,
    Field(discriminator="type"),
]
