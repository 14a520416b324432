"""Generation of a checkpoint: its manifest, and transfers of its files, several objects at a time.

    p007/objects/<SHA-256>-<save>                    a piece of a file, of at most 8 MiB
    p007/manifests/<offset>-<created>-<save>.json    a manifest: written after its objects, so it is complete
    p007/retired/<as above>.json                     a pruned manifest, kept for its readers for the grace period

Names of manifests sort by the next offset of the partition's source, then by creation time."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from recallflow.connectors.checkpoints.objects import Objects
from recallflow.errors import CheckpointBroken, CheckpointError
from recallflow.private_files import FILE_MODE, make_private_folder, sync

FORMAT = 1
PIECE_BYTES = 8 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024 * 1024  # enough for a partition of several TB; a larger file is invalid
CHECKSUM = "checksum"
ObjectName = Annotated[str, Field(pattern=r"^[0-9a-f]{64}-[0-9a-f]+$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]  # no slash: it stays in the target folder


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

    name: FileName
    size: Annotated[int, Field(ge=0)]
    pieces: tuple[ObjectName, ...]


@dataclass(frozen=True)
class Manifest:
    """Manifest of a generation. `name` is its object's name without the folder."""

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
    """Return each object of a file with its offset and size: all but the last have the full size."""
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
        raise CheckpointBroken(f"{name}: has the format {fields.get('format')}, and this version reads {FORMAT}")
    try:
        manifest = _ADAPTER.validate_python(fields | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise CheckpointBroken(f"{name}: {field}: {first['msg']}") from None
    if manifest.about.partition != number:
        raise CheckpointBroken(f"{name}: is of state partition {manifest.about.partition}, not {number}")
    if not name.startswith(name_prefix(manifest.about)):
        raise CheckpointBroken(f"{name}: is the manifest of another generation")
    for file in manifest.files:
        if len(file.pieces) != -(-file.size // PIECE_BYTES):
            raise CheckpointBroken(f"{name}: file {file.name!r}: the number of pieces does not match its size")
    return manifest


def name_prefix(about: CheckpointOrigin) -> str:
    """Return the beginning of a manifest's name; the rest is the id of the save."""
    return f"{about.offset + 1:020d}-{about.created_ms:015d}-"


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


THREADS = 4  # each holds a piece in memory

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """Return the results in order. The first error cancels further transfers, and is raised once none is running."""
    with ThreadPoolExecutor(THREADS, "recallflow-checkpoints") as threads:
        return [*threads.map(work, items)]


@dataclass(frozen=True)
class CheckpointDownload:
    """Download of one generation. `folder` is the folder of its objects in the store."""

    objects: Objects
    folder: str
    manifest: Manifest

    def fetch(self, target: Path) -> None:
        """Write the files into a new folder and sync them. Raise CheckpointBroken, and OSError of the folder."""
        make_private_folder(target)
        paths = [target / file.name for file in self.manifest.files]
        for path in paths:
            path.touch(FILE_MODE)
        pieces = [(file, *piece) for file in self.manifest.files for piece in pieces_of(file)]
        in_parallel(lambda piece: self._write(target, *piece), pieces)
        in_parallel(sync, [*paths, target])

    def problems(self, checked: dict[str, str | None]) -> list[str]:
        """Return the problems of all files. `checked` maps objects to earlier results, and gets the new ones."""
        return [*filter(None, in_parallel(lambda file: self._problem(file, checked), self.manifest.files))]

    def _write(self, target: Path, file: CheckpointFile, piece: str, start: int, size: int) -> None:
        data = self._piece(file, piece, size)
        with (target / file.name).open("r+b") as written:
            written.seek(start)
            written.write(data)

    def _problem(self, file: CheckpointFile, checked: dict[str, str | None]) -> str | None:
        for piece, _, size in pieces_of(file):
            if piece not in checked:
                try:
                    self._piece(file, piece, size)
                    checked[piece] = None
                except CheckpointBroken as error:
                    checked[piece] = str(error)
            if (problem := checked[piece]) is not None:
                return problem
        return None

    def _piece(self, file: CheckpointFile, piece: str, size: int) -> bytes:
        try:
            data = self.objects.get(f"{self.folder}/{piece}", size + 1)
        except FileNotFoundError:
            raise self._broken(file, piece, "is missing") from None
        if len(data) != size:
            actual = "more than" if len(data) > size else f"{len(data)} of"
            raise self._broken(file, piece, f"has {actual} {size} bytes")
        if hashlib.sha256(data).hexdigest() != digest_of(piece):
            raise self._broken(file, piece, "was changed: its SHA-256 does not match")
        return data

    def _broken(self, file: CheckpointFile, piece: str, problem: str) -> CheckpointBroken:
        return CheckpointBroken(f"{self.manifest.name}: file {file.name}: object {self.folder}/{piece} {problem}")


IMMUTABLE_SUFFIX = ".sst"  # RocksDB never writes to a table a second time, and its checkpoints link the same file


class FileIdentity(NamedTuple):
    device: int
    inode: int
    size: int
    changed_ns: int


TableDigests = dict[FileIdentity, list[str]]  # table → SHA-256 of each piece


class CheckpointUpload:
    """One save. `stored` maps SHA-256 to objects that a generation names; sent objects are added to it. `known` are the
    tables of the previous save: unchanged ones are not read again."""

    def __init__(self, objects: Objects, folder: str, save: str, stored: dict[str, str], known: TableDigests) -> None:
        self.table_digests: TableDigests = {}
        self.sent_bytes = 0
        self._objects, self._folder, self._save, self._stored = objects, folder, save, stored
        self._known = known
        self._lock = threading.Lock()

    def send(self, paths: Iterable[Path]) -> tuple[CheckpointFile, ...]:
        """Send the pieces of all files, several at a time. Raise CheckpointError where a file cannot be read."""
        identities = {path: _identity(path) for path in paths}
        digests_of = dict[Path, list[str]]()
        pieces = []
        for path, identity in identities.items():
            digests = self._known.get(identity)
            if digests is not None and self._stored.keys() >= {*digests}:
                digests_of[path] = digests
            else:
                digests_of[path] = []
                starts = range(0, identity.size, PIECE_BYTES)
                pieces += [(path, start, min(PIECE_BYTES, identity.size - start)) for start in starts]
        for (path, _, _), digest in zip(pieces, in_parallel(self._send, pieces), strict=True):
            digests_of[path].append(digest)
        self.table_digests = {
            identities[path]: digests for path, digests in digests_of.items() if path.suffix == IMMUTABLE_SUFFIX
        }
        return tuple(
            CheckpointFile(path.name, identities[path].size, tuple(self._stored[digest] for digest in digests))
            for path, digests in digests_of.items()
        )

    def _send(self, piece: tuple[Path, int, int]) -> str:
        """Send a piece (file, offset, size) if the store lacks it. Return its SHA-256."""
        data = _read(*piece)
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            if digest in self._stored:  # or another thread is sending it
                return digest
            self._stored[digest] = f"{digest}-{self._save}"
            self.sent_bytes += len(data)
        self._objects.put(f"{self._folder}/{self._stored[digest]}", data)
        return digest


def _identity(path: Path) -> FileIdentity:
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path.name} is a folder")
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be saved: {error}") from error
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be saved: {error}") from error
    if len(data) != size:
        raise CheckpointError(f"{path} cannot be saved: it was shortened while it was read")
    return data
