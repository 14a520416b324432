"""Requests of mem0's interface: entities as owners, ids, bodies and filters.

A memory of mem0 may belong to a user, an agent, an app and a run at once; ours has one owner, the first of them. An
owner that is no user has a name with its kind (`agent:planner`); users with such names are refused."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import parse_time
from recallflow.limits import FILTER_LEVELS_MAX

USER, AGENT, APP, RUN = "user_id", "agent_id", "app_id", "run_id"
ENTITIES = (USER, AGENT, APP, RUN)
AGENT_LABEL = AGENT  # metadata field of the agent
_PREFIXES = {AGENT: "agent:", APP: "app:", RUN: "run:"}
MESSAGES_MAX = 100
DAY_MS = 24 * 60 * 60 * 1_000
PAGE_MAX = 1_000
PAGE_CHARACTERS = 8_000_000  # size limit of a page's memories
_PROBLEMS = {"extra_forbidden": "is not supported here: leave it out"}
T = TypeVar("T", bound=BaseModel)
_LOGICAL = {"AND": "all", "OR": "any", "NOT": "not"}
_ANY = "*"
_FilterMaker = Callable[[list[Any]], dict[str, Any]]  # values → a filter of ours


def owner_of(entities: Mapping[str, str]) -> tuple[str, str]:
    """Return our name of the owner, and the kind of entity that it is. Raise InvalidRecord without an entity."""
    for kind in ENTITIES:
        if name := entities.get(kind):
            for reserved, prefix in _PREFIXES.items() if kind == USER else ():
                if name.startswith(prefix):
                    raise invalid(USER, f"begins with {prefix}, reserved for {reserved}: give {reserved} instead")
            return _PREFIXES.get(kind, "") + name, kind
    raise invalid(USER, f"is missing: give one of {', '.join(ENTITIES)}, at the top level or in filters")


def owner_and_fields(entities: Mapping[str, str], metadata: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Return the owner and the further fields of a new memory: a run becomes the session, an app the project, and an
    agent goes into the metadata. Raise InvalidRecord."""
    labels = {**(metadata or {}), **({AGENT_LABEL: agent} if (agent := entities.get(AGENT)) else {})}
    fields = {"session_id": entities.get(RUN), "project_id": entities.get(APP), "metadata": labels}
    return owner_of(entities)[0], {name: value for name, value in fields.items() if value}


