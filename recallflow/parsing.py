"""Parsers of memory events, queries and control events.

An invalid event raises InvalidRecord with every wrong field."""

import codecs
import json
import logging
import re
from functools import cache
from itertools import islice
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from recallflow import limits
from recallflow.control import Control, ControlEvent
from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.events import Event, MemoryEvent
from recallflow.fields import NOT_BLANK, Model, json_values
from recallflow.queries import QueryEvent

MAX_DEPTH = 201  # limit of the JSON parser
CONVERTED_MAX = 500  # problems of one event that are converted, which takes longer than finding them
UNKNOWN_REPORTED = 100  # unknown fields that a process logs
_BYTE_ORDER_MARKS = {  # the longer ones first: UTF-32's mark begins with UTF-16's
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}  # fmt: skip
_PROBLEMS = {  # type of a pydantic error → problem and remedy
    "bool_type": "neither true nor false; give one of them, without quotes",
    "float_type": "not a number; give one, without quotes",
    "int_from_float": "not a whole number; give one",
    "int_type": "not a whole number; give one, without quotes",
    "string_too_short": "is empty; give some text",
    "too_short": "is empty; give at least one, or leave it out",
}
_NUMBER_ERRORS = "float_type", "finite_number"
_FIELD_NAME = re.compile(rb'"([\w\\]+)"\s*:')
_FRAME_BYTES = 5  # frame of a schema registry: a zero byte, and the schema's id in four bytes
_log = logging.getLogger(__name__)
M = TypeVar("M", bound=Model)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")  # shorter than any API key or token
_reported: set[tuple[str, str]] = set()


# Built for the first record: the import of a client must not wait for them.
@cache
def _event() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[MemoryEvent | QueryEvent, Field(discriminator="type")])


@cache
def _control() -> TypeAdapter[Control]:
    return TypeAdapter(ControlEvent)


def _types_of(*models: type[Model]) -> frozenset[str]:
    return frozenset(get_args(model.model_fields["type"].annotation)[0] for model in models)


def _types(union: Any) -> frozenset[str]:
    return _types_of(*get_args(get_args(union)[0]))


QUERY_TYPES = _types(QueryEvent)
EVENT_TYPES = _types(MemoryEvent) | QUERY_TYPES
_CONTROL_TYPES = _types(ControlEvent)
_END_TYPES = QUERY_TYPES | {"memory.feedback"}
_QUERY_TYPE, _END_TYPE = (
    re.compile("|".join(f'"{re.escape(kind)}"' for kind in sorted(types)).encode())
    for types in (QUERY_TYPES, _END_TYPES)
)


def parse(value: bytes) -> Event:
    """Parse JSON of any memory or query event. Raise InvalidRecord."""
    if len(value) > limits.RECORD_BYTES:
        raise InvalidRecord.of("too_large", f"over {limits.RECORD_BYTES} bytes; split it, or store a reference")
    value = without_bom(value)
    if not value.strip():
        raise InvalidRecord.of("invalid_json", "empty; send one JSON object")
    if len(value) >= limits.VALUES_MAX:  # a shorter event has fewer values than bytes
        _check_size(value)
    try:
        event = _event().validate_json(value)
    except ValidationError as error:
        raise _invalid(value, error, EVENT_TYPES, "unknown_type") from None
    _check_names(value)
    if event.model_extra:
        for field in unknown_fields(event):
            _report_once(type(event).__name__, field)
    return event


def parse_control(value: bytes) -> Control:
    """Parse JSON of any control event. Raise InvalidRecord."""
    try:
        event = _control().validate_json(without_bom(value))
    except ValidationError as error:
        raise _invalid(value, error, _CONTROL_TYPES, "invalid_event") from None
    _check_names(without_bom(value))
    return event


def unknown_fields(event: Event) -> list[str]:
    return sorted(event.model_extra or {})


