"""Logs from files, archives and standard input, in bounded memory; errors name the file."""

import gzip
import io
import shutil
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import orjson
import pyarrow as pa
import pytest

from recallflow.connectors.logs import documents, sources
from recallflow.connectors.logs.events import ImportScope
from recallflow.connectors.logs.registry import Log, Registry, log_name
from recallflow.connectors.logs.sources import open_source
from recallflow.errors import UsageError

SCOPE = ImportScope("acme", "ann", "test")
MEGABYTE = 1024 * 1024


def event(n: int, content: str = "hello") -> bytes:
    return orjson.dumps({"type": "message", "tenant_id": "acme", "user_id": "ann", "id": f"m{n}", "content": content})


EVENTS = [event(n) for n in range(50)]
LINES = b"\n".join(EVENTS) + b"\n"

Write = Callable[[str, bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return written


def logs_of(path: Path | str) -> list[Log]:
    return Registry().logs_of(open_source(path))[0]


def values(path: Path | str) -> list[bytes]:
    return [value for log in logs_of(path) for value in log.read(SCOPE)]


def zstd(*parts: bytes) -> bytes:
    return b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts)


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.jsonl.gz", gzip.compress(LINES, mtime=0)),
        (
            "log.jsonl.gz",
            gzip.compress(LINES[:1000], mtime=0) + gzip.compress(LINES[1000:], mtime=0),
        ),  # two in a row, as logrotate does
        ("log.jsonl.zst", zstd(LINES)),
        ("log.jsonl.zst", zstd(LINES[:1000], LINES[1000:])),
        ("log.jsonl.gz", LINES),  # a browser decompressed it and kept the name
        ("log.jsonl", gzip.compress(LINES, mtime=0)),
    ],
)
def test_compression_is_detected_by_content(write: Write, name: str, content: bytes) -> None:
    path = write(name, content)
    assert values(path) == EVENTS
    assert logs_of(path)[0].source.name == "log.jsonl"


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.jsonl.zst"])
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_broken_archive_is_read_up_to_the_break(write: Write, name: str, how: str) -> None:
    draw = Random(0)
    lines = b"\n".join(event(n, draw.randbytes(200).hex()) for n in range(5_000)) + b"\n"
    content = bytearray(gzip.compress(lines, 1) if name.endswith("gz") else zstd(lines))
    at = len(content) * 3 // 4
    content[at:] = b"" if how == "cut" else bytes(byte ^ 0xFF for byte in content[at:])
    path = write(name, bytes(content))
    read: list[bytes] = []
    with pytest.raises(UsageError, match=f"{name}: cannot be read on") as caught:
        read.extend(logs_of(path)[0].read(SCOPE))
    assert "\n" not in str(caught.value)
    # Of gzip, a checksum at the end alone tells a flipped bit: lines behind the break may be wrong.
    sound = len(read) if how == "cut" else 3_500
    assert read[:sound] == lines.splitlines()[: len(read)][:sound]
    assert read


def test_zip_archive_gives_each_log_in_it(tmp_path: Path) -> None:
    files = {
        "../../up/\u00fc.jsonl": LINES, "/root/abs.jsonl": EVENTS[0],
        "back\\slash.jsonl.gz": gzip.compress(EVENTS[1]), "empty.jsonl": b"", "folder/": b"",
        "__MACOSX/._abs.jsonl": b"\x00\x05\x16\x07", ".DS_Store": b"\x00\x00", "read.me": b"hello\n",
        "old.rejects.jsonl": EVENTS[2],
    }  # fmt: skip
    path = archive(tmp_path / "logs.zip", files)
    logs, others = Registry().logs_of(open_source(path))
    assert {log.source.name for log in logs} == {"../../up/\u00fc.jsonl", "/root/abs.jsonl", "back\\slash.jsonl"}
    assert [one.name for one in others] == ["read.me"]
    assert sorted(values(path)) == sorted([*EVENTS, EVENTS[0], EVENTS[1]])
    assert [one.name for one in tmp_path.iterdir()] == ["logs.zip"]  # nothing was extracted


