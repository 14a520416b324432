"""The store of checkpoints: its URL, its generations and its objects."""

import shutil
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rocksdict import Options, Rdict

from recallflow.connectors.checkpoints.generation import PIECE_BYTES, THREADS, CheckpointOrigin
from recallflow.connectors.checkpoints.objects import Objects, locate
from recallflow.connectors.checkpoints.store import GRACE_S, CheckpointSaver, CheckpointStore
from recallflow.errors import CheckpointError, UsageError
from tests.groups import share
from tests.s3_server import S3Server
from tests.unit.connectors.checkpoints.conftest import SOURCE, Grown, about, age, contents, objects

MakeGrown = Callable[..., Grown]
GRACE_HOURS = GRACE_S / 3600


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_fetched_checkpoint_equals_the_saved_one(store: CheckpointStore, grown: MakeGrown, tmp_path: Path) -> None:
    db = grown(records=50)
    folder = db.folder()
    saved = store.save(3, folder, db.about(created_ms=7))
    manifest = store.fetch_newest(3, tmp_path / "state" / "p003")
    assert manifest == saved.manifest == store.newest(3)
    assert contents(tmp_path / "state" / "p003") == contents(folder)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["p003"]
    assert (manifest.about.applied, manifest.about.offset, manifest.about.created_ms) == ({SOURCE: 49}, 49, 7)
    assert manifest.about == db.about(7)
    reopened: Any = Rdict(str(tmp_path / "state" / "p003"), Options(raw_mode=True))
    assert [int.from_bytes(key) for key in reopened.keys()] == [*range(50)]  # noqa: SIM118 - it is no dict
    reopened.close()


def test_only_new_files_are_sent(store: CheckpointStore, grown: MakeGrown) -> None:
    db = grown(records=200)
    first, folder = store.save(3, db.folder(), db.about()), db.folder()
    assert first.sent_bytes == first.manifest.size > 100_000
    assert store.save(3, folder, db.about()).sent_bytes < 2_000  # RocksDB numbers its manifest anew: small files
    db.grow(1)
    folder = db.folder()
    second = store.save(3, folder, db.about())
    before = {file.name for file in first.manifest.files if file.name.endswith(".sst")}
    new = [path for path in folder.iterdir() if path.name not in before]
    assert 0 < second.sent_bytes <= sum(path.stat().st_size for path in new)
    assert second.sent_bytes < second.manifest.size / 10


