"""Generation of a checkpoint: its manifest, and transfers of its files, several objects at a time.

    p007/objects/<SHA-256>-<save>                     a piece of a file, of at most 8 MiB
    p007/manifests/<records>-<created>-<save>.json    a generation: written last, so it is complete
    p007/retired/<as above>.json                      a pruned one, kept for its readers for the grace period

Manifests sort by name as generations do: by the number of applied records of their own source, then by creation time. A
manifest is JSON with its own checksum."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from recallflow.connectors.checkpoints.objects import Objects
from recallflow.errors import CheckpointBroken, CheckpointError
from recallflow.private_files import FILE_MODE, make_private_folder, sync

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


_ADAPTER = TypeAdapter(Manifest)


def pieces_of(file: CheckpointFile) -> list[tuple[str, int, int]]:
    """Return each object of a file with its offset and size: all but the last are full."""
    starts = range(0, file.size, PIECE_BYTES)
    parts = zip(file.pieces, starts, strict=True)
    return [(piece, start, min(PIECE_BYTES, file.size - start)) for piece, start in parts]


def digest_of(piece: str) -> str:
    """Return the SHA-256 at the beginning of an object's name."""
    return piece.partition("-")[0]


def encode(manifest: Manifest) -> bytes:
    fields = {"format": FORMAT, "about": asdict(manifest.about), "files": [*map(asdict, manifest.files)]}
    return orjson.dumps({**fields, CHECKSUM: _checksum(fields)}, option=orjson.OPT_INDENT_2)


