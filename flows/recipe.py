"""Recipes of dataflows: a source, named steps and a sink, independent of the runner that executes them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol


class RecipeSource(Protocol):
    def open(self) -> None:
        """Prepare for `next_batch`. Called on the thread that reads the source."""

    def next_batch(self) -> list[Any]:
        """Return the next values, after a short wait if there are none. Raise StopIteration at the end."""

    def close(self) -> None: ...


class RecipeSink(Protocol):
    def write_batch(self, items: list[Any]) -> None: ...

    def close(self) -> None: ...


class KeyedLogic(Protocol):
    """The state of one key. Each call returns outputs. The flag of `on_batch` is true if the state is to be dropped."""

    def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]: ...

    def on_notify(self) -> Iterable[Any]:
        """Called once `due_ms` is reached."""

    def on_eof(self) -> Iterable[Any]:
        """Called once at the end of the input."""

    def due_ms(self) -> int | None:
        """Return the time of the next `on_notify` in epoch milliseconds. Only the other methods change it."""


class BatchStep(NamedTuple):
    """A step without state: a function of a batch."""

    name: str
    function: Callable[[list[Any]], Iterable[Any]]


class KeyedStep(NamedTuple):
    """A step with one state per key. It takes and returns pairs of key and value."""

    name: str
    new_logic: Callable[[], KeyedLogic]


class Recipe(NamedTuple):
    """A dataflow: each value of the source passes through all steps in order, and the sink writes the results."""

    name: str
    source: RecipeSource
    steps: Sequence[BatchStep | KeyedStep]
    sink: RecipeSink
