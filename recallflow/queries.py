"""Query events (topic `query.events`)."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import pydantic
from pydantic import AfterValidator, Field, ValidationInfo, WrapValidator, field_validator
from pydantic_core import InitErrorDetails

from recallflow import fields, limits
from recallflow.events import Event
from recallflow.fields import AS_INT, Fraction, Identifier, Int32, Layer, Name, NonEmpty, Role, StrictPart, Timestamp
from recallflow.limits import CURSOR_CHARACTERS
from recallflow.records import Position


class MemoryCursor(NamedTuple):
    """Cursor at a memory, by its event time (epoch milliseconds) and its id. It identifies the last entry of a page, so
    that insertions and deletions do not shift the next page."""

    created_ms: int
    memory_id: str

    def __str__(self) -> str:
        return f"m:{self.created_ms}:{self.memory_id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a cursor; return None for other text."""
        match = re.fullmatch(r"m:(-?\d{1,15}):(.+)", text, re.S)
        return None if match is None else cls(int(match[1]), match[2])


class EdgeCursor(NamedTuple):
    """Cursor at an edge, by the id of its store and its name there. Both are empty at the start of the list."""

    store_id: bytes
    name: bytes

    def __str__(self) -> str:
        return f"e:{self.store_id.hex()}{self.name.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a cursor; return None for other text."""
        match = re.fullmatch(r"e:([0-9a-f]{8})?((?:[0-9a-f]{2})*)", text)
        return None if match is None else cls(bytes.fromhex(match[1] or ""), bytes.fromhex(match[2]))


def _cursor_validator(*kinds: type[MemoryCursor | EdgeCursor]) -> AfterValidator:
    def check(text: str) -> str:
        if all(kind.parse(text) is None for kind in kinds):
            raise ValueError("is not the `after` of a page of this list; leave it out for the first page")
        return text

    return AfterValidator(check)


_CursorText = Annotated[str, Field(max_length=CURSOR_CHARACTERS)]
T = TypeVar("T")
Mode = Literal["recency", "relevance", "entity_focused", "balanced", "episode", "hybrid", "decayed", "auto"]
DecayFunction = Literal["exponential", "linear", "logarithmic", "step", "hyperbolic"]
Days = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False)]
Clamped = Annotated[int, AS_INT]  # a number outside its bounds is replaced by the nearest bound, with a warning
# Default weights of each mode's factors; in `hybrid`, log-odds of the semantic signal (docs/concepts/recall.md).
WEIGHTS: Mapping[Mode, Mapping[str, float]] = MappingProxyType({
    "hybrid": MappingProxyType({
        "semantic": 1.0, "cluster": 0.02, "recency": 0.03, "importance": 0.02, "usage": 0.01, "quality": 0.02,
        "decay": 0.01, "proximity": 0.45,  # only if the query has entities
    }),
    "balanced": MappingProxyType({"recency": 0.3, "semantic": 0.5, "proximity": 0.2}),
    # Each hop, up to the third, lowers the score by more than the whole range of the semantic signal.
    "entity_focused": MappingProxyType({"proximity": 0.93, "semantic": 0.07}),
    "episode": MappingProxyType({"relevance": 1.0, "mentions": 0.5}),
})  # fmt: skip
# Default weights of boosts, in log-odds of the semantic signal.
_BOOSTS = MappingProxyType({"relationship": 1.0, "personalisation": 0.10, "session_continuity": 0.03})
BOOSTS: Mapping[Mode, Mapping[str, float]] = MappingProxyType({"hybrid": _BOOSTS, "balanced": _BOOSTS})
K_MIN, K_MAX = 1, 50
HOPS_MIN, HOPS_MAX = 1, 3
MAX_TOKENS_MAX = 1_000_000  # more than a record can carry
Hops = Annotated[int, Field(ge=HOPS_MIN, le=HOPS_MAX), AS_INT]


def _check_position(text: str) -> str:
    try:
        Position.parse(text)
    except ValueError:
        raise ValueError("not a position; give topic:partition:offset") from None
    return text