def test_unchanged_table_is_not_read_again(tmp_path: Path, grown: MakeGrown, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore.open((tmp_path / "store").as_uri())
    db = grown(records=200)
    store.save(3, db.folder(), db.about())
    folder = db.folder()
    read, opened = list[str](), Path.open

    def noted(path: Path, mode: str) -> Any:
        read.append(path.name)
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", noted)
    store.save(3, folder, db.about(created_ms=1))
    assert "CURRENT" in read
    assert [name for name in read if name.endswith(".sst")] == []


def test_a_large_file_goes_in_pieces_and_comes_back_whole(store: CheckpointStore, tmp_path: Path) -> None:
    large = bytes(range(256)) * (PIECE_BYTES // 128) + b"end"
    folder = write(tmp_path / "f", log=large, none=b"")
    saved = store.save(3, folder, about(5))
    assert sorted(saved.manifest.objects().values()) == [3, PIECE_BYTES]  # the first two pieces are the same
    assert (saved.sent_bytes, store.fetch_newest(3, tmp_path / "fetched")) == (PIECE_BYTES + 3, saved.manifest)
    assert contents(tmp_path / "fetched") == contents(folder)
    with (folder / "log").open("ab") as file:
        file.write(b"more")
    assert store.save(3, folder, about(6)).sent_bytes == len(b"endmore")


@pytest.mark.parametrize("piece_bytes", [256 * 1024, pytest.param(PIECE_BYTES, marks=pytest.mark.exhaustive)])
def test_large_file_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr("recallflow.connectors.checkpoints.generation.PIECE_BYTES", piece_bytes)
    pieces = [b"%d" % number + bytes(piece_bytes - 2) for number in range(10, 58)]
    folder = write(tmp_path / "f", **{"large.sst": b"".join(pieces)})
    del pieces
    store = CheckpointStore.open((tmp_path / "store").as_uri())
    store.newest(3)
    tracemalloc.start()
    try:
        store.fetch(store.save(3, folder, about(1)).manifest, tmp_path / "fetched")
        assert tracemalloc.get_traced_memory()[1] < 2 * THREADS * piece_bytes
    finally:
        tracemalloc.stop()
    assert contents(tmp_path / "fetched") == contents(folder)


def test_newest_generation_has_most_applied(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", a=b"a")
    offsets = [(-1, 50), (9, 10), (100, 20), (99, 30), (100, 15)]
    saved = [store.save(3, folder, about(offset, created)).manifest for offset, created in offsets]
    assert store.newest(3) == saved[2]
    assert store.generations(3) == [saved[place] for place in (2, 4, 3, 1, 0)]
    assert store.partitions() == [3]
    assert (store.newest(4), store.generations(4), store.fetch_newest(4, tmp_path / "none")) == (None, [], None)
    assert not (tmp_path / "none").exists()


def test_a_folder_that_holds_something_is_not_fetched_into(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", a=b"a")
    manifest = store.save(3, folder, about(1)).manifest
    with pytest.raises(CheckpointError):
        store.fetch(manifest, folder)
    (tmp_path / "mounted").mkdir()
    store.fetch(manifest, tmp_path / "mounted")
    assert contents(tmp_path / "mounted") == contents(folder)


def test_pruning_leaves_the_newest_generations_with_all_they_need(store: CheckpointStore, tmp_path: Path) -> None:
    folders = [write(tmp_path / f"{n}", shared=b"shared", own=bytes([n])) for n in range(4)]
    saved = [store.save(3, folder, about(n)).manifest for n, folder in enumerate(folders)]
    assert (store.prune(3, 2), store.generations(3), store.prune(3, 2)) == ((2, 0), [saved[3], saved[2]], (0, 0))
    for place in (2, 3):
        store.fetch(saved[place], tmp_path / f"fetched-{place}")
        assert contents(tmp_path / f"fetched-{place}") == contents(folders[place])
    store.fetch(saved[0], tmp_path / "begun-before")  # whoever fetches it just now is not disturbed
    with pytest.raises(UsageError, match="to keep: 0: give 1 or more"):
        store.prune(3, 0)


def test_unreferenced_objects_are_deleted_after_the_grace_period(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = CheckpointStore.open(root.as_uri())
    for n in range(3):
        store.save(3, write(tmp_path / f"{n}", shared=b"shared", own=bytes([n])), about(n))
    (root / "p003" / "objects" / "new-cut").write_bytes(b"of a writer that was killed")
    assert (store.prune(3, 1), len(objects(root)), len(objects(root, "p003/retired"))) == ((2, 0), 5, 2)
    age(root, GRACE_HOURS + 1)
    newest = store.save(3, write(tmp_path / "3", own=b"new"), about(3)).manifest  # which says what time it is
    assert (store.prune(3, 2), len(objects(root)), objects(root, "p003/retired")) == ((0, 3), 3, {})
    age(root, GRACE_HOURS + 1)
    assert store.prune(3, 1) == (1, 0)  # it was pruned just now
    assert set(newest.objects()) < set(objects(root))


def test_a_manifest_of_a_later_version_keeps_every_object(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = CheckpointStore.open(root.as_uri())
    store.save(3, write(tmp_path / "0", own=b"0"), about(0))
    later = root / "p003" / "manifests" / f"{9:020d}-{0:015d}-ab.json"
    later.write_text('{"format": 2}')
    (root / "p003" / "objects" / "of-the-later").write_bytes(b"")
    age(root, GRACE_HOURS + 1)
    store.save(3, write(tmp_path / "1", own=b"1"), about(1))
    assert (store.prune(3, 1), len(objects(root))) == ((1, 0), 3)
    assert later.exists()


class Interrupted(Objects):
    """Before its n-th write, something else is done."""

    def __init__(self, url: str) -> None:
        super().__init__(locate(url), threading.Event(), 0, create=False)
        self.meanwhile = dict[int, Callable[[], object]]()
        self._written = 0
        self._one = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        with self._one:
            self._written += 1
            self.meanwhile.pop(self._written, lambda: None)()
        super().put(name, data)

    def begin(self, meanwhile: dict[int, Callable[[], object]]) -> None:
        self._written, self.meanwhile = 0, meanwhile


class TwoWriters(RuleBasedStateMachine):
    """Two engines that both think that a partition is theirs save, prune and fetch, one amid the other's save."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.root = self.path / "store"
        self.writes = [Interrupted(self.root.as_uri()) for _ in range(2)]
        self.stores = [CheckpointStore(objects) for objects in self.writes]
        self.saved = dict[str, dict[str, str]]()  # contents by name of generation
        self.pruned = set[str]()
        self.created_ms = 0

    @initialize(records=st.integers(1, 30))
    def one_state_in_two_places(self, records: int) -> None:
        self.dbs = [Grown(self.path / name) for name in ("a", "b")]
        for db in self.dbs:
            db.grow(records)

    def save(self, writer: int) -> None:
        self.created_ms += 1
        folder = self.dbs[writer].folder()
        saved = self.stores[writer].save(3, folder, self.dbs[writer].about(self.created_ms))
        self.saved[saved.manifest.name] = contents(folder)

    def prune(self, writer: int, keep: int) -> None:
        self.stores[writer].prune(3, keep)
        left = sorted(self.saved.keys() - self.pruned)
        self.pruned |= set(left[:-keep])

    @rule(writer=st.integers(0, 1), records=st.integers(1, 30))
    def grow(self, writer: int, records: int) -> None:
        self.dbs[writer].grow(records)

    @rule(
        writer=st.integers(0, 1),
        other=st.dictionaries(st.integers(1, 6), st.sampled_from(("save", "prune", "fetch")), max_size=3),
    )
    def save_while_the_other_works(self, writer: int, other: dict[int, str]) -> None:
        acts = {
            "save": lambda: self.save(1 - writer),
            "prune": lambda: self.prune(1 - writer, 1),
            "fetch": self.what_there_is_is_what_was_saved,
        }
        self.writes[writer].begin({place: acts[act] for place, act in other.items()})
        self.save(writer)
        self.writes[writer].begin({})

    @rule(writer=st.integers(0, 1), keep=st.integers(1, 3))
    def prune_alone(self, writer: int, keep: int) -> None:
        self.prune(writer, keep)

    @rule(hours=st.sampled_from((1.0, GRACE_HOURS + 1)))
    def time_goes_by(self, hours: float) -> None:
        age(self.root, hours)

    @rule(writer=st.integers(0, 1))
    def be_killed_amid_a_save(self, writer: int) -> None:
        def die() -> None:
            raise KeyboardInterrupt

        self.dbs[writer].grow(1)
        self.writes[writer].begin({2: die})
        with pytest.raises(KeyboardInterrupt):
            self.save(writer)
        self.writes[writer].begin({})

    @invariant()
    def what_there_is_is_what_was_saved(self) -> None:
        left = sorted(self.saved.keys() - self.pruned, reverse=True)
        assert [manifest.name for manifest in self.stores[0].generations(3)] == left
        assert [manifest.name for manifest in self.stores[1].generations(3)] == left
        for manifest in self.stores[1].generations(3):
            self.stores[0].fetch(manifest, self.path / "fetched")
            assert contents(self.path / "fetched") == self.saved[manifest.name]
            shutil.rmtree(self.path / "fetched")
        newest = self.stores[0].newest(3)
        assert (newest and newest.name) == (left[0] if left else None)

    def teardown(self) -> None:
        for db in getattr(self, "dbs", ()):
            db.close()
        shutil.rmtree(self.path)


TestTwoWriters = TwoWriters.TestCase
TestTwoWriters.settings = settings(max_examples=share(0.4), stateful_step_count=10)


def test_keeper_saves_checkpoints_and_prunes(url: str, grown: MakeGrown, tmp_path: Path) -> None:
    state_dir, db = tmp_path / "state", grown()
    (state_dir / ".checkpoint-of-a-killed-process").mkdir(parents=True)
    keeper = CheckpointSaver(CheckpointStore.open(url), state_dir, keep=2)
    made = list[dict[str, str]]()

    def make(folder: Path) -> CheckpointOrigin:
        assert folder.parent.parent == state_dir
        db.grow(10)
        db.folder().rename(folder)
        made.append(contents(folder))
        return db.about()

    saved = [keeper.save(3, make).manifest for _ in range(3)]
    assert [*state_dir.iterdir()] == []
    store = CheckpointStore.open(url)
    assert store.generations(3) == [saved[2], saved[1]]
    store.fetch_newest(3, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == made[2]


def test_keeper_without_a_folder_leaves_nothing(url: str, tmp_path: Path) -> None:
    keeper = CheckpointSaver(CheckpointStore.open(url), tmp_path, keep=2)

    def fail(folder: Path) -> CheckpointOrigin:
        folder.mkdir()
        raise CheckpointError("the partition is gone")

    before = {*tmp_path.iterdir()}
    with pytest.raises(CheckpointError):
        keeper.save(3, fail)
    assert ({*tmp_path.iterdir()}, CheckpointStore.open(url).generations(3)) == (before, [])


WRONG = {
    "backups": r"\(backups\): scheme: is missing: give one of s3, gs, file; a folder is file:///mnt/backups",
    "": r"scheme: is missing",
    "ftp://host/x": r"\(ftp://host/x\): scheme: ftp is none of s3, gs, file",
    "s3://": r"bucket: is missing",
    "s3:///x": r"bucket: is missing",
    "s3://[bucket": r"host: Invalid IPv6 URL",
    "gs://?x=1#y": r"bucket: is missing; fragment: # has no meaning here",
    "s3://bucket/x?endpoint=minio": r"options: Unexpected query parameter in S3 URI: 'endpoint'",
    "gs://bucket/x?region=eu": r"options: Unexpected query parameter in GCS URI: 'region'",
    "file://backups/x": r"host: backups: a folder has none",
    "file:": r"path: is missing: name a folder",
    "file://host?a=b": r"host: host: .*; path: is missing.*; options: a folder takes none",
}


@pytest.mark.parametrize("url", WRONG)
def test_wrong_url_error_names_the_field(url: str) -> None:
    with pytest.raises(UsageError, match=rf"URL of checkpoints.*{WRONG[url]}"):
        CheckpointStore.open(url)


@pytest.mark.parametrize("secret", ["wJalrXUtnFEMI", "wJalr/XUtn+FEMI", "wJalr@XUtnFEMI", "wJalr?XUtnFEMI"])
def test_credentials_in_a_url_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(UsageError, match=r"credentials: must not be in the URL.*AWS_SECRET_ACCESS_KEY") as refused:
        CheckpointStore.open(f"s3://AKIAKEY:{secret}@bucket/prefix?region=eu-west-1")
    assert "XUtn" not in str(refused.value)
    assert "AKIAKEY" not in str(refused.value)


def test_options_are_not_shown(s3: S3Server) -> None:
    assert CheckpointStore.open(s3.url("team/acme")).shown == "s3://checkpoints/team/acme"
    assert locate("gs://anonymous@bucket/x/").root == "bucket/x"


def test_a_bucket_that_there_is_not_is_no_empty_one(s3: S3Server) -> None:
    with pytest.raises(UsageError, match=r"\(s3://mistyped/x\): bucket: mistyped does not exist"):
        CheckpointStore.open(s3.url("x", bucket="mistyped"))


def test_a_folder_is_named_as_a_url_or_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("file:backups").root == str(tmp_path / "backups")
    assert locate((tmp_path / "a b").as_uri()).root == str(tmp_path / "a b")


class VanishingFolder:
    """A filesystem whose folders are gone when they are listed."""

    def get_file_info(self, asked: Any) -> list[Any]:
        if isinstance(asked, list):
            return [SimpleNamespace(type="directory")]
        raise FileNotFoundError(2, "Cannot list directory")


class StoreLocation(NamedTuple):
    filesystem: Any
    root: str = "bucket/folder"
    shown: str = "store"


def test_folder_removed_during_a_listing_is_empty() -> None:
    objects = Objects(StoreLocation(VanishingFolder()), threading.Event(), 0, create=False)  # type: ignore[arg-type]
    assert (objects.listing("p000/objects"), objects.folders()) == ({}, [])
