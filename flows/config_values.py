"""Values of settings, as a file types them or as text of the environment and of flags.

Each function here raises ValueError that says what a value is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ByteSize, TypeAdapter

from recallflow.ranges import parse_ranges

T = TypeVar("T")

AUTO: Literal["auto"] = "auto"

_SIZE = TypeAdapter(ByteSize)
_TRUTHS = {"true": True, "false": False}


def parse_whole(value: object) -> int:
    if type(value) is int:  # to isinstance, True is one
        return value
    return _converted(int, value, "is not a whole number")


def parse_number(value: object) -> float:
    if type(value) is int:
        return float(value)
    return value if type(value) is float else _converted(float, value, "is not a number")


def parse_truth(value: object) -> bool:
    return (
        value
        if isinstance(value, bool)
        else _converted(lambda text: _TRUTHS[text.lower()], value, "is neither true nor false")
    )


def parse_text(value: object) -> str:
    return _converted(str, value, "is no text")


def parse_texts(value: object) -> tuple[str, ...]:
    """A list of texts, or one text with commas between them."""
    if isinstance(value, list):
        return tuple(map(parse_text, value))
    return tuple(text for text in map(str.strip, parse_text(value).split(",")) if text)


def parse_bytes(value: object) -> int:
    """A number of bytes, with or without a unit: 536870912, 512MiB, 1.5GB."""
    if type(value) is int:
        return value
    return _converted(_SIZE.validate_python, value, "is no size; give bytes, or add KiB, MiB, GiB, KB, MB or GB")


def parse_count(value: object) -> int | Literal["auto"]:
    """A number, or `auto`: as many as there are of something on this machine."""
    return AUTO if value == AUTO else _whole_or_auto(value)


def parse_numbers(value: object) -> frozenset[int]:
    """Numbers and ranges of them: 0-7,9."""
    if isinstance(value, str):
        return parse_ranges(value)
    raise ValueError(f"{value!r} names no numbers as in 0-7,9")


def parse_any(value: object) -> str:
    """What librdkafka judges itself, as the text it takes."""
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return parse_text(value)


def _whole_or_auto(value: object) -> int:
    try:
        return parse_whole(value)
    except ValueError as error:
        raise ValueError(f"{error}, nor {AUTO}") from None


# Type of a setting → its parser.
PARSERS: dict[Any, Callable[[object], Any]] = {
    int: parse_whole,
    int | None: parse_whole,
    int | Literal["auto"]: parse_count,
    float: parse_number,
    bool: parse_truth,
    str: parse_text,
    str | None: parse_text,
    Path | None: lambda value: Path(parse_text(value)),
    tuple[str, ...]: parse_texts,
    frozenset[int] | None: parse_numbers,
}


def _converted(convert: Callable[[str], T], value: object, problem: str) -> T:
    try:
        if isinstance(value, str):
            return convert(value)
    except (ValueError, LookupError):
        pass
    raise ValueError(f"{value!r} {problem}")