def shown_entities(user_id: str, version: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the entities of a memory under mem0's names."""
    agent = (version.get("metadata") or {}).get(AGENT_LABEL)
    entities = {USER: None, AGENT: agent, APP: version.get("project_id"), RUN: version.get("session_id")}
    kind, prefix = next((one for one in _PREFIXES.items() if user_id.startswith(one[1])), (USER, ""))
    return entities | {kind: user_id.removeprefix(prefix)}


def mem0_id(user_id: str, memory_id: str) -> str:
    """Return mem0's id of a memory. It contains the owner, because clients send this id alone."""
    return f"{quote(user_id, safe='')}:{quote(memory_id, safe='')}"


def our_id(mem0_id: str) -> tuple[str, str]:
    """Return owner and memory id of mem0's id of a memory. Raise InvalidRecord (`not_found`)."""
    user_id, colon, memory_id = mem0_id.partition(":")
    if not (user_id and colon and memory_id):
        raise not_found("memory_id", "is not an id of recallflow")
    return unquote(user_id), unquote(memory_id)


def invalid(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord.of("invalid_event", problem, field)


def not_found(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord.of("not_found", problem, field)


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class IgnoredParameters(Fields):
    """Parameters without effect: mem0's choices of processing."""

    async_mode: bool | None = None
    enable_graph: bool | None = None
    keyword_search: bool | None = None
    org_id: str | None = None
    output_format: str | None = None
    project_id: str | None = None
    rerank: bool | None = None
    source: str | None = None
    version: str | None = None


class Body(IgnoredParameters):
    """DELETE /v1/memories/, and the fields of other requests that name the owner."""

    user_id: str | None = None
    agent_id: str | None = None
    app_id: str | None = None
    run_id: str | None = None
    filters: dict[str, Any] | None = None

    @property
    def entities(self) -> dict[str, str]:
        """Return the entities given outside of the filters."""
        return {kind: name for kind in ENTITIES if (name := getattr(self, kind))}


class Add(Body):
    """POST /v3/memories/add/"""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)]
    metadata: dict[str, Any] | None = None
    infer: bool | None = None  # ignored: no facts are inferred, messages are stored unchanged
    timestamp: Annotated[float, Field(ge=0, le=253_402_300_799)] | None = None
    expiration_date: str | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _as_list(cls, messages: object) -> object:
        if isinstance(messages, str):
            return [{"role": "user", "content": messages}]
        return [messages] if isinstance(messages, dict) else messages


class Search(Body):
    """POST /v3/memories/search/"""

    query: str
    top_k: Annotated[int, Field(ge=1, validation_alias=AliasChoices("top_k", "limit"))] = 10
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    fields: list[str] | None = None
    categories: list[str] | None = None
    show_expired: Literal[False] | None = None
    latest_only: Literal[True] | None = None


class GetAll(Body):
    """POST /v3/memories/"""

    page: Annotated[int, Field(ge=1)] = 1
    page_size: Annotated[int, Field(ge=1, le=PAGE_MAX)] = 100
    start_date: str | None = None
    end_date: str | None = None
    categories: list[str] | None = None
    show_expired: Literal[False] | None = None
    latest_only: Literal[True] | None = None


class Delete(IgnoredParameters):
    """DELETE /v1/memories/ID/"""

    delete_linked: bool = False


class Update(Fields):
    """PUT /v1/memories/ID/"""

    text: str | None = None
    metadata: dict[str, Any] | None = None
    expiration_date: str | None = None


def read(model: type[T], source: bytes | Mapping[str, str]) -> T:
    """Return the parsed body or URL parameters. Raise InvalidRecord, which names every wrong field."""
    try:
        if isinstance(source, bytes):
            return model.model_validate_json(source or b"{}")
        return model.model_validate({**source})
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
    if problems[0]["type"] == "json_invalid":
        raise InvalidRecord.of("invalid_json", problems[0]["msg"])
    fields = [FieldProblem(".".join(map(str, p["loc"])), _PROBLEMS.get(p["type"], p["msg"])) for p in problems]
    raise InvalidRecord("invalid_event", fields)


def time_ms(field: str, time: Any) -> int:
    """Return a time in epoch milliseconds. Raise InvalidRecord."""
    try:
        return parse_time(time)
    except ValueError as error:
        raise invalid(field, str(error)) from None


def date_filters(start_date: str | None, end_date: str | None) -> dict[str, int]:
    """Return filters for memories from one date or time to another, both included. Raise InvalidRecord."""
    filters = {} if start_date is None else {"created_after": time_ms("start_date", start_date)}
    if end_date is not None:
        is_day = len(end_date) == len("2026-01-31")
        filters["created_before"] = time_ms("end_date", end_date) + (DAY_MS if is_day else 1)
    return filters


def expires_at(date: str | None) -> str | None:
    """Return the expiry time for a last valid date. Raise InvalidRecord."""
    if date is None:
        return None
    try:
        last = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
        return (last + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        raise invalid("expiration_date", "is no date; give YYYY-MM-DD") from None


def parse_filters(body: Body) -> tuple[str, dict[str, Any]]:
    """Return the owner, and our filters for mem0's `filters` and the entities outside of them. Raise InvalidRecord."""
    required, conditions = _split_entities(body)
    user_id, kind = owner_of(required)
    conditions += [{entity: name} for entity, name in required.items() if entity != kind]
    converted = [one for condition in conditions for one in _convert(condition, 1)]
    return user_id, {"all": converted} if converted else {}


def entities_only(body: Body) -> dict[str, str]:
    """Return the entities of a request whose filters may contain nothing else. Raise InvalidRecord."""
    required, conditions = _split_entities(body)
    if conditions:
        raise invalid(f"filters.{next(iter(conditions[0]))}", f"is no entity; there are {', '.join(ENTITIES)}")
    return required


def _split_entities(body: Body) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the required entities, inside and outside of the filters, and the other conditions."""
    required, conditions = body.entities, []
    for field, value in _required_conditions(body.filters or {}):
        name = _single_name(value)
        if field not in ENTITIES or name is None:
            conditions.append({field: value})
        elif required.setdefault(field, name) != name:
            raise invalid(f"filters.{field}", "is given twice, and differs")
    return required, conditions


def _required_conditions(filters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the conditions that must all hold: conditions at the top level and inside a top-level AND."""
    for field, value in filters.items():
        if field == "AND":
            for one in _conditions(field, value):
                yield from one.items()
        else:
            yield field, value


def _single_name(value: Any) -> str | None:
    if isinstance(value, dict) and value.keys() == {"eq"}:
        value = value["eq"]
    if isinstance(value, dict) and value.keys() == {"in"} and isinstance(value["in"], list) and len(value["in"]) == 1:
        value = value["in"][0]
    return value if isinstance(value, str) and value not in ("", _ANY) else None


def _conditions(field: str, value: Any) -> list[dict[str, Any]]:
    conditions = value if isinstance(value, list) else [value]
    if not conditions or not all(isinstance(one, dict) and one for one in conditions):  # an empty one admits all
        raise invalid(f"filters.{field}", "is no list of conditions")
    return conditions


def _convert(condition: Mapping[str, Any], level: int) -> Iterator[dict[str, Any]]:
    """Yield our filters for a condition; all must hold. Raise InvalidRecord."""
    if level > FILTER_LEVELS_MAX:
        raise invalid("filters", f"nests more than {FILTER_LEVELS_MAX} levels deep; flatten it")
    for field, value in condition.items():
        if field in _LOGICAL:
            converted = [[*_convert(one, level + 1)] for one in _conditions(field, value)]
            yield {_LOGICAL[field]: [{"all": every} if len(every) != 1 else every[0] for every in converted if every]}
        elif field == "created_at":
            yield _time_filter(value)
        elif field == "metadata":
            if not isinstance(value, dict) or not value:
                raise invalid("filters.metadata", "is no object of fields and values")
            for name, comparison in value.items():
                yield from _comparisons(f"metadata.{name}", comparison, partial(_metadata_filter, name))
        elif field in _FILTER_MAKERS:
            yield from _comparisons(field, value, _FILTER_MAKERS[field])
        elif field == USER:
            problem = "must be one user, at the top level or in AND: a request reads the memories of one user"
            raise invalid("filters.user_id", problem)
        else:
            known = ", ".join((*ENTITIES, "categories", "created_at", "metadata", *_LOGICAL))
            raise invalid(f"filters.{field}", f"is not supported; there are {known}")


def _comparisons(field: str, value: Any, make: _FilterMaker) -> Iterator[dict[str, Any]]:
    """Yield filters for equality with one value or any of several, or their negation."""
    operators = value if isinstance(value, dict) else {"in" if isinstance(value, list) else "eq": value}
    if not operators:
        raise invalid(f"filters.{field}", "names no value")
    for operator, operand in operators.items():
        values = operand if isinstance(operand, list) else [operand]
        if _ANY in values:
            raise invalid(f"filters.{field}", "cannot be any (*): name a value, or leave it out")
        if operator in ("eq", "in") or (field, operator) == ("categories", "contains"):
            yield make(values)
        elif operator in ("ne", "nin"):
            yield {"not": make(values)}
        else:
            raise invalid(f"filters.{field}.{operator}", "is not supported; there are eq, ne, in, nin")


def _metadata_filter(name: str, values: list[Any]) -> dict[str, Any]:
    return {"metadata": {name: values}}


_FILTER_MAKERS: Mapping[str, _FilterMaker] = {
    AGENT: partial(_metadata_filter, AGENT_LABEL),
    APP: lambda values: {"any": [{"project_id": value} for value in values]},
    RUN: lambda values: {"session_ids": values},
    "categories": lambda values: {"categories": values},
}
# Operator → our filter; milliseconds to add, because our filters include their start and exclude their end; and the
# function that chooses the stricter of two times.
_TIME_OPERATORS: Mapping[str, tuple[str, int, Callable[[int, int], int]]] = {
    "gt": ("created_after", 1, max), "gte": ("created_after", 0, max),
    "lt": ("created_before", 0, min), "lte": ("created_before", 1, min),
}  # fmt: skip


def _time_filter(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise invalid("filters.created_at", "give an object of gt, gte, lt, lte")
    times_ms: dict[str, int] = {}
    for operator, time in value.items():
        if operator not in _TIME_OPERATORS:
            raise invalid(f"filters.created_at.{operator}", "is not supported; there are gt, gte, lt, lte")
        field, added_ms, stricter = _TIME_OPERATORS[operator]
        at_ms = time_ms(f"filters.created_at.{operator}", time) + added_ms
        times_ms[field] = stricter(at_ms, times_ms.get(field, at_ms))
    return times_ms
