"""Helpers for Markdown."""

import inspect
import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    """Return text as inline code."""
    return f"`{text}`"


def prose(documented: object) -> str:
    """Return a docstring without line breaks inside paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(documented) or "").split("\n\n"))


def escaped(text: str) -> str:
    """Escape brackets and stars outside of inline code."""
    parts = text.split("`")
    return "`".join(part if at % 2 else re.sub(r"([\[\]<>*])", r"\\\1", part) for at, part in enumerate(parts))


def page(title: str, *parts: str) -> str:
    """Return a page with a title and its parts."""
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))