def is_query(value: bytes) -> bool:
    """Return whether a record is a query, valid or invalid: both get an answer. Fast for memory events."""
    return (_QUERY_TYPE.search(value) is not None or b"\\u" in value) and raw_event(value, QUERY_TYPES) is not None


def ends_batch(value: bytes) -> bool:
    """Return whether later records must wait for the outputs of this record: a quality gate counts answers and
    feedback, and its verdicts affect later answers of all owners. Fast for other records."""
    return (_END_TYPE.search(value) is not None or b"\\u" in value) and raw_event(value, _END_TYPES) is not None


def raw_event(value: bytes, types: frozenset[str] = EVENT_TYPES) -> dict[str, Any] | None:
    """Return the fields of an event of these types, valid or invalid; None if its type is not recognisable."""
    try:
        raw = from_json(without_bom(value))
    except ValueError:
        return None
    return raw if isinstance(raw, dict) and isinstance(kind := raw.get("type"), str) and kind in types else None


def without_bom(value: bytes) -> bytes:
    """Return UTF-8 without a byte order mark, which some editors and shells write."""
    return value.removeprefix(codecs.BOM_UTF8)


def encoding_problem(value: bytes) -> str | None:
    """Return problem and remedy for JSON in another encoding, or in a schema registry's frame, by its first bytes."""
    for name, marks in _BYTE_ORDER_MARKS.items():
        if value.startswith(marks):
            return f"is {name}; send UTF-8"
    zeros = [byte == 0 for byte in value[:8].ljust(8, b" ")]
    if zeros == [False, True, True, True] * 2 or zeros == [True, True, True, False] * 2:
        return "is UTF-32; send UTF-8"
    # In UTF-16, a line begins with a zero byte if the text was split after the first byte of a line feed.
    if zeros[:4] in ([False, True, False, True], [True, False, True, False]):
        return "is UTF-16; send UTF-8"
    schema = int.from_bytes(value[1:_FRAME_BYTES], "big")
    if zeros[0] and schema > 0 and len(value) > _FRAME_BYTES:
        return f"is framed by a schema registry (schema {schema}); give its address to the engine (schema.registry.url)"
    return None


def parse_as(model: type[M], value: bytes) -> M:
    """Parse JSON of an event of an internal topic. Raise InvalidRecord."""
    if len(value) > limits.RECORD_BYTES:
        raise InvalidRecord.of("too_large", f"over {limits.RECORD_BYTES} bytes")
    try:
        return model.model_validate_json(without_bom(value))
    except ValidationError as error:
        raise _invalid(without_bom(value), error, _types_of(model), "unknown_type") from None


def _check_size(value: bytes) -> None:
    """Refuse an event with too many values, because listing its problems would take too long."""
    # Every value but the outermost follows a comma or an opening bracket, which gives an upper bound.
    if value.count(b",") + value.count(b"[") + value.count(b"{") < limits.VALUES_MAX:
        return
    try:
        raw = from_json(value)
    except ValueError:
        return  # no JSON: the validation reports it
    sizes = {name: _size(value) for name, value in raw.items()} if isinstance(raw, dict) else {"": _size(raw)}
    if sum(sizes.values()) > limits.VALUES_MAX:
        problem = f"too many values; an event may have {limits.VALUES_MAX:,}: send several events"
        raise InvalidRecord.of("invalid_event", problem, max(sizes, key=lambda name: sizes[name]))


def _check_names(value: bytes) -> None:
    """Refuse JSON with a duplicate field, which is ambiguous."""
    names = _FIELD_NAME.findall(value)
    has_escapes = b"\\" in value and any(b"\\" in name for name in names)
    if has_escapes or len({*names}) < len(names):  # equal names may be in different objects
        json.loads(value, object_pairs_hook=_check_distinct, parse_int=len, parse_float=len)


