"""Strings that are telling of a person, and the forms that files may have them in."""

import base64
import hashlib
import heapq
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from recallflow.state.graph_codec import NODE_KINDS

LEAST_BYTES = 8  # a shorter string may stand anywhere by chance
PIECE_BYTES = 16  # a text is looked for in pieces of so much: a file may hold it in parts
MOST = 10_000  # pieces that are looked for at a time
# Fields of what engines say of a person, and of the tenant, which others have as well.
_NOT_THEIRS = frozenset(("type", "environment", "tenant_id", "layer", "role", "kind", "model", "outcome", "vectors",
                         "links", "valid_from", "valid_to", "until", "timestamp"))  # fmt: skip
_OURS = NODE_KINDS | {"evidence", "relation", "archived", "same_as", "similar_to", "supersedes", "contradicts"}
_NAMED = frozenset(("metadata", "properties"))
_POSITION = re.compile(r"[\w.-]+:\d+:\d+")  # a log position: generated ids of other users may start with it
_WORD = re.compile(rf"\S{{1,{PIECE_BYTES}}}\s*")


class Traces:
    """Texts of a person as UTF-8 pieces: all of them, or a deterministic sample of very many."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._chosen: list[tuple[int, bytes]] = []  # a heap, the one to go first
        self._known: set[bytes] = set()
        self.left_out = 0  # pieces beyond the sample; one that comes again counts again

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the texts of an exported record, or of an event."""
        for text in _texts_of(record):
            for piece in pieces_of(text):
                self._choose(piece)

    def pieces(self) -> list[bytes]:
        """Return the pieces to search for."""
        return sorted(self._known)

    def _choose(self, piece: bytes) -> None:
        if piece in self._known:
            return
        order = -int.from_bytes(hashlib.blake2b(piece, digest_size=8).digest(), "big")
        if len(self._chosen) < self._most:
            heapq.heappush(self._chosen, (order, piece))
            self._known.add(piece)
            return
        self.left_out += 1
        if order > self._chosen[0][0]:
            _, gone = heapq.heapreplace(self._chosen, (order, piece))
            self._known.remove(gone)
            self._known.add(piece)


def _texts_of(value: Any, *, named: bool = False) -> Iterator[str]:
    """Yield every text in a record at any depth, except words that are not the person's. `named`: include field
    names."""
    match value:
        case str() if value not in _OURS and _POSITION.fullmatch(value) is None:
            yield value
        case dict():
            for name, one in value.items():
                if named and name not in _OURS:
                    yield name
                if named or not (name in _NOT_THEIRS or name.endswith("_at")):
                    yield from _texts_of(one, named=named or name in _NAMED)
        case list():
            for one in value:
                yield from _texts_of(one, named=named)


def pieces_of(text: str) -> Iterator[bytes]:
    """Yield a text in pieces of whole words, or of parts of words that exceed a piece. A text that is too short to be
    distinctive has none."""
    whole = text.encode()
    if len(whole) < 2 * PIECE_BYTES:
        if len(whole) >= LEAST_BYTES:
            yield whole
        return
    start = 0
    for word in _WORD.finditer(text):
        piece = text[start : word.end()].strip().encode()
        if len(piece) >= PIECE_BYTES:
            yield piece
            start = word.end()
    last = text[-PIECE_BYTES:].strip().encode()
    if start < len(text) and len(last) >= LEAST_BYTES:
        yield last


def forms_of(piece: bytes) -> set[bytes]:
    """Return the forms of a piece in files: plain, JSON, UTF-16, and base64 at any alignment."""
    text = piece.decode()
    forms = {piece, orjson.dumps(text)[1:-1], json.dumps(text).encode()[1:-1]}
    forms |= {text.encode("utf-16-le"), text.encode("utf-16-be")}
    return forms | {_in_base64(piece, before) for before in range(3)}


def _in_base64(piece: bytes, before: int) -> bytes:
    """Return the base64 form of a piece after a number of other bytes, without the characters that other bytes
    affect."""
    encoded = base64.b64encode(bytes(before) + piece)
    return encoded[-(-before * 8 // 6) : (before + len(piece)) * 8 // 6]
