"""Manifest of a generation: its files, and the objects of their pieces.

    p007/objects/<SHA-256>-<save>                     a piece of a file, of at most 8 MiB
    p007/manifests/<records>-<created>-<save>.json    a generation: written last, so it is complete
    p007/retired/<as above>.json                      a pruned one, kept for its readers for the grace period

Manifests sort by name as generations do: by the number of applied records of their own source, then by creation time. A
manifest is JSON with its own checksum.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from recallflow.errors import CheckpointBroken

FORMAT = 1
PIECE_BYTES = 8 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024 * 1024  # a partition of several TB; a larger file is invalid
CHECKSUM = "checksum"
_OBJECT = re.compile(r"[0-9a-f]{64}-[0-9a-f]+")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no path can leave the target folder


@dataclass(frozen=True)
class CheckpointOrigin:
    """Origin of a checkpoint. `source` is the state partition's memory partition; `applied` the last applied offset
    of each source; `fingerprint` the settings of the state."""

    state_format: int
    partition: int
    partitions: int
    source: str
    applied: Mapping[str, int]
    deployment: str
    run_id: str
    created_ms: int
    fingerprint: Mapping[str, Any]

    @property
    def offset(self) -> int:
        """Return the last applied offset of `source`; -1 before the first."""
        return self.applied.get(self.source, -1)


@dataclass(frozen=True)
class CheckpointFile:
    """File of a checkpoint. `pieces` are its objects in order."""

    name: str
    size: int
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """Generation of a checkpoint. `name` is that of the manifest, without its folder."""

    name: str
    about: CheckpointOrigin
    files: tuple[CheckpointFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def objects(self) -> dict[str, int]:
        """Return the size of each object by name."""
        return {name: size for file in self.files for name, _, size in pieces_of(file)}


@dataclass(frozen=True)
class _Stored:
    format: int
    about: CheckpointOrigin
    files: tuple[CheckpointFile, ...]


_ADAPTER = TypeAdapter(_Stored)


def manifest_name(about: CheckpointOrigin, save: str) -> str:
    return f"{_stem(about)}{save}.json"


def pieces_of(file: CheckpointFile) -> list[tuple[str, int, int]]:
    """Return each object of a file with its offset and size: all but the last are full."""
    starts = range(0, file.size, PIECE_BYTES)
    return [
        (piece, start, min(PIECE_BYTES, file.size - start)) for piece, start in zip(file.pieces, starts, strict=True)
    ]


def digest_of(piece: str) -> str:
    """Return the SHA-256 at the beginning of an object's name."""
    return piece.partition("-")[0]


def encode(manifest: Manifest) -> bytes:
    fields = asdict(_Stored(FORMAT, manifest.about, manifest.files))
    return orjson.dumps({**fields, CHECKSUM: _checksum(fields)}, option=orjson.OPT_INDENT_2)


def decode(name: str, data: bytes, number: int) -> Manifest:
    """Return the manifest of a generation of this state partition. Raise CheckpointBroken."""
    try:
        fields = orjson.loads(data)
        written = fields.pop(CHECKSUM, None)
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointBroken(f"{name}: is no manifest: {error}") from None
    if written != _checksum(fields):
        raise CheckpointBroken(f"{name}: is not what was written: its checksum is another")
    if fields.get("format") != FORMAT:
        raise CheckpointBroken(f"{name}: is of format {fields.get('format')}, and this version reads {FORMAT}")
    try:
        stored = _ADAPTER.validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointBroken(f"{name}: {where}: {first['msg']}") from None
    if stored.about.partition != number:
        raise CheckpointBroken(f"{name}: is of state partition {stored.about.partition}, not {number}")
    if not name.startswith(_stem(stored.about)):
        raise CheckpointBroken(f"{name}: is the manifest of another generation")
    for file in stored.files:
        _check(name, file)
    return Manifest(name, stored.about, stored.files)


def _stem(about: CheckpointOrigin) -> str:
    return f"{about.offset + 1:020d}-{about.created_ms:015d}-"


def _check(name: str, file: CheckpointFile) -> None:
    whole = len(file.pieces) == -(-file.size // PIECE_BYTES)
    if not _FILE.fullmatch(file.name) or not whole or not all(map(_OBJECT.fullmatch, file.pieces)):
        raise CheckpointBroken(f"{name}: file {file.name!r}: name, size and pieces are none of a checkpoint")


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
