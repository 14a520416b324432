"""Field types of events, queries and responses, and models that refuse unknown fields."""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails

from recallflow.limits import PROBLEMS_MAX

EPOCH_MS_MIN = -62_135_596_800_000  # 0001-01-01T00:00:00Z
EPOCH_MS_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
# As milliseconds these numbers lie in the first months of 1970, as seconds between 2001 and 2286.
EPOCH_SECONDS_MIN, EPOCH_SECONDS_MAX = 1_000_000_000, 9_999_999_999
FLOAT32_MAX = 3.4028234663852886e38
_TIMES = "RFC 3339 (2026-01-31T12:00:00Z) or epoch milliseconds"
LETTERS_READ = 64  # compared characters of an unknown name
ALIKE = 0.6  # minimum similarity of a suggestion, 0 to 1
FIELDS_MAX = 64  # of an object with unknown fields; the error of a larger object contains only their number


def parse_time(value: object) -> int:
    """Convert RFC 3339 text or epoch milliseconds to epoch milliseconds, within the years 1 to 9999. Text without an
    offset is UTC. A number that looks like epoch seconds is refused: as milliseconds it would be a time in 1970."""
    is_text = isinstance(value, str)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            if ":60" in value:
                raise ValueError("is in a leap second; give the second before or after it") from None
            raise ValueError(f"not a time; give {_TIMES}") from None
        value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a time; give {_TIMES}")  # noqa: TRY004 pydantic collects ValueError
    if not is_text and _looks_like_seconds(value):
        raise ValueError("looks like epoch seconds; give milliseconds, or RFC 3339")
    if not EPOCH_MS_MIN <= value <= EPOCH_MS_MAX:  # NaN is outside too
        raise ValueError("outside the years 1 to 9999")
    return round(value)


def wire_time(epoch_ms: int) -> int | str:
    """Return epoch milliseconds for an event: as text where `parse_time` would read the number as seconds."""
    return format_time(epoch_ms) if _looks_like_seconds(epoch_ms) else epoch_ms


def _looks_like_seconds(value: float) -> bool:
    return EPOCH_SECONDS_MIN <= value <= EPOCH_SECONDS_MAX


@lru_cache(maxsize=10_000)  # most answers contain memories of earlier answers
def format_time(epoch_ms: int) -> str:
    """Convert epoch milliseconds to RFC 3339 in UTC, with milliseconds only if they are not 0."""
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC).replace(microsecond=epoch_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds" if epoch_ms % 1000 else "seconds").replace("+00:00", "Z")


def _whole(value: object) -> object:
    """Return 5 for 5.0, because some senders have only floats; another value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits_float32(vector: list[float]) -> list[float]:
    if max(map(abs, vector)) > FLOAT32_MAX:
        raise ValueError("holds a number beyond float32")
    return vector


def _sha256(text: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise ValueError("not a SHA-256; give its 64 hexadecimal digits")
    return text.lower()


def json_values(value: object) -> Iterator[object]:
    """Yield a JSON value and all values in it, at every depth."""
    ahead = [value]
    while ahead:
        yield (value := ahead.pop())
        if isinstance(value, dict):
            ahead += value.values()
        elif isinstance(value, list):
            ahead += value


def _finite(value: Any) -> Any:
    """Refuse NaN and Infinity, which JSON cannot represent."""
    for one in json_values(value):
        if isinstance(one, float) and not isfinite(one):
            raise ValueError("contains NaN, Infinity or a number beyond all bounds, which JSON does not have")
    return value


# No control characters, which break line-based tools, and at least one visible character.
_VISIBLE = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
Name = Annotated[str, Field(min_length=1, max_length=512, pattern=_VISIBLE)]
Identifier = Annotated[str, Field(min_length=1, max_length=128, pattern=_VISIBLE)]
ContentHash = Annotated[str, Field(json_schema_extra={"pattern": "^[0-9a-fA-F]{64}$"}), AfterValidator(_sha256)]
AnyJson = Annotated[dict[str, Any], AfterValidator(_finite)]
_TIME = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "description": "epoch milliseconds"}]}
_TO_WIRE = pydantic.PlainSerializer(wire_time, when_used="json")
Timestamp = Annotated[int, BeforeValidator(parse_time), _TO_WIRE, pydantic.WithJsonSchema(_TIME)]
AS_INT = BeforeValidator(_whole)  # must be last in an annotation: it then runs before the bounds are checked
Int32 = Annotated[int, Field(ge=0, le=2**31 - 1), AS_INT]
SafeInt = Annotated[int, Field(ge=0, le=2**53 - 1), AS_INT]  # up to the largest that every JSON parser reads exactly
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NOT_BLANK = r"\S"
NonEmpty = Annotated[str, Field(min_length=1, pattern=NOT_BLANK)]
Embedding = Annotated[list[float], Field(min_length=1, max_length=8_192), AfterValidator(_fits_float32)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Layer = Literal["rule", "working", "long_term"]


class Model(pydantic.BaseModel):
    """Base of all models on topics: immutable and strict. Unknown fields are accepted by the parser and logged once.
    Numbers, texts and truth values are not converted, because `true` and 1 have different meanings.

    Unknown fields are in `model_extra`, but are no attributes: their values are not validated, and code that reads a
    field of one event type must not find an unknown field of another type."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="allow", strict=True, allow_inf_nan=False, ser_json_inf_nan="null", defer_build=True
    )

    if not TYPE_CHECKING:  # a type checker knows declared fields alone

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__!r} object has no field {name!r}", name=name, obj=self)