def test_a_folder_is_read_like_an_archive(write: Write, tmp_path: Path) -> None:
    write("logs/b/2.jsonl.gz", gzip.compress(EVENTS[1]))
    write("logs/1.jsonl", EVENTS[0] + b"\r\n\r\n")
    write("logs/.hidden.jsonl", EVENTS[2])
    write("logs/empty.jsonl", b"")
    assert values(tmp_path / "logs") == [EVENTS[0] + b"\r", b"\r", EVENTS[1]]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.zip", b"PK\x03\x04" + b"\x00" * 100, "not a zip file"),
        ("x.zip", b"PK\x05\x06" + b"\x00" * 18, "an archive without files"),
        ("x.gz", gzip.compress(LINES, mtime=0)[:8], "cannot be read on"),
        ("x.zst", zstd(LINES)[:6], "cannot be read on|blank lines only"),
    ],
)
def test_invalid_archive_is_reported(write: Write, name: str, content: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        logs_of(write(name, content))
    assert name in str(caught.value)


def test_encrypted_archive_is_reported(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.zip", {"log.jsonl": LINES})
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"x.zip: log.jsonl: cannot be read .*password required"):
        logs_of(path)


class Peak:
    """The most memory that Python held."""

    bytes: int


@pytest.fixture
def peak() -> Iterator[Peak]:
    found = Peak()
    tracemalloc.start()
    try:
        yield found
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()


def bomb(path: Path, before: bytes, megabytes: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(before)
        for _ in range(megabytes):
            file.write(b"x" * MEGABYTE)
        file.write(b"\n" + EVENTS[1] + b"\n")
    return path


LARGE = pytest.mark.parametrize("megabytes", [100, pytest.param(1024, marks=pytest.mark.exhaustive)])


@pytest.fixture
def any_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "RATIO_MAX", 1_000_000)


@LARGE
@pytest.mark.usefixtures("peak", "any_ratio")
def test_huge_line_is_never_held_whole(tmp_path: Path, megabytes: int) -> None:
    first, huge, last = values(bomb(tmp_path / "log.gz", EVENTS[0] + b"\n", megabytes))
    assert (first, last, len(huge)) == (EVENTS[0], EVENTS[1], MEGABYTE + 1)


@LARGE
@pytest.mark.usefixtures("peak", "any_ratio")
def test_huge_element_is_never_held_whole(tmp_path: Path, megabytes: int) -> None:
    opening = b"[" + EVENTS[0] + b', {"type":"message","content":"'
    first, huge = values(bomb(tmp_path / "log.gz", opening, megabytes))
    assert (first, len(huge)) == (EVENTS[0], MEGABYTE + 1)


class Piped:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("content", [LINES, gzip.compress(LINES, mtime=0), zstd(LINES)])
def test_standard_input_is_read_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(content))
    (log,) = logs_of("-")
    assert [*log.read(SCOPE)] == [*log.read(SCOPE)] == EVENTS


def test_standard_input_that_would_fill_the_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(sys, "stdin", Piped(LINES))
    with pytest.raises(UsageError, match="longer than half of what is free"):
        open_source("-")


def named(path: Path | str, scope: ImportScope = SCOPE) -> str:
    (log,) = logs_of(path)
    return log_name(log, scope)


def test_grown_lines_keep_their_name_and_grown_documents_do_not(write: Write) -> None:
    before = named(write("log.jsonl", LINES)), named(write("chat.json", b"[\n" + EVENTS[0] + b"\n]"))
    after = (
        named(write("log.jsonl", LINES * 2)),
        named(write("chat.json", b"[\n" + EVENTS[0] + b",\n" + EVENTS[1] + b"\n]")),
    )
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_log_without_owner_is_named_after_the_given_one(write: Write) -> None:
    chat = write("chat.jsonl", b'{"role":"user","content":"hello"}\n')
    assert named(chat) == named(chat)
    assert named(chat, ImportScope("acme", "bob")) != named(chat, ImportScope("acme", "ann"))
    log = write("log.jsonl", LINES)
    assert named(log, ImportScope("acme", "bob")) == named(log, ImportScope("acme", "ann"))


def test_piped_log_is_named_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for content in (LINES, LINES, LINES + EVENTS[0]):
        monkeypatch.setattr(sys, "stdin", Piped(content))
        found.append(named("-"))
    assert found[0] == found[1] != found[2]


def test_archive_over_a_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "logs.zip", {f"{n}.jsonl": EVENTS[n] if n % 2 else b"" for n in range(12)})
    assert len(logs_of(path)) == 6
    for name, most in (("ENTRIES_MAX", 11), ("ARCHIVE_BYTES_MAX", 100)):
        with monkeypatch.context() as patched:
            patched.setattr(sources, name, most)
            with pytest.raises(UsageError, match=rf"logs\.zip: .* {most}: unpack it"):
                open_source(path)


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.jsonl.zst", "logs.zip", "nested.zip"])
def test_decompression_bomb_is_refused(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sources, "RATIO_FREE_BYTES", 2 * MEGABYTE)
    dense = event(0, "a" * 900_000) + b"\n"  # some 1,000 times its compressed size
    if name.endswith("zip"):
        path = archive(tmp_path / name, {"log.jsonl": gzip.compress(dense * 4) if name == "nested.zip" else dense * 4})
    else:
        path = write(name, gzip.compress(dense * 4) if name.endswith("gz") else zstd(dense * 4))
    with pytest.raises(UsageError, match=f"more than {sources.RATIO_MAX} times"):
        values(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sources, "RATIO_MAX", 1_000_000)
        assert len(values(path)) == 4


def test_many_small_files_are_recognised_in_a_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(start: bytes) -> object:
        nonlocal reads
        reads += 1
        return orjson.loads(start)

    monkeypatch.setattr(documents, "parsed", counted)
    files = {f"{n}.json": b'{"a": %d}' % n for n in range(200)} | {"chat.jsonl": LINES}
    path = archive(tmp_path / "logs.zip", files)
    assert [log.source.name for log in logs_of(path)] == ["chat.jsonl"]
    assert reads < 3 * len(files)