def decode(name: str, data: bytes, number: int) -> Manifest:
    """Return the manifest of a generation of this state partition. Raise CheckpointBroken."""
    try:
        fields = orjson.loads(data)
        written = fields.pop(CHECKSUM, None)
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointBroken(f"{name}: is no manifest: {error}") from None
    if written != _checksum(fields):
        raise CheckpointBroken(f"{name}: its checksum does not match")
    if fields.get("format") != FORMAT:
        raise CheckpointBroken(f"{name}: is of format {fields.get('format')}, and this version reads {FORMAT}")
    try:
        manifest = _ADAPTER.validate_python(fields | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointBroken(f"{name}: {where}: {first['msg']}") from None
    if manifest.about.partition != number:
        raise CheckpointBroken(f"{name}: is of state partition {manifest.about.partition}, not {number}")
    if not name.startswith(stem(manifest.about)):
        raise CheckpointBroken(f"{name}: is the manifest of another generation")
    for file in manifest.files:
        _check(name, file)
    return manifest


def stem(about: CheckpointOrigin) -> str:
    """Return the beginning of a manifest's name; the id of the save follows."""
    return f"{about.offset + 1:020d}-{about.created_ms:015d}-"


def _check(name: str, file: CheckpointFile) -> None:
    whole = len(file.pieces) == -(-file.size // PIECE_BYTES)
    if not _FILE.fullmatch(file.name) or not whole or not all(map(_OBJECT.fullmatch, file.pieces)):
        raise CheckpointBroken(f"{name}: file {file.name!r}: name, size and pieces are none of a checkpoint")


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


THREADS = 4  # each holds a piece in memory

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """Return the results in order. The first error is raised once running transfers have ended."""
    with ThreadPoolExecutor(THREADS, "recallflow-checkpoints") as threads:
        under_way = [threads.submit(work, item) for item in items]
        try:
            return [one.result() for one in under_way]
        except BaseException:
            for one in under_way:
                one.cancel()
            raise


@dataclass(frozen=True)
class CheckpointDownload:
    """Fetch of one generation. `folder` is that of its objects."""

    objects: Objects
    folder: str
    generation: str

    def fetch(self, files: Iterable[CheckpointFile], target: Path) -> None:
        """Write files into a new folder and sync them. Raise CheckpointBroken, and OSError of the folder."""
        make_private_folder(target)
        kept = [*files]
        for file in kept:
            (target / file.name).touch(FILE_MODE)
        parts = [(file, *part) for file in kept for part in pieces_of(file)]
        in_parallel(lambda part: self._write(target, *part), parts)
        in_parallel(sync, [*(target / file.name for file in kept), target])

    def problems(self, files: Iterable[CheckpointFile], known: dict[str, str | None]) -> list[str]:
        found = in_parallel(lambda file: self._problem(file, known), files)
        return [problem for problem in found if problem is not None]

    def _write(self, target: Path, file: CheckpointFile, piece: str, start: int, size: int) -> None:
        data = self._piece(file, piece, size)
        with (target / file.name).open("r+b") as written:
            written.seek(start)
            written.write(data)

    def _problem(self, file: CheckpointFile, known: dict[str, str | None]) -> str | None:
        for piece, _, size in pieces_of(file):
            if piece not in known:
                try:
                    self._piece(file, piece, size)
                    known[piece] = None
                except CheckpointBroken as error:
                    known[piece] = str(error)
            if (problem := known[piece]) is not None:
                return problem
        return None

    def _piece(self, file: CheckpointFile, piece: str, size: int) -> bytes:
        try:
            data = self.objects.get(f"{self.folder}/{piece}", size + 1)
        except FileNotFoundError:
            raise self._broken(file, piece, "is missing") from None
        if len(data) != size:
            raise self._broken(file, piece, f"has {'more' if len(data) > size else len(data)} than {size} bytes")
        if hashlib.sha256(data).hexdigest() != digest_of(piece):
            raise self._broken(file, piece, "was changed: its SHA-256 does not match")
        return data

    def _broken(self, file: CheckpointFile, piece: str, what: str) -> CheckpointBroken:
        return CheckpointBroken(f"{self.generation}: file {file.name}: object {self.folder}/{piece} {what}")


UNCHANGING = ".sst"  # RocksDB never writes to a table a second time, and its checkpoints link the same file


class Identity(NamedTuple):
    device: int
    inode: int
    size: int
    changed_ns: int


TableDigests = dict[Identity, list[str]]  # SHA-256 of each piece of tables that the partition's last save read


class CheckpointUpload:
    """One save. `has` maps SHA-256 to objects that a generation names; sent objects are added. `hashed` are the
    tables of the previous save: unchanged ones are not read again."""

    def __init__(self, objects: Objects, folder: str, save: str, has: dict[str, str], hashed: TableDigests) -> None:
        self.hashed: TableDigests = {}
        self.sent_bytes = self.sent_objects = 0
        self._objects, self._folder, self._save, self._has = objects, folder, save, has
        self._before = hashed
        self._claiming = threading.Lock()

    def send(self, paths: Iterable[Path]) -> tuple[CheckpointFile, ...]:
        """Send the pieces of all files, several at a time. Raise CheckpointError where a file cannot be read."""
        found = [(path, _identity(path)) for path in paths]
        known = {path: digests for path, identity in found if (digests := self._known(identity)) is not None}
        pieces = [
            (path, start, min(PIECE_BYTES, identity.size - start))
            for path, identity in found
            if path not in known
            for start in range(0, identity.size, PIECE_BYTES)
        ]
        for piece, digest in zip(pieces, in_parallel(self._send, pieces), strict=True):
            known.setdefault(piece[0], []).append(digest)
        files = []
        for path, identity in found:
            digests = known.get(path, [])
            if path.suffix == UNCHANGING:
                self.hashed[identity] = digests
            files.append(CheckpointFile(path.name, identity.size, tuple(self._has[digest] for digest in digests)))
        return tuple(files)

    def _known(self, identity: Identity) -> list[str] | None:
        digests = self._before.get(identity)
        return digests if digests is not None and all(digest in self._has for digest in digests) else None

    def _send(self, piece: tuple[Path, int, int]) -> str:
        """Send a piece, of a start and a size, that the store lacks. Return its SHA-256."""
        data = _read(*piece)
        digest = hashlib.sha256(data).hexdigest()
        with self._claiming:
            if digest in self._has:  # stored, or being sent by another thread
                return digest
            self._has[digest] = f"{digest}-{self._save}"
            self.sent_bytes += len(data)
            self.sent_objects += 1
        self._objects.put(f"{self._folder}/{self._has[digest]}", data)
        return digest


def _identity(path: Path) -> Identity:
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path.name} is a folder")
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be saved: {error}") from error
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be saved: {error}") from error
    if len(data) != size:
        raise CheckpointError(f"{path} cannot be saved: it became shorter meanwhile")
    return data
