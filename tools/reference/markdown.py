"""Markdown that pages are made of."""

import inspect
import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar within a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    """Text as code."""
    return f"`{text}`"


def prose(documented: object) -> str:
    """The docstring of a thing, without its line breaks."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(documented) or "").split("\n\n"))


def escaped(told: str) -> str:
    """A docstring's brackets are no links, but within code they stand as they are."""
    parts = told.split("`")
    return "`".join(part if at % 2 else re.sub(r"([\[\]<>*])", r"\\\1", part) for at, part in enumerate(parts))


def page(title: str, *parts: str) -> str:
    """A page that says where it comes from."""
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))
