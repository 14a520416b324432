"""Where the page of a list ends that is read page by page, as its reader gives it back for the next one.

It names the last thing of the page, and not a count: what comes and goes meanwhile moves nothing.
"""

import re
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, StringConstraints

from recallflow.limits import CURSOR_CHARACTERS

_MEMORY = re.compile(r"m:(-?\d{1,15}):(.+)", re.S)
_EDGE = re.compile(r"e:([0-9a-f]{8})?((?:[0-9a-f]{2})*)")


class MemoryCursor(NamedTuple):
    """A memory, by its event time (epoch milliseconds) and its id."""

    created_ms: int
    memory_id: str

    def __str__(self) -> str:
        return f"m:{self.created_ms}:{self.memory_id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for another text."""
        found = _MEMORY.fullmatch(text)
        return None if found is None else cls(int(found[1]), found[2])


class EdgeCursor(NamedTuple):
    """An edge, by the mark of a store and what stands for the edge there; empty: before the first."""

    mark: bytes
    name: bytes

    def __str__(self) -> str:
        return f"e:{self.mark.hex()}{self.name.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for another text."""
        found = _EDGE.fullmatch(text)
        return None if found is None else cls(bytes.fromhex(found[1] or ""), bytes.fromhex(found[2]))


_PROBLEM = "is not from a page of this list; give its `after` as it is, or leave it out for the first page"


def _of_memories(text: str) -> str:
    if MemoryCursor.parse(text) is None:
        raise ValueError(_PROBLEM)
    return text


def _of_graph(text: str) -> str:
    if MemoryCursor.parse(text) is None and EdgeCursor.parse(text) is None:
        raise ValueError(_PROBLEM)
    return text


_Text = Annotated[str, StringConstraints(max_length=CURSOR_CHARACTERS)]
AfterMemory = Annotated[_Text, AfterValidator(_of_memories)]
AfterPart = Annotated[_Text, AfterValidator(_of_graph)]
