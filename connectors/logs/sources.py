"""Sources of logs: files, standard input, folders and archives, decompressed while they are read.

Nothing is extracted to files: entries of archives are never used as paths, and are decompressed in pieces."""

import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from recallflow.errors import UsageError

STANDARD_INPUT = "-"
REJECTS = ".rejects.jsonl"
GZIP, ZSTANDARD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_SUFFIXES = (".gz", ".zst")
_SPOOLED_BYTES = 1024 * 1024
_STEP_BYTES = 64 * 1024
ENTRIES_MAX = 50_000  # entries of an archive: each is opened, and compared with every format
ARCHIVE_BYTES_MAX = 64 * 1024**3  # unpacked size of an archive
RATIO_MAX = 200  # ratio of unpacked to packed bytes; text has 3 to 50
RATIO_FREE_BYTES, RATIO_FREE_MEMBER_BYTES = 64 * 1024**2, 1024**2  # sizes with any ratio: a file, an archive entry
Stream = IO[bytes] | io.RawIOBase | gzip.GzipFile
Opener = Callable[[], Stream]
_READ_ERRORS = OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError


class LogHead(NamedTuple):
    """Start of a single file, at most HEAD_BYTES, or the names of the `members` of a folder or an archive."""

    start: bytes
    members: tuple[str, ...] = ()


HEAD_BYTES = 256 * 1024


def piece(file: BinaryIO, most_bytes: int) -> bytes:
    """Return the bytes of one read; none at the end. Several reads would lose the bytes before a damaged end."""
    return cast("bytes", file.read1(most_bytes))  # type: ignore[attr-defined]


