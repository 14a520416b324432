"""What the operator emits: an item with the value that its call returned, or with the error."""

from dataclasses import dataclass
from typing import Generic, Self, TypeVar

V = TypeVar("V")
"""Type of items."""

W = TypeVar("W")
"""Type of values: what a call returns."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call failed. Text and not the exception: many, such as the OpenAI client's, cannot be pickled,
    and a failure must be fit for snapshots and exchanges."""

    kind: str
    """The exception's class, such as `openai.RateLimitError`."""
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(name, str(error))


@dataclass(frozen=True, slots=True)
class Completed(Generic[V, W]):
    item: V
    value: W


@dataclass(frozen=True, slots=True)
class Failed(Generic[V]):
    item: V
    error: CallError


Result = Completed[V, W] | Failed[V]
