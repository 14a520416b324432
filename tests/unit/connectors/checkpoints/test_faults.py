"""Faults of checkpoint stores: an incomplete generation is never used, and each problem is reported."""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
from pyarrow import fs

from recallflow.connectors.checkpoints import objects as remote_objects
from recallflow.connectors.checkpoints.generation import decode, encode
from recallflow.connectors.checkpoints.objects import Location, Objects, locate
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.errors import CheckpointBroken, CheckpointError, UsageError
from tests.s3_server import S3Server
from tests.unit.connectors.checkpoints.conftest import Grown, about, contents, objects

MakeGrown = Callable[..., Grown]
Two = tuple[CheckpointStore, Path, list[dict[str, str]]]


class Killed(BaseException):
    """The end of a process, as far as the store can see it: nothing more is written."""


def save_and_stop(url: str, folder: Path, after: int) -> str:
    """Save a folder and stop before the write that follows so many. Return the name that was to be written."""
    names, one = list[str](), threading.Lock()

    class Stopping(Objects):
        def put(self, name: str, data: bytes) -> None:
            with one:
                names.append(name)
                if len(names) > after:
                    raise Killed
                super().put(name, data)

    with pytest.raises(Killed):
        CheckpointStore(Stopping(locate(url), threading.Event(), 0, create=False)).save(3, folder, about(99))
    return names[after]