def _check_distinct(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidRecord.of("invalid_event", "is given twice; give it once", name)
        seen.add(name)


def _size(value: object) -> int:
    """Return the number of values in a value, itself included, counted up to the limit of an event."""
    return sum(1 for _ in islice(json_values(value), limits.VALUES_MAX + 1))


def _report_once(kind: str, field: str) -> None:
    """Log an unknown field once per process. The log hides unusual names, because they may be personal data."""
    shown = repr(field) if _PLAIN_NAME.fullmatch(field) else "with an unusual name"
    if len(_reported) >= UNKNOWN_REPORTED or (kind, shown) in _reported:
        return
    _reported.add((kind, shown))
    _log.warning("%s events carry a field %s that is not read; reported once", kind, shown)


def _invalid(value: bytes, error: ValidationError, types: frozenset[str], unknown_type: ErrorCode) -> InvalidRecord:
    """Return all problems of an invalid event of one of `types`. `unknown_type` is the code for another type."""
    errors = error.errors(include_url=False, include_input=False)
    unlisted = max(0, len(errors) - CONVERTED_MAX)
    del errors[CONVERTED_MAX:]
    match errors[0]["type"]:
        case "json_invalid":
            return InvalidRecord.of("invalid_json", encoding_problem(value) or _json_problem(errors[0]["msg"]))
        case "union_tag_not_found" | "union_tag_invalid" as tag:
            problem = "missing" if tag == "union_tag_not_found" else "not a known type"
            return InvalidRecord.of(unknown_type, f"{problem}; give one of {', '.join(sorted(types))}", "type")
    problems: dict[str, str] = {}
    lists = set[str]()
    for one in errors:
        field, problem = _problem(one, types)
        if one["type"] in _NUMBER_ERRORS and isinstance(one["loc"][-1], int):
            list_field, _, _ = field.rpartition(".")
            if list_field in lists:
                continue  # report only the first invalid number of a list
            lists.add(list_field)
        if one["type"] == "too_long":  # a field that may be text or a list is a list here: replace the text's error
            problems[field] = problem
        problems.setdefault(field, problem)
    parents = {field[:at] for field in problems for at, sign in enumerate(field) if sign == "."}
    for one in errors:  # problems inside a list show that the field is no text: drop the text's error
        if one["type"] == "string_type" and (field := _problem(one, types)[0]) in parents:
            problems.pop(field, None)
    return InvalidRecord("invalid_event", [FieldProblem(*problem) for problem in problems.items()], unlisted)


def _json_problem(message: str) -> str:
    if "recursion limit" in message:  # the parser's message has neither the limit nor a remedy
        return f"nested more than {MAX_DEPTH} levels deep; flatten it, or store it as text"
    if "surrogate" in message or "end of hex escape" in message:
        return f"half a character (a lone surrogate, \\ud800 to \\udfff): send text as UTF-8 ({message})"
    return message


def _problem(error: ErrorDetails, types: frozenset[str]) -> tuple[str, str]:
    """Return the field of one of pydantic's errors, and the problem with a remedy."""
    field, message = _path(error["loc"], types), error["msg"].removeprefix("Value error, ")
    if error["type"] in _PROBLEMS:
        return field, _PROBLEMS[error["type"]]
    if error["type"] == "string_pattern_mismatch":
        return field, "is blank" if message.endswith(f"'{NOT_BLANK}'") else "is blank, or holds a control character"
    limit = error.get("ctx", {}).get("max_length")
    if error["type"] == "too_long":
        length = error["ctx"]["actual_length"]  # None for an object
        count = "more" if length is None else f"{length:,}"
        return field, f"has {count} items; it may have {limit:,}: give fewer, or send several events"
    if error["type"] == "string_too_long":
        return field, f"may have at most {limit:,} characters: shorten it"
    named_field, _, problem = message.partition(": ")  # the text of a check of the whole event begins with a field
    return (named_field, problem) if not field and problem else (field, message)


def _path(location: tuple[int | str, ...], types: frozenset[str]) -> str:
    """Convert pydantic's error location to a dotted path, without event types and union members."""
    parts = [str(part) for part in location if part not in types]
    return ".".join(part for part in parts if "[" not in part and part not in ("str", "int", "constrained-str"))