@dataclass(slots=True)
class LogFile:
    """File, standard input, folder or archive, with progress. `total_bytes` is the size before `.gz` or `.zst` is
    decompressed, and `done_bytes` the part read; `path` is that of a file; `checksum` is that of an archive entry."""

    name: str  # path within a folder or archive, or else the file name, without `.gz` and `.zst`
    where: str  # path in messages
    total_bytes: int = 0
    open_raw: Opener | None = None
    members: tuple["LogFile", ...] = ()  # files in a folder or an archive, by name; none for a single file
    path: Path | None = None
    checksum: int | None = None
    unpacked_max: int = 0  # limit of its decompressed bytes
    empty: int = 0  # number of empty files in a folder or an archive
    broken: UsageError | None = None  # error of a file that cannot be read
    _reader: "_Checked | None" = field(default=None, repr=False)

    @property
    def done_bytes(self) -> int:
        own = 0 if self._reader is None else self._reader.done_bytes
        return min(self.total_bytes, own + sum(one.done_bytes for one in self.members))

    def open(self) -> BinaryIO:
        """Open the source at its beginning. Raise UsageError if it cannot be read, now or later."""
        if self.broken is not None:
            raise self.broken
        if self.open_raw is None:
            raise UsageError(f"{self.where}: a folder or an archive, and not one file")
        try:
            raw = self.open_raw()
        except _READ_ERRORS as error:
            raise _unreadable(self.where, error) from None
        self._reader = _Checked(raw, self.where)
        return _decompressed(io.BufferedReader(self._reader, _SPOOLED_BYTES), self.where, self.unpacked_max)

    def start(self, most_bytes: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, also of a truncated file."""
        start = b""
        with self.open() as file:
            try:
                while len(start) < most_bytes and (more := piece(file, most_bytes - len(start))):
                    start += more
            except UsageError:
                if not start:
                    raise
        return start

    def head(self) -> LogHead:
        return LogHead(b"" if self.open_raw is None else self.start(), tuple(one.name for one in self.members))


def open_source(path: Path | str) -> LogFile:
    """Open a file, a folder, a zip archive, or `-` for standard input. Raise UsageError with a remedy."""
    if str(path) == STANDARD_INPUT:
        return _standard_input()
    path = Path(path)
    try:
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise UsageError(f"{path}: no such file; check the path")
        if not path.is_file():
            raise UsageError(f"{path}: not a regular file; give - and send it to standard input")
        return _file(str(path), path.name, path.stat().st_size, partial(io.FileIO, path), path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None


def _unreadable(where: str, error: BaseException) -> UsageError:
    return UsageError(f"{where}: cannot be read ({_reason(error)}); is it complete?")


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _file(where: str, name: str, size: int, open_raw: Opener, path: Path | None = None) -> LogFile:
    with open_raw() as file:
        start = file.read(4)
    if not start:
        raise UsageError(f"{where}: empty; give a file that holds a conversation")
    if start in (ZIP, _EMPTY_ZIP):
        return _archive(where, name, size, open_raw)
    unpacked_max = RATIO_FREE_BYTES + RATIO_MAX * size
    return LogFile(_without_suffix(name), where, size, open_raw, path=path, unpacked_max=unpacked_max)


def _printable(name: Path | str) -> str:
    """Return a file name of any bytes as text."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _without_suffix(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _is_hidden(name: str) -> bool:
    """Return whether a file is a system file (`.DS_Store`, `__MACOSX/._log.json`) or has the rejects of a replay."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return name.endswith(REJECTS) or any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _folder(path: Path) -> LogFile:
    """Return the files of a folder tree, without hidden files. Empty files are only counted."""
    found, empty = [], 0
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if not file.is_file() or _is_hidden(name):
            continue
        if not file.stat().st_size:
            empty += 1
            continue
        where, printable = _printable(file), _printable(name)
        try:
            found.append(_file(where, printable, file.stat().st_size, partial(io.FileIO, file), file))
        except (UsageError, OSError) as error:
            broken = error if isinstance(error, UsageError) else _unreadable(where, error)
            found.append(LogFile(printable, where, path=file, broken=broken))
    if not found:
        raise UsageError(f"{path}: a folder without files; give one that holds logs")
    return LogFile(path.name, str(path), sum(one.total_bytes for one in found), members=tuple(found), empty=empty)


def _archive(where: str, name: str, size: int, open_raw: Opener) -> LogFile:
    """Open a zip archive of `size` bytes. Compressed entries are decompressed; inner archives are not opened."""
    file = open_raw()
    try:
        archive = zipfile.ZipFile(file)
    except _READ_ERRORS as error:
        file.close()
        raise _unreadable(where, error) from None
    weakref.finalize(archive, file.close)
    _check_archive(where, archive.infolist(), size)
    entries = sorted(archive.infolist(), key=lambda info: info.filename)
    files = [info for info in entries if not info.is_dir() and not _is_hidden(info.filename)]
    found = [
        LogFile(
            _without_suffix(info.filename),
            f"{where}: {info.filename}",
            info.file_size,
            partial(archive.open, info),
            checksum=info.CRC,
            unpacked_max=RATIO_FREE_MEMBER_BYTES + RATIO_MAX * info.compress_size,
        )
        for info in files
        if info.file_size
    ]
    if not found:
        raise UsageError(f"{where}: an archive without files; give one that holds logs")
    empty = len(files) - len(found)
    return LogFile(name, where, sum(one.total_bytes for one in found), members=tuple(found), empty=empty)


def _check_archive(where: str, entries: list[zipfile.ZipInfo], size: int) -> None:
    """Raise UsageError for too large an archive. No entry is read beyond its `file_size`."""
    unpacked, remedy = sum(entry.file_size for entry in entries), "unpack the archive, and give the folder"
    if len(entries) > ENTRIES_MAX:
        raise UsageError(f"{where}: has {len(entries):,} entries, more than {ENTRIES_MAX:,}: {remedy}")
    if unpacked > ARCHIVE_BYTES_MAX:
        raise UsageError(f"{where}: unpacks to {unpacked:,} bytes, more than {ARCHIVE_BYTES_MAX:,}: {remedy}")
    if unpacked > RATIO_FREE_BYTES + RATIO_MAX * size:
        raise _too_dense(where)


def _too_dense(where: str) -> UsageError:
    problem = f"unpacks to more than {RATIO_MAX} times its size, as no log does"
    return UsageError(f"{where}: {problem}; if you trust it, decompress it yourself, and give the result")


def _standard_input() -> LogFile:
    """Return standard input as a temporary file, because it cannot be read twice."""
    standard_input = sys.stdin.buffer
    try:
        is_file = stat.S_ISREG(os.fstat(standard_input.fileno()).st_mode)
    except (OSError, ValueError):
        is_file = False
    file: BinaryIO = standard_input
    if not is_file:
        file = tempfile.TemporaryFile(prefix="recallflow-")  # noqa: SIM115 - closed with the source
        try:
            _spool(standard_input, file)
        except UsageError:
            file.close()
            raise
    size = os.fstat(file.fileno()).st_size
    open_shared = partial(_Shared, file, size)
    if file is not standard_input:
        weakref.finalize(open_shared, file.close)
    return _file("standard input", "standard-input", size, open_shared)


def _spool(standard_input: BinaryIO, file: BinaryIO) -> None:
    """Copy standard input. Raise UsageError at half of the free space, because other programs need the rest."""
    folder = tempfile.gettempdir()
    room_bytes = shutil.disk_usage(folder).free // 2
    while chunk := standard_input.read(_SPOOLED_BYTES):
        room_bytes -= len(chunk)
        if room_bytes < 0:
            raise UsageError(f"standard input is longer than half of the free space in {folder}: save it to a file")
        file.write(chunk)
    file.flush()


def _decompressed(file: io.BufferedReader, where: str, most_bytes: int) -> BinaryIO:
    """Return a reader that refuses to give more than `most_bytes` decompressed bytes. Compression is detected
    by the first bytes: a browser may decompress a file and keep its name."""
    start = file.peek(4)[:4]
    stream: Stream
    if start.startswith(GZIP):
        stream = gzip.GzipFile(fileobj=file, mode="rb")
    elif start == ZSTANDARD:
        from pyarrow import CompressedInputStream, PythonFile  # slow to import

        stream = CompressedInputStream(PythonFile(file, mode="r"), "zstd")
    else:
        return file
    return io.BufferedReader(_Checked(stream, where, file, most_bytes), _SPOOLED_BYTES)


class _Checked(io.RawIOBase):
    """Reader whose errors name the file, and which counts the bytes read."""

    def __init__(self, file: Stream, where: str, packed: BinaryIO | None = None, most_bytes: int | None = None) -> None:
        """A decompressor `file` reads `packed`, which is closed with it. More than `most_bytes` are refused."""
        self._file, self._where, self._packed, self._most_bytes = file, where, packed, most_bytes
        self.done_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._packed is None and self._file.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, into: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            if (read1 := getattr(self._file, "read1", None)) is None:
                found = self._file.read(len(into)) or b""
            else:  # in small steps, so that nothing before the damage of a truncated file is lost
                found = read1(min(len(into), _STEP_BYTES))
        except _READ_ERRORS as error:
            problem = f"is damaged or incomplete ({_reason(error)})"
            remedy = "the part before the damage was read: repair the file, and replay it again"
            raise UsageError(f"{self._where}: {problem}; {remedy}") from None
        into[: len(found)] = found
        self.done_bytes += len(found)
        if self._most_bytes is not None and self.done_bytes > self._most_bytes:
            raise _too_dense(self._where)
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            if self._packed is not None:
                self._packed.close()
        super().close()


class _Shared(io.RawIOBase):
    """One of several readers of an open file, each with its own offset."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: bytearray | memoryview) -> int:  # type: ignore[override]
        found = os.pread(self._file.fileno(), len(into), self._at)
        into[: len(found)] = found
        self._at += len(found)
        return len(found)
