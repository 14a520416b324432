"""JSON documents of any length, element by element.

A scanner finds the elements by brackets and quotes alone, and each element is parsed separately. So a broken element
(bad bytes, a stray comma) affects no other, a document of gigabytes is read in pieces, and numbers keep their
spelling."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO

import ijson
import orjson
from ijson.common import ObjectBuilder

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs.sources import LogFile, piece
from recallflow.parsing import without_bom

ELEMENT_BYTES = 64 * 1024 * 1024  # an element may be a whole conversation
EACH = "[]"  # path element: each element of an array
FIRST_OBJECTS = 20  # a log may start with broken lines; its format shows in the first good one
UNBALANCED = b"(brackets of the document do not match, or its end is missing)"  # not JSON, so it is refused

_CHUNK_BYTES = 1024 * 1024
_WHITE = re.compile(rb"[\s\x00]*+")  # an old disk fills the end of a file with zeros
_SEPARATORS = re.compile(rb"[\s\x00,:]*+")
_NO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\":]*+")
_ARRAY = re.compile(rb'\[\s*[\[\]{"]')
_QUOTE = b'"'[0]
_OPENING, _CLOSING = b"[{", b"]}"


def parsed(text: bytes) -> object:
    """Return parsed JSON; None for other text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def elements(source: LogFile, *path: str, most_bytes: int = ELEMENT_BYTES) -> Iterator[bytes]:
    """Yield the JSON of each element of the array at a path of keys (no keys: the document itself). A value there that
    is no array is yielded as one element. A longer one is cut to `most_bytes` + 1 bytes. A cut or broken element
    is not JSON, and callers must yield it unchanged, so that the decode step refuses it."""
    for _, element in elements_with_fields(source, *path, EACH, most_bytes=most_bytes):
        yield element


