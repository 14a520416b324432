"""The files of the explorer: ours beside this one, and the library that draws, out of the package that ships it."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files as resources
from typing import NamedTuple

from recallflow.errors import UsageError

PAGE, HOME, REFERENCE = "index.html", "home.html", "reference.html"
LIBRARY = "library/d3.js"
_PACKAGE, _INSIDE = "gravis", "gravis/_internal/plotting/third_party/d3/d3.v7.min.def.js"
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class File(NamedTuple):
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, File]:
    """Every file by its name; there are few, and no other can be asked for. Raises UsageError without the library."""
    return {name: _file(name, content) for name, content in _contents()}


def _contents() -> Iterator[tuple[str, bytes]]:
    for resource in resources("recallflow.connectors.http.explorer").joinpath("page").iterdir():
        if resource.name.rpartition(".")[2] in _MEDIA_TYPES:
            yield resource.name, resource.read_bytes()
    try:
        # Its path is asked for: importing the package would load all that it can draw with.
        yield LIBRARY, distribution(_PACKAGE).locate_file(_INSIDE).read_bytes()  # type: ignore[attr-defined]
    except (PackageNotFoundError, FileNotFoundError):
        raise UsageError("the explorer draws with d3, which gravis ships: pip install 'recallflow[serve]'") from None


def _file(name: str, content: bytes) -> File:
    digest = hashlib.sha256(content).hexdigest()
    return File(content, _MEDIA_TYPES[name.rpartition(".")[2]], f'"{digest[:32]}"')
