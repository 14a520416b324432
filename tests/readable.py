"""Searching files for readable texts."""

import base64
from collections.abc import Iterator
from pathlib import Path

from recallflow.state.trace_search import table_records

LEAST_BYTES = 6  # shorter texts occur by chance in a few megabytes of encrypted bytes


def spellings(text: str | bytes) -> Iterator[bytes]:
    """Yield how a text may be written: in UTF-8, in UTF-16, and in base64 at each offset in its groups of three."""
    plain = text.encode() if isinstance(text, str) else text
    assert len(plain) >= LEAST_BYTES
    yield plain
    if isinstance(text, str):
        yield from (text.encode("utf-16-le"), text.encode("utf-16-be"))
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + plain)
        yield encoded[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6]  # characters that this text alone decides


def contains(content: bytes, text: str | bytes) -> bool:
    """Return whether bytes contain a text in any encoding."""
    return any(spelling in content for spelling in spellings(text))


def files_with(folder: Path, *texts: str) -> list[str]:
    """Return the files that contain one of the texts, by path relative to the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in files if any(contains(_content(path), one) for one in texts)]


def _content(path: Path) -> bytes:
    """Return the bytes of a file; of a table also its values, which it compresses."""
    values = (value for _, value in table_records(path)) if path.suffix == ".sst" else ()
    return b"\0".join((path.read_bytes(), *values))