def elements_with_fields(
    source: LogFile, *path: str, most_bytes: int = ELEMENT_BYTES
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the values at a path of keys and EACH, each with the scalar fields that precede it in the objects around
    it: `"chats", "list", EACH, "messages", EACH` yields each message with the name of its chat."""
    with source.open() as file:
        scanner = _Scanner(file, most_bytes)
        yield from _walk(scanner, path, {})
        while scanner.peek(_SEPARATORS) is not None:  # several documents, or invalid JSON
            yield {}, scanner.value()
        if scanner.is_broken:
            yield {}, UNBALANCED


def members(source: LogFile, without: str) -> dict[str, Any]:
    """Return the members of a document's object. Leave out `without`, invalid values, and values over a megabyte."""
    with source.open() as file:
        scanner, found = _Scanner(file, _CHUNK_BYTES), dict[str, Any]()
        if scanner.peek(_WHITE) == b"{"[0]:
            for key in scanner.at_keys():
                if key == without:
                    scanner.value(keep=False)
                elif (text := scanner.value()) == b"null" or parsed(text) is not None:
                    found[key] = parsed(text)
    return found


@lru_cache(maxsize=1)  # every format asks for the objects of the same start
def first_objects(start: bytes) -> list[dict[str, Any]]:
    """Return the first objects in the first bytes of a log: of JSON lines, of an array, or the document itself. A cut
    document has its complete members, and a cut array its complete elements."""
    start = without_bom(start).decode(errors="replace").encode()  # a bad byte in a text must not hide the format
    lines = (parsed(line) for line in start.split(b"\n", FIRST_OBJECTS)[:FIRST_OBJECTS] if line.strip())
    found = [line for line in lines if isinstance(line, dict)]
    if not found:
        value = _parsed_prefix(start)
        found = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    return found[:FIRST_OBJECTS]


def is_document(start: bytes) -> bool:
    """Return whether a log is one JSON document (an array, or an object over several lines) and not JSON lines."""
    start = without_bom(start).lstrip()
    if start.startswith(b"["):
        return _ARRAY.match(start) is not None
    first, line_feed, _ = start.partition(b"\n")
    if not line_feed or isinstance(parsed(first), dict):
        return False
    text = start.decode(errors="replace")
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError as error:
        return error.pos >= len(text) - 1  # the text is valid up to its cut end


def records(source: LogFile, *, as_document: bool) -> Iterator[bytes]:
    """Yield the elements of a document, or lines that are not blank, each cut to ELEMENT_BYTES."""
    if as_document:
        yield from elements(source)
        return
    with source.open() as file:
        for number, line in enumerate(bounded_lines(file, ELEMENT_BYTES)):
            if line.strip():
                yield line if number else without_bom(line)


def _parsed_prefix(start: bytes) -> object:
    """Return the parsed prefix of a document, with its open brackets closed."""
    builder = ObjectBuilder()
    with suppress(ijson.JSONError, UnicodeDecodeError):  # the latter for a lone surrogate
        for event, value in ijson.basic_parse(BytesIO(start), use_float=True):
            builder.event(event, value)
    return getattr(builder, "value", None)


def _walk(scanner: "_Scanner", path: tuple[str, ...], fields: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
    first = scanner.peek(_WHITE)
    if first is None:
        scanner.is_broken = True
    elif path[:1] == (EACH,) and first in b"[":
        for _ in scanner.at_items():
            yield from _walk(scanner, path[1:], fields)
    elif path[:1] == (EACH,):
        yield from _walk(scanner, path[1:], fields)
    elif path and first in b"{":
        fields = dict(fields)
        for key in scanner.at_keys():
            if key == path[0]:
                yield from _walk(scanner, path[1:], fields)
            elif scanner.peek(_WHITE) not in (*_OPENING,):
                fields[key] = parsed(scanner.value())
            else:
                scanner.value(keep=False)
    else:
        yield fields, scanner.value()


class _Scanner:
    """Scanner of the values of a JSON document. It holds one chunk and the current value."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file, self._most_bytes = file, most_bytes
        self._buffer = without_bom(piece(file, _CHUNK_BYTES))
        self._at = self._begin = self._room_bytes = 0
        self._kept: list[bytes] = []
        self._is_cut = False  # whether the current value had no end
        self.is_broken = False  # whether the document is broken outside of the returned values

    def peek(self, pattern: "re.Pattern[bytes]") -> int | None:
        """Return the next byte after the skipped ones; None at the end."""
        while True:
            self._skip(pattern)
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._read_on():
                return None

    def at_keys(self) -> Iterator[str]:
        """Yield the keys of the current object; the caller reads each value before the next key."""
        for _ in self.at_items():
            key = parsed(self.value())
            if not isinstance(key, str):
                self.is_broken = True
            elif self.peek(_SEPARATORS) is not None:
                yield key

    def at_items(self) -> Iterator[None]:
        """Stop before each element of the current array or object; the caller reads each before the next one."""
        self._at += 1
        while (byte := self.peek(_SEPARATORS)) is not None:
            if byte in _CLOSING:
                self._at += 1
                return
            yield
        self.is_broken |= not self._is_cut

    def value(self, *, keep: bool = True) -> bytes:
        """Return the current value, cut one byte after the limit."""
        self._kept, self._room_bytes, self._begin = [], self._most_bytes + 1 if keep else 0, self._at
        first = self.peek(_WHITE)
        if first == _QUOTE:
            self._skip_string()
        elif first is not None and first in _OPENING:
            self._skip_container()
        else:
            self._skip_scalar()
        self._keep()
        self._room_bytes = 0
        self.is_broken |= self._is_cut and not keep
        return b"".join(self._kept)

    def _skip_container(self) -> None:
        depth = 0
        while True:
            byte = self.peek(_NO_BRACKET)
            if byte is None:
                self._is_cut = True
                return
            if byte == _QUOTE:  # start of a string that continues after the buffer
                self._skip_string()
                continue
            self._at += 1
            depth += 1 if byte in _OPENING else -1
            if depth == 0:
                return

    def _skip_string(self) -> None:
        self._at += 1
        while True:
            self._skip(_IN_STRING)
            if self._buffer[self._at : self._at + 1] == b'"':
                self._at += 1
                return
            if not self._read_on():  # the file ended inside the string
                self._at = len(self._buffer)
                self._is_cut = True
                return

    def _skip_scalar(self) -> None:
        self._at += 1  # a bracket that closes nothing is passed as well
        self.peek(_SCALAR)

    def _skip(self, pattern: "re.Pattern[bytes]") -> None:
        found = pattern.match(self._buffer, self._at)
        self._at = self._at if found is None else found.end()

    def _read_on(self) -> bool:
        self._keep()
        chunk = piece(self._file, _CHUNK_BYTES)
        self._buffer = self._buffer[self._at :] + chunk
        self._at = self._begin = 0
        return bool(chunk)

    def _keep(self) -> None:
        """Keep the scanned bytes of the current value up to the limit."""
        text = self._buffer[self._begin : min(self._at, self._begin + self._room_bytes)]
        self._kept.append(text)
        self._room_bytes -= len(text)
        self._begin = self._at