class Truncatable(Model):
    """A part of a response. `truncated` means that a text or a list was shortened to fit the topic."""

    truncated: bool = False


class StrictPart(Model):
    """Model that refuses unknown fields: a misspelt one would widen a query. `ALIASES`: other names → ours."""

    model_config = pydantic.ConfigDict(extra="forbid")
    ALIASES: ClassVar[Mapping[str, str]] = {}

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _known_fields(cls, value: object, check: pydantic.ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return check(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            # Errors of nested parts are already converted.
            unknown = [at for at, one in enumerate(errors) if one["type"] == "extra_forbidden"]
            if not unknown:
                raise
            if isinstance(value, dict) and len(value) > FIELDS_MAX:
                raise ValueError(f"has {len(value):,} fields; it may have {FIELDS_MAX}") from None
            known = [field.alias or name for name, field in cls.model_fields.items()]
            problems = [*map(_as_details, errors)]
            for count, at in enumerate(unknown):
                location = problems[at]["loc"]
                # Suggestions take time, and problems beyond PROBLEMS_MAX are not shown.
                remedy = suggest_name(str(location[-1]), known, cls.ALIASES) if count < PROBLEMS_MAX else ""
                problems[at] = unknown_name_error("field", location, remedy)
            raise ValidationError.from_exception_data(cls.__name__, problems) from None


def suggest_name(name: str, known: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return a suggestion for an unknown name, or else the known names."""
    if similar := (aliases or {}).get(name) or nearest(name, known):
        return f"did you mean {similar}?"
    return f"there are {', '.join(sorted(known))}"


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the most similar known name, if any: event_time for `eventTime`, tau_days for `tau`."""
    typed, by_letters = _letters(name), {_letters(one): one for one in known}
    completions = [letters for letters in by_letters if len(typed) > 1 and letters.startswith(typed)]
    similar = completions or get_close_matches(typed, by_letters, 1, ALIKE)
    return by_letters[similar[0]] if similar else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name[:LETTERS_READ].lower()))


def unknown_name_error(noun: str, location: tuple[int | str, ...], remedy: str) -> InitErrorDetails:
    problem = f"no such {noun}; {remedy}" if remedy else f"no such {noun}"
    return InitErrorDetails(type="value_error", loc=location, input=location[-1], ctx={"error": ValueError(problem)})


def check_all(value: object, check: pydantic.ValidatorFunctionWrapHandler, problems: list[InitErrorDetails]) -> Any:
    """Return the result of `check`. Raise ValidationError with these problems and the problems that `check` finds."""
    try:
        checked = check(value)
    except ValidationError as error:
        problems = [*problems, *map(_as_details, error.errors(include_url=False))]
    if problems:
        raise ValidationError.from_exception_data("fields", problems)
    return checked


def _as_details(error: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(type=error["type"], loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))
