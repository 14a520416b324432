"""What clients of mem0 send. A field that would change what is done, and that we do not have, is refused."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from recallflow.connectors.http.mem0.entities import ENTITIES
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.fields import parse_time

MESSAGES_MAX = 100
DAY_MS = 24 * 60 * 60 * 1_000
PAGE_MAX = 1_000
PAGE_CHARACTERS = 8_000_000  # of the memories of a page
DEEPEST = 20_000  # memories, newest first, of which pages are counted
_PROBLEMS = {"extra_forbidden": "is not supported here: leave it out (docs/services.md says what is)"}

T = TypeVar("T", bound=BaseModel)


class Ways(BaseModel):
    """What any request may carry, without effect: it chooses among ways that mem0 has of doing it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    async_mode: bool | None = None
    enable_graph: bool | None = None
    keyword_search: bool | None = None
    org_id: str | None = None
    output_format: str | None = None
    project_id: str | None = None
    rerank: bool | None = None
    source: str | None = None
    version: str | None = None


class Body(Ways):
    """What says whose memories are meant."""

    user_id: str | None = None
    agent_id: str | None = None
    app_id: str | None = None
    run_id: str | None = None
    filters: dict[str, Any] | None = None

    @property
    def entities(self) -> dict[str, str]:
        """The entities that are given beside the filters."""
        return {kind: name for kind in ENTITIES if (name := getattr(self, kind))}


class Add(Body):
    """POST /v3/memories/add/"""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)]
    metadata: dict[str, Any] | None = None
    infer: bool | None = None  # nobody infers anything: messages are stored as they stand
    timestamp: Annotated[float, Field(ge=0, le=253_402_300_799)] | None = None
    expiration_date: str | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _as_list(cls, given: object) -> object:
        if isinstance(given, str):
            return [{"role": "user", "content": given}]
        return [given] if isinstance(given, dict) else given


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


class DeleteAll(Body):
    """DELETE /v1/memories/"""


class Delete(Ways):
    """DELETE /v1/memories/ID/"""

    delete_linked: bool = False


class Update(BaseModel):
    """PUT /v1/memories/ID/"""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str | None = None
    metadata: dict[str, Any] | None = None
    expiration_date: str | None = None


def read(model: type[T], body: bytes) -> T:
    """Raises InvalidRecord, which names every field that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise _refused(error) from None


def read_parameters(model: type[T], given: Mapping[str, str]) -> T:
    """The same out of the parameters of a URL."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise _refused(error) from None


def merged(body: bytes, parameters: Mapping[str, str]) -> bytes:
    """A body with the page that is asked for beside it. Raises InvalidRecord."""
    try:
        fields = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("invalid_json", [FieldProblem("", str(error))]) from None
    if not isinstance(fields, dict):
        raise InvalidRecord("invalid_event", [FieldProblem("", "is no object")])
    return orjson.dumps(fields | dict(parameters))


def between(start_date: str | None, end_date: str | None) -> dict[str, int]:
    """Filters for memories from one date to another, both included. Raises InvalidRecord."""
    filters = {}
    for name, field, given in (("start_date", "created_after", start_date), ("end_date", "created_before", end_date)):
        if given is None:
            continue
        try:
            at_ms = parse_time(given)
        except ValueError as error:
            raise InvalidRecord("invalid_event", [FieldProblem(name, str(error))]) from None
        is_day = len(given) == len("2026-01-31")
        filters[field] = at_ms if name == "start_date" else at_ms + (DAY_MS if is_day else 1)
    return filters


def expires_at(date: str | None) -> str | None:
    """When a memory expires that counts up to a date, that day included. Raises InvalidRecord."""
    if date is None:
        return None
    try:
        last = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
        return (last + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        raise InvalidRecord("invalid_event", [FieldProblem("expiration_date", "is no date; give YYYY-MM-DD")]) from None


def _refused(error: ValidationError) -> InvalidRecord:
    problems = error.errors(include_input=False, include_url=False)
    if problems[0]["type"] == "json_invalid":
        return InvalidRecord("invalid_json", [FieldProblem("", problems[0]["msg"])])
    fields = [FieldProblem(".".join(map(str, p["loc"])), _PROBLEMS.get(p["type"], p["msg"])) for p in problems]
    return InvalidRecord("invalid_event", fields)
