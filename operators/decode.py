"""Bytes → a valid event, or a refusal that names every wrong field."""

import logging
from collections.abc import Container
from functools import partial
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from recallflow import limits
from recallflow.encodings import unmarked, wrapping
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Event, MemoryEvent
from recallflow.fields import NOT_BLANK
from recallflow.operators.events import Ask, Refused, Tagged, Write
from recallflow.operators.guard import twice
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position, Record

MAX_DEPTH = 200  # the JSON parser's own
STEP = "decode"
UNKNOWN_REPORTED = 1_000  # fields that nobody reads, in the life of a process

_log = logging.getLogger(__name__)
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[MemoryEvent | QueryEvent, Field(discriminator="type")])


def _types(union: Any) -> frozenset[str]:
    return frozenset(get_args(m.model_fields["type"].annotation)[0] for m in get_args(get_args(union)[0]))


MEMORY_TYPES = _types(MemoryEvent)
QUERY_TYPES = _types(QueryEvent)
_QUERY_NAMES = tuple(f'"{kind}"'.encode() for kind in sorted(QUERY_TYPES))


def decode(record: Record, skips: Container[Position] = ()) -> Tagged:
    """A record that is no valid event, that our own code fails at, or that an operator wants passed over (`skips`),
    comes out as `Refused`."""
    if record.position in skips:
        return Refused(record, _refuse("skipped", "passed over unread, as run --skip said"), STEP)
    try:
        return twice(STEP, record.position, partial(_tagged, record))
    except InvalidRecord as error:
        return Refused(record, error, STEP, _query_id(record))


def _tagged(record: Record) -> Write | Ask:
    event = parse(record.value)
    owner = Owner(event.tenant_id, event.environment, event.user_id)
    if event.type in QUERY_TYPES:  # type: ignore[attr-defined]
        return Ask(record, event, owner)  # type: ignore[arg-type]
    return Write(record, event, owner)  # type: ignore[arg-type]


def parse(value: bytes) -> Event:
    """JSON of any memory or query event → its model. Raises InvalidRecord."""
    if len(value) > limits.RECORD_BYTES:
        raise _refuse("too_large", f"over {limits.RECORD_BYTES} bytes; split it, or store a reference")
    value = unmarked(value)
    if not value.strip():
        raise _refuse("invalid_json", "empty; send one JSON object")
    _check_size(value)
    try:
        event = _EVENT.validate_json(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        if problems[0]["type"] == "json_invalid":
            raise _refuse("invalid_json", wrapping(value) or _unreadable(problems[0]["msg"])) from None
        raise _invalid(problems) from None
    if event.model_extra:
        _report_unknown(event)
    return event


def _check_size(value: bytes) -> None:
    """Refuses an event of so many values that only looking at all that is wrong with it would take too long."""
    # A value stands behind a comma or opens a container: there are no more than these.
    if value.count(b",") + value.count(b"[") + value.count(b"{") < limits.VALUES_MAX:
        return
    try:
        raw = from_json(value)
    except ValueError:
        return  # it is no JSON: what is wrong is told by who validates it
    sizes = {name: _values(held) for name, held in raw.items()} if isinstance(raw, dict) else {"": _values(raw)}
    if sum(sizes.values()) > limits.VALUES_MAX:
        field = max(sizes, key=lambda name: sizes[name])
        problem = f"too many values; an event may hold {limits.VALUES_MAX:,}: send several events"
        raise _refuse("invalid_event", problem, field)


def _values(held: object) -> int:
    """How many values there are in a value, itself included; no more are counted than an event may hold."""
    count, ahead = 0, [held]
    while ahead and count <= limits.VALUES_MAX:
        count += 1
        match ahead.pop():
            case dict() as fields:
                ahead += fields.values()
            case list() as items:
                ahead += items
    return count


def unknown_fields(model: Event) -> list[str]:
    """Names of the fields the sender gave that no one reads."""
    return sorted(model.model_extra or {})


def _report_unknown(event: Event) -> None:
    for field in unknown_fields(event):
        _report_once(type(event).__name__, field)


_reported: set[tuple[str, str]] = set()


def _report_once(kind: str, field: str) -> None:
    """Fields beyond the first so many are not told of, nor kept: their names are the sender's, and may be anything."""
    if len(field) > limits.PROBLEM_CHARACTERS or len(_reported) >= UNKNOWN_REPORTED or (kind, field) in _reported:
        return
    _reported.add((kind, field))
    _log.warning("%s events carry a field %r that is not read; reported once", kind, field)


def _refuse(code: Any, problem: str, field: str = "") -> InvalidRecord:
    return InvalidRecord(code, [FieldProblem(field, problem)])


def _unreadable(said: str) -> str:
    if "recursion limit" in said:  # the parser's own words name neither the limit nor what to do
        return f"nested more than {MAX_DEPTH} levels deep; flatten it, or store it as text"
    return said


def _invalid(errors: list[ErrorDetails]) -> InvalidRecord:
    first = errors[0]
    if first["type"] == "union_tag_not_found":
        return _refuse("unknown_type", "missing; give one of " + _known_types(), "type")
    if first["type"] == "union_tag_invalid":
        return _refuse("unknown_type", "not a known type; give one of " + _known_types(), "type")
    problems: dict[str, str] = {}
    for error in errors:
        field, problem = _problem(error)
        if error["type"] == "too_long":  # of a list where a text would do as well, this says more
            problems[field] = problem
        problems.setdefault(field, problem)
    listed = [FieldProblem(field, problem) for field, problem in problems.items()]
    return InvalidRecord("invalid_event", listed)


def _problem(error: ErrorDetails) -> tuple[str, str]:
    """Field and problem of one of pydantic's errors, said so that the sender knows what to do."""
    field, said = _path(error["loc"]), error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch":
        return field, "is blank" if said.endswith(f"'{NOT_BLANK}'") else "holds a control character"
    limit = error.get("ctx", {}).get("max_length")
    if error["type"] == "too_long":
        return field, f"has {error['ctx']['actual_length']:,} items; it may have {limit:,}: send several events"
    if error["type"] == "string_too_long":
        return field, f"may have at most {limit:,} characters: shorten it"
    about, _, rest = said.partition(": ")
    if not field and rest:  # a check of the whole event that names the field it is about
        return about, rest
    return field, said


def _known_types() -> str:
    return ", ".join(sorted(MEMORY_TYPES | QUERY_TYPES))


def _path(location: tuple[int | str, ...]) -> str:
    """pydantic's error location → dotted path. Neither event types nor a union's arms are fields."""
    parts = [str(part) for part in location if part not in MEMORY_TYPES | QUERY_TYPES]
    return ".".join(part for part in parts if "[" not in part and part not in ("str", "int", "constrained-str"))


def asks(value: bytes) -> bool:
    """Whether bytes are a query, and so will be answered, if only with an error. Cheap where they are not."""
    if not any(name in value for name in _QUERY_NAMES) and b"\\u" not in value:
        return False
    return _raw_query(value) is not None


def _raw_query(value: bytes) -> dict[str, Any] | None:
    """The fields of what is recognisably a query, right or wrong."""
    try:
        raw = from_json(unmarked(value))
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(kind := raw.get("type"), str) or kind not in QUERY_TYPES:
        return None
    return raw


def _query_id(record: Record) -> str | None:
    """The id to answer under, where the refused record is recognisably a query."""
    raw = _raw_query(record.value)
    if raw is None:
        return None
    given = raw.get("id")
    return given[:128] if isinstance(given, str) and given else str(record.position)
