"""Field types that events, queries and responses share."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

EPOCH_MS_MIN = -62_135_596_800_000  # 0001-01-01T00:00:00Z
EPOCH_MS_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
# As milliseconds these lie in the first four months of 1970, as seconds between 2001 and 2286: nobody means the former.
EPOCH_SECONDS_MIN, EPOCH_SECONDS_MAX = 1_000_000_000, 9_999_999_999
FLOAT32_MAX = 3.4028234663852886e38
_TIMES = "RFC 3339 (2026-01-31T12:00:00Z) or epoch milliseconds"


def parse_time(value: object) -> int:
    """RFC 3339 text or epoch milliseconds → epoch milliseconds, within the years 1 to 9999. No offset means UTC.

    A number that looks like epoch seconds is refused: as milliseconds it would put the event into 1970."""
    given = value
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
    if given is value and _looks_like_seconds(value):
        raise ValueError("looks like epoch seconds; give milliseconds, or RFC 3339")
    if not EPOCH_MS_MIN <= value <= EPOCH_MS_MAX:  # NaN is outside too
        raise ValueError("outside the years 1 to 9999")
    return round(value)


def written_time(epoch_ms: int) -> int | str:
    """Epoch milliseconds as an event may say them: as text where `parse_time` would read the number as seconds."""
    return format_time(epoch_ms) if _looks_like_seconds(epoch_ms) else epoch_ms


def _looks_like_seconds(value: float) -> bool:
    return EPOCH_SECONDS_MIN <= value <= EPOCH_SECONDS_MAX


@lru_cache(maxsize=10_000)  # the same memories are answered over and over
def format_time(epoch_ms: int) -> str:
    """Epoch milliseconds → RFC 3339 in UTC, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC).replace(microsecond=epoch_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds" if epoch_ms % 1000 else "seconds").replace("+00:00", "Z")


def _whole(value: object) -> object:
    """5.0 is a whole number: some senders know no others."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits_float32(vector: list[float]) -> list[float]:
    if max(map(abs, vector)) > FLOAT32_MAX:
        raise ValueError("holds a number beyond float32")
    return vector


def _sha256(given: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", given) is None:
        raise ValueError("not a SHA-256; give its 64 hexadecimal digits")
    return given.lower()


def _finite(given: Any) -> Any:
    """What others put into an event goes out as JSON, which knows neither NaN nor Infinity."""
    ahead = [given]
    while ahead:
        match ahead.pop():
            case float() as number if not isfinite(number):
                raise ValueError("holds NaN, Infinity or a number beyond all bounds, which JSON does not have")
            case dict() as fields:
                ahead += fields.values()
            case list() as items:
                ahead += items
    return given


# No control characters: they have no place in a name and break every line-based tool downstream. And something to see.
_NAMED = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
Name = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=_NAMED)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=_NAMED)]
ContentHash = Annotated[str, Field(json_schema_extra={"pattern": "^[0-9a-fA-F]{64}$"}), AfterValidator(_sha256)]
AnyJson = Annotated[dict[str, Any], AfterValidator(_finite)]
Timestamp = Annotated[
    int,
    BeforeValidator(parse_time),
    PlainSerializer(written_time, when_used="json"),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "description": "epoch milliseconds"}]}
    ),
]
AS_WHOLE = BeforeValidator(_whole)  # behind the bounds of a whole number
INT32_MAX = 2**31 - 1
JSON_INT_MAX = 2**53 - 1  # what every reader of JSON tells from its neighbours
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NOT_BLANK = r"\S"
NonEmpty = Annotated[str, StringConstraints(min_length=1, pattern=NOT_BLANK)]
Embedding = Annotated[list[float], Field(min_length=1, max_length=8_192), AfterValidator(_fits_float32)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Layer = Literal["rule", "working", "long_term"]


class Model(BaseModel):
    """Base of everything that crosses a topic: immutable; unknown fields are let in by the parser and reported once. A
    number is no text and no truth value, nor the other way round: who sends `true` for 1 means something else.

    Unknown fields are in `model_extra` alone. They are no attributes: nobody has validated their values, and logic that
    reads a field of one event type could meet them in another."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, allow_inf_nan=False, ser_json_inf_nan="null", defer_build=True
    )

    if not TYPE_CHECKING:  # a type checker knows declared fields alone

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__!r} object has no field {name!r}", name=name, obj=self)


class Cuttable(Model):
    """A part of an answer that holds texts. `truncated`: one of them was shortened, or a list of it, so that the answer
    fits its topic."""

    truncated: bool = False