@pytest.mark.parametrize("after", [0, 1, "all"])
def test_interrupted_upload_leaves_no_generation(url: str, grown: MakeGrown, tmp_path: Path, after: int | str) -> None:
    store, db = CheckpointStore.open(url), grown(records=30)
    first, before = store.save(3, folder := db.folder(), db.about()).manifest, contents(folder)
    db.grow(30)
    folder = db.folder()
    new = {*contents(folder).values()} - {*before.values()}
    next_one = save_and_stop(url, folder, len(new) if after == "all" else int(after))
    assert ("/manifests/" in next_one, CheckpointStore.open(url).generations(3)) == (after == "all", [first])
    assert (store.fetch_newest(3, tmp_path / "fetched"), contents(tmp_path / "fetched")) == (first, before)
    again = store.save(3, folder, db.about(created_ms=1)).manifest
    store.fetch(again, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


@pytest.fixture
def two(tmp_path: Path, grown: MakeGrown) -> Two:
    root = tmp_path / "store"
    store, db, held = CheckpointStore.open(root.as_uri()), grown(), list[dict[str, str]]()
    for _ in range(2):
        db.grow(10)
        held.append(contents(folder := db.folder()))
        store.save(3, folder, db.about())
    return store, root, held


def only_in_the_newest(store: CheckpointStore, root: Path, file: str) -> Path:
    new, old = store.generations(3)
    (piece,) = {one for each in new.files if each.name.endswith(file) for one in each.pieces} - old.objects().keys()
    return objects(root)[piece]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), r"has \d+ of \d+ bytes"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"!"), r"has more than \d+ bytes"),
    "another": (flip, "was changed: its SHA-256 does not match"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_object_makes_fetch_take_an_older_generation(
    two: Two, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store, root, held = two
    do, says = DAMAGE[damage]
    do(only_in_the_newest(store, root, ".sst"))
    new, old = store.generations(3)
    with pytest.raises(CheckpointBroken, match=rf"{new.name}: file \d+\.sst: object p003/objects/\w+-\w+ {says}"):
        store.fetch(new, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    assert [path.name for path in tmp_path.glob(".fetched*")] == []
    assert (store.fetch_newest(3, tmp_path / "fetched"), contents(tmp_path / "fetched")) == (old, held[0])
    assert f"a checkpoint of state partition 3 is skipped: {new.name}: file " in caplog.text
    assert store.newest(3) == (new if damage == "another" else old)  # a listing shows sizes
    known: dict[str, str | None] = {}
    assert (len(store.verify(new, known)), store.verify(old, known)) == (1, [])


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_lost_objects_are_sent_again(two: Two, tmp_path: Path, damage: str) -> None:
    store, root, held = two
    store.fetch_newest(3, tmp_path / "fetched")
    table_bytes = (table := only_in_the_newest(store, root, ".sst")).stat().st_size
    DAMAGE[damage][0](table)
    again = store.save(3, tmp_path / "fetched", about(50))
    assert again.sent_bytes == table_bytes
    store.fetch(again.manifest, tmp_path / "again")
    assert contents(tmp_path / "again") == held[1]


GARBAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "is no manifest"),
    "cut": (lambda data: data[: len(data) // 2], "is no manifest"),
    "a list": (lambda _: b"[]", "is no manifest"),
    "a number": (lambda _: b"7", "is no manifest"),
    "changed": (lambda data: data.replace(b'"acme"', b'"acne"'), "its checksum does not match"),
    "bytes": (lambda _: bytes(range(256)), "is no manifest"),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_manifest_is_skipped_with_one_warning(
    two: Two, tmp_path: Path, caplog: pytest.LogCaptureFixture, garbage: str
) -> None:
    _, root, held = two
    make, says = GARBAGE[garbage]
    manifest = max((root / "p003" / "manifests").iterdir())
    manifest.write_bytes(make(manifest.read_bytes()))
    store = CheckpointStore.open(root.as_uri())
    assert store.newest(3) == store.fetch_newest(3, tmp_path / "fetched") == store.generations(3)[0]
    assert contents(tmp_path / "fetched") == held[0]
    assert [record.message.partition("skipped: ")[2][:20] for record in caplog.records] == [manifest.name[:20]]
    (problem,) = store.broken(3)
    assert says in str(problem)


def test_a_manifest_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"a")
    manifest = CheckpointStore.open((tmp_path / "store").as_uri()).save(3, tmp_path / "f", about(1)).manifest
    assert decode(manifest.name, encode(manifest), 3) == manifest
    (file,) = manifest.files
    for wrong in (
        replace(file, name="../a"),
        replace(file, name="/a"),
        replace(file, name=".."),
        replace(file, name=""),
        replace(file, pieces=("../../secret",)),
        replace(file, pieces=()),
        replace(file, size=-1),
    ):
        with pytest.raises(CheckpointBroken, match=r"files\.0\.|number of pieces"):
            decode(manifest.name, encode(replace(manifest, files=(wrong,))), 3)
    for name, number, says in (
        (manifest.name, 4, "is of state partition 3, not 4"),
        (f"1{manifest.name[1:]}", 3, "is the manifest of another generation"),
    ):
        with pytest.raises(CheckpointBroken, match=says):
            decode(name, encode(manifest), number)


@pytest.fixture
def own_s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Start a server that may go away. Clients make one attempt at a time, without pauses."""

    def hasty(url: str) -> Location:
        options = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        filesystem = fs.S3FileSystem(**options, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
        return locate(url)._replace(filesystem=filesystem)

    monkeypatch.setattr("recallflow.connectors.checkpoints.store.locate", hasty)
    monkeypatch.setattr(remote_objects, "PAUSE_S", 0.0)
    bucket = f"away-{len(request.node.name)}"
    with pytest.MonkeyPatch.context() as credentials, S3Server(credentials, bucket) as server:
        yield server


class Returns(logging.Handler):
    """Has a store come back once it is said that it is waited for."""

    def __init__(self, server: S3Server) -> None:
        super().__init__()
        self.server, self.said = server, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if len(self.said) == 1:
            self.server.come()


def test_a_store_that_comes_back_is_waited_for(own_s3: S3Server, tmp_path: Path, grown: MakeGrown) -> None:
    db = grown()
    store = CheckpointStore.open(own_s3.url("a"))
    own_s3.go()
    log, handler = logging.getLogger("recallflow.connectors.checkpoints.objects"), Returns(own_s3)
    log.addHandler(handler)
    try:
        store.save(3, folder := db.folder(), db.about())
    finally:
        log.removeHandler(handler)
    assert handler.said[0].startswith(f"{store.shown} is unavailable: ")
    store.fetch_newest(3, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == contents(folder)


def test_unavailable_store_is_an_error(own_s3: S3Server, tmp_path: Path, grown: MakeGrown) -> None:
    db, stopping = grown(), threading.Event()
    store = CheckpointStore.open(own_s3.url("a"), patience_s=0)
    stopped = CheckpointStore.open(own_s3.url("a"), stopping)
    store.save(3, db.folder(), db.about())
    own_s3.go()
    with pytest.raises(CheckpointError):
        store.fetch_newest(3, tmp_path / "fetched")
    with pytest.raises(CheckpointError):
        CheckpointStore.open(own_s3.url("a"), patience_s=0)
    stopping.set()
    with pytest.raises(CheckpointError):
        stopped.newest(3)
    assert [path for path in tmp_path.iterdir() if "fetched" in path.name] == []
    own_s3.come()


def test_a_disk_that_cannot_be_written_is_no_broken_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"a")
    store = CheckpointStore.open((tmp_path / "store").as_uri())
    manifest = store.save(3, tmp_path / "f", about(1)).manifest
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError):
        store.fetch(manifest, tmp_path / "taken" / "p003")


@pytest.mark.parametrize("create", [False, True])
def test_regular_file_as_a_store_is_refused(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(UsageError, match=r"path: .*file is not a folder: name a folder"):
        CheckpointStore.open((tmp_path / "file").as_uri(), create=create)


def test_reading_commands_make_no_folder(tmp_path: Path) -> None:
    assert CheckpointStore.open((tmp_path / "store").as_uri()).partitions() == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EACCES, UsageError), (errno.EROFS, UsageError), (errno.ENOSPC, CheckpointError)],
    ids=["no permission", "read-only", "full"],
)  # fmt: skip
def test_folder_that_takes_no_file_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    fail = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr("recallflow.connectors.checkpoints.objects.open_private", fail)
    with pytest.raises(error, match=os.strerror(number)):
        CheckpointStore.open((tmp_path / "store").as_uri(), create=True)


def test_missing_folder_is_not_made_anew(tmp_path: Path, grown: MakeGrown) -> None:
    db, root = grown(), tmp_path / "store"
    store = CheckpointStore.open(root.as_uri(), patience_s=0, create=True)
    store.save(3, db.folder(), db.about())
    root.rename(tmp_path / "elsewhere")
    for call in (lambda: store.save(3, db.folder(), db.about()), lambda: store.newest(3)):
        with pytest.raises(CheckpointError):
            call()
    assert not root.exists()
    (tmp_path / "elsewhere").rename(root)
    assert store.save(3, db.folder(), db.about(created_ms=1)).sent_bytes < sum(
        path.stat().st_size for path in objects(root).values()
    )


def test_killed_fetch_is_cleaned_up(url: str, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"a")
    store = CheckpointStore.open(url)
    manifest = store.save(3, tmp_path / "f", about(1)).manifest
    left = tmp_path / "state" / ".p003.fetching-0"
    left.mkdir(parents=True)
    (left / "a").write_bytes(b"")
    store.fetch(manifest, tmp_path / "state" / "p003")
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["p003"]


def test_pruning_counts_whole_generations(two: Two, tmp_path: Path) -> None:
    store, root, held = two
    only_in_the_newest(store, root, ".sst").unlink()
    assert store.prune(3, 1) == (0, 0)
    store.fetch_newest(3, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == held[0]


def test_unmounted_folder_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grown: MakeGrown) -> None:
    db, mounted = grown(), True
    monkeypatch.setattr(os.path, "ismount", lambda _: mounted)
    store = CheckpointStore.open((tmp_path / "store").as_uri(), patience_s=0, create=True)
    mounted = False
    with pytest.raises(CheckpointError):
        store.save(3, db.folder(), db.about())
    mounted = True
    store.save(3, db.folder(), db.about())