def unknown_factors(mode: Mode | None, weights: object, *where: str) -> list[InitErrorDetails]:
    """Return a problem for each name in `weights` that is no factor or boost of the mode. In the mode `auto`, and
    without a valid mode, the factors and boosts of all modes are permitted."""
    modes = [*WEIGHTS] if mode is None or mode == "auto" else [mode]
    known = sorted({name for one in modes for names in (WEIGHTS, BOOSTS) for name in names.get(one, ())})
    listing = f"{mode or 'a mode'} weighs {', '.join(known) or 'nothing'}"
    unknown = [name for name in weights if name not in known] if isinstance(weights, dict) else []
    if len(unknown) > fields.FIELDS_MAX:
        raise ValueError(f"has {len(unknown):,} unknown factors; {listing}")
    problems = []
    for count, name in enumerate(unknown):
        similar = fields.nearest(name, known) if count < limits.PROBLEMS_MAX else None
        remedy = f"did you mean {similar}? {listing}" if similar else listing
        problems.append(fields.unknown_name_error("factor", (*where, name), remedy))
    return problems


ID_NAMES = ("id", "query_id")  # the fields that may contain the id of a query
PositionText = Annotated[str, Field(max_length=512), AfterValidator(_check_position)]
# `fail_fast`: only the first wrong value is reported, because converting very many errors takes long.
Values = Field(min_length=1, max_length=limits.FILTER_VALUES_MAX, fail_fast=True)


class Decay(StrictPart):
    """Decay of a memory's recency by age. Parameters are in days; only the ones the function uses count."""

    function: DecayFunction = "exponential"
    tau_days: Days = 30.0
    max_age_days: Days = 365.0
    threshold_days: Days = 30.0
    decay_days: Days = 30.0


