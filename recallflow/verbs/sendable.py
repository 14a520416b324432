"""What of a call cannot be sent as it is, field by field: JSON would drop it, change it, or cannot hold it."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from recallflow.errors import UsageError
from recallflow.parsing import MAX_DEPTH
from recallflow.records import Position

_INTEGERS = range(-(2**63), 2**64)
_WAIT_MIN_S, _WAIT_MAX_S = 0.001, 2_147_483.0  # librdkafka counts milliseconds in 31 bits, and 0 means "for ever"
_SENT_AS_TEXT = (date, time, UUID, Position)


def check_sendable(what: str, fields: Mapping[str, Any]) -> None:
    """Raises UsageError that names every field that cannot be sent, and why."""
    if problems := [*_problems(fields, "", MAX_DEPTH)]:
        raise UsageError(f"{what}: {'; '.join(problems[:20])}")


def checked_wait(name: str, value: object) -> float:
    """A time to wait, in seconds. Raises UsageError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _WAIT_MIN_S <= value <= _WAIT_MAX_S:
        raise UsageError(
            f"{name} must be a number of seconds above 0, {_WAIT_MIN_S:g} to {_WAIT_MAX_S:,.0f}, not {value!r}"
        )
    return value


def checked_text(name: str, value: object) -> str:
    """Text that is not blank. Raises UsageError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be text, not {value!r}")
    return value


def _problems(value: object, path: str, levels: int) -> Iterator[str]:
    if levels < 0:
        yield f"{path}: nested more than {MAX_DEPTH} levels deep"
    elif isinstance(value, str):
        if not _is_unicode(value):
            yield f"{path}: holds half a character (a lone surrogate)"
    elif isinstance(value, int):
        if value not in _INTEGERS:
            yield f"{path}: a whole number beyond 64 bits; send it as text"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{path}: {value} is no number in JSON; leave it out"
    elif isinstance(value, Enum):
        yield from _problems(value.value, path, levels)
    elif value is not None and not isinstance(value, _SENT_AS_TEXT):
        yield from _nested_problems(value, path, levels)


def _nested_problems(value: object, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, BaseModel):
        value = value.__dict__ | (value.model_extra or {})
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = f"{path}.{key}" if path else str(key)
            if not isinstance(key, str) or not _is_unicode(key):
                yield f"{path}: the key {key!r} is no text"
            else:
                yield from _problems(item, inner, levels - 1)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for number, item in enumerate(value):
            yield from _problems(item, f"{path}.{number}", levels - 1)
    else:
        yield f"{path}: {type(value).__name__} cannot be sent; give text, a number, a list or a mapping"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