def _filterable_value(value: object, check: pydantic.ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except pydantic.ValidationError:
        scalar = f"a text of up to {limits.METADATA_TEXT_CHARACTERS} characters, a number, true or false"
        raise ValueError(f"give {scalar}, or a list of up to {limits.FILTER_VALUES_MAX} such values") from None


MetadataText = Annotated[str, Field(max_length=limits.METADATA_TEXT_CHARACTERS)]
MetadataValue = MetadataText | bool | int | Annotated[float, Field(allow_inf_nan=False)]
MetadataName = Annotated[str, Field(min_length=1, max_length=limits.METADATA_NAME_CHARACTERS)]
MetadataValues = Annotated[MetadataValue | Annotated[list[MetadataValue], Values], WrapValidator(_filterable_value)]
Nested = Annotated[list["Filters"], Field(min_length=1, max_length=limits.FILTER_CONDITIONS_MAX)]
FewFields = Field(min_length=1, max_length=limits.FILTER_FIELDS_MAX)
OneOrSeveral = Annotated[
    Annotated["Filters", pydantic.Tag("[one]")] | Annotated[Nested, pydantic.Tag("[several]")],
    pydantic.Discriminator(lambda value: "[several]" if isinstance(value, list) else "[one]"),
]


class Filters(StrictPart):
    """Conditions on memories of the answer. Every field must match: a list with one of its values, `all_tags` with all.
    Of nested filters, every filter in `all` must match, at least one in `any`, and none in `not`."""

    model_config = pydantic.ConfigDict(serialize_by_alias=True)
    ALIASES = MappingProxyType({"AND": "all", "OR": "any", "NOT": "not", "$and": "all", "$or": "any", "$not": "not"})

    categories: Annotated[list[Name], Values] | None = None
    tags: Annotated[list[Name], Values] | None = None
    kinds: Annotated[list[Name], Values] | None = None
    layers: Annotated[list[Layer], Values] | None = None
    roles: Annotated[list[Role], Values] | None = None
    names: Annotated[list[Name], Values] | None = None
    project_id: Name | None = None
    session_ids: Annotated[list[Identifier], Values] | None = None
    created_after: Timestamp | None = None
    created_before: Timestamp | None = None
    min_confidence: Fraction | None = None
    min_importance: Fraction | None = None
    all_tags: Annotated[list[Name], Values] | None = None
    entities: Annotated[list[Name], Field(min_length=1, max_length=limits.URNS_MAX)] | None = None
    metadata: Annotated[dict[MetadataName, MetadataValues], FewFields] | None = None
    all: Nested | None = None
    any: Nested | None = None
    not_: OneOrSeveral | None = Field(default=None, alias="not")

    @property
    def none_of(self) -> "list[Filters]":
        return self.not_ if isinstance(self.not_, list) else [] if self.not_ is None else [self.not_]


def _check_size(filters: Any) -> Any:
    """Check the size of nested filters before parsing: evaluating very many, or listing their errors, takes long."""
    conditions, unknown, level, ahead = 0, 0, 0, [filters]
    known = {field.alias or name for name, field in Filters.model_fields.items()}
    while ahead:
        level += 1
        if level > limits.FILTER_LEVELS_MAX:
            raise ValueError(f"nests more than {limits.FILTER_LEVELS_MAX} levels deep; flatten it")
        inner = []
        for one in ahead:
            fields = one.model_dump(exclude_unset=True, by_alias=True) if isinstance(one, Filters) else one
            if not isinstance(fields, dict):
                conditions += 1
                continue
            conditions += len(fields)
            unknown += sum(name not in known for name in fields)
            for name in ("all", "any", "not"):
                nested = fields.get(name, [])
                inner += nested if isinstance(nested, list) else [nested]
        ahead = inner
    if conditions > limits.FILTER_CONDITIONS_MAX:
        raise ValueError(f"has {conditions:,} conditions at all levels; it may have {limits.FILTER_CONDITIONS_MAX}")
    if unknown > limits.PROBLEMS_MAX:
        raise ValueError(f"has {unknown} unknown fields; there are {', '.join(sorted(known))}")
    return filters


Conditions = Annotated[Filters, pydantic.BeforeValidator(_check_size)]


class AsOf(StrictPart):
    """A past moment. `event_time`: ignore later events; `ingestion_time`: ignore events that arrived later."""

    event_time: Timestamp | None = None
    ingestion_time: Timestamp | None = None

    @pydantic.model_validator(mode="after")
    def _names_a_time(self) -> Self:
        if self.event_time is None and self.ingestion_time is None:
            raise ValueError("names no time; give event_time, ingestion_time or both, or leave as_of out")
        return self


class ReplyTo(StrictPart):
    """Another response topic. The engine's settings list the permitted topics."""

    topic: Name
    partition: Int32 | None = None


class Query(Event):
    """Fields of every query: positions to apply before the answer, and the address of the answer.

    `wait_timeout_ms` limits the wait for these positions. It also limits the wait of a query that found nothing while
    the log has unapplied records. `id` may also be called `query_id`, as in the answer."""

    id: Annotated[Identifier | None, Field(validation_alias=pydantic.AliasChoices(*ID_NAMES))] = None
    wait_for: PositionText | Annotated[list[PositionText], Field(max_length=limits.POSITIONS_MAX)] | None = None
    wait_timeout_ms: Annotated[int, Field(ge=0, le=60_000), AS_INT] = 2_000
    reply_to: ReplyTo | None = None


class Recall(Query):
    """Asks for ranked memories. Warnings report a `k` clamped to 1-50, a `traversal_depth` to 1-3, or a cut query."""

    type: Literal["recall"]
    query: NonEmpty
    k: Clamped = 10
    mode: Mode = "hybrid"
    strategy: Literal["baseline", "hybrid_graph"] = "baseline"
    traversal_depth: Clamped = 1
    decay: Decay = Decay()
    weights: dict[str, Weight] | None = None
    filters: Conditions = Filters()
    min_relevance: Fraction | None = None
    entity_urns: Annotated[list[Name], Field(max_length=limits.URNS_MAX)] = []
    max_episodes: Annotated[int, Field(ge=1, le=K_MAX), AS_INT] | None = None
    whole_episodes: bool = False
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_MAX), AS_INT] | None = None
    select_categories: bool = False
    check_sufficiency: bool = False
    rewrite: bool = False
    as_of: AsOf | None = None
    include_history: bool = False
    sla_target_ms: Annotated[float, Field(gt=0, le=86_400_000, allow_inf_nan=False)] | None = None
    explain: bool = False

    @field_validator("weights", mode="wrap")
    @classmethod
    def _known_factors(cls, weights: object, check: pydantic.ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        return fields.check_all(weights, check, unknown_factors(info.data.get("mode"), weights))

    @field_validator("max_episodes", "whole_episodes")
    @classmethod
    def _needs_episodes(cls, value: T, info: ValidationInfo) -> T:
        if value and info.data.get("mode") not in ("episode", "auto", None):
            raise ValueError("only the mode episode answers by episodes; use the mode episode or auto")
        return value


class MemoryGet(Query):
    """Asks for one memory by its id."""

    type: Literal["memory.get"]
    memory_id: Identifier


class MemoryHistory(Query):
    """Asks for all versions of one memory."""

    type: Literal["memory.history"]
    memory_id: Identifier


class MemoriesList(Query):
    """Asks for the user's memories, newest first, page by page: `after` is the cursor of the previous page. The pages
    include memories that recall omits, with the reasons in `marks`."""

    type: Literal["memories.list"]
    filters: Conditions = Filters()
    limit: Annotated[int, Field(ge=1, le=1_000), AS_INT] = 100
    after: Annotated[_CursorText, _cursor_validator(MemoryCursor)] | None = None
    as_of: AsOf | None = None


class EpisodesList(Query):
    """Asks for the user's episodes, newest first; `session_id` narrows to one session."""

    type: Literal["episodes.list"]
    limit: Annotated[int, Field(ge=1, le=1_000), AS_INT] = 100


class GraphStatus(Query):
    """Asks for the owner's graph counts and the tenant's rollout."""

    type: Literal["graph.status"]


class GraphTrace(Query):
    """Asks for every step of the graph expansion that a recall query with the same fields would have."""

    type: Literal["graph.trace"]
    query: NonEmpty
    k: Annotated[int, Field(ge=K_MIN, le=K_MAX), AS_INT] = 10
    mode: Mode = "hybrid"
    filters: Conditions = Filters()
    traversal_depth: Hops = 1
    as_of: AsOf | None = None


class GraphExplore(Query):
    """Asks for a bounded subgraph within `hops` of `nodes` (memory ids, node keys, URNs, entity names; by default, the
    newest memories), or, with `whole`, for a page of the graph: `after` is the cursor of the previous page."""

    type: Literal["graph.explore"]
    whole: bool = False
    nodes: Annotated[list[Name], Field(max_length=20)] = []
    hops: Hops = 1
    limit: Annotated[int, Field(ge=1, le=500), AS_INT] = 200
    after: Annotated[_CursorText, _cursor_validator(MemoryCursor, EdgeCursor)] | None = None
    as_of: AsOf | None = None

    @field_validator("nodes", "hops", "limit", "after")
    @classmethod
    def _check_whole(cls, value: T, info: ValidationInfo) -> T:
        excludes_whole = info.field_name in ("nodes", "hops")  # the other fields need `whole`
        if value and info.data.get("whole") is excludes_whole:
            raise ValueError("not with `whole`: leave it out" if excludes_whole else "only with `whole`: give it too")
        return value


class GraphFacts(Query):
    """Asks for relations: edges with the memories that state them. They are selected by words, by the entities at their
    ends (names, URNs, keys, memory ids) and by type; invalid relations only with `include_history`."""

    type: Literal["graph.facts"]
    query: NonEmpty | None = None
    entities: Annotated[list[Name], Field(max_length=limits.FACT_ENTITIES_MAX)] = []
    types: Annotated[list[Name], Values] = []
    as_of: AsOf | None = None
    include_history: bool = False
    limit: Annotated[int, Field(ge=1, le=200)] = 20


class UserStats(Query):
    """Asks for the owner's counts and bytes."""

    type: Literal["user.stats"]


QueryEvent = Annotated[
    Recall | MemoryGet | MemoryHistory | MemoriesList | EpisodesList
    | GraphStatus | GraphTrace | GraphExplore | GraphFacts | UserStats,
    Field(discriminator="type"),
]  # fmt: skip
