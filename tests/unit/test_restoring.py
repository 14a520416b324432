"""A newer checkpoint of the same log replaces a partition's folder while nobody uses it."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.flows.checkpointing import FAR_BEHIND, Checkpoints
from recallflow.flows.settings import Settings
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from tests.unit.operators.harness import HASHING

TOPIC = "memory.events"
SETTINGS = Settings(partitions=4)
Made = Callable[..., "Kept"]


class Kept:
    def __init__(self, directory: StateDirectory, store: Path, topic: str) -> None:
        self.directory, self._topic = directory, topic
        self.store = CheckpointStore.open(store.as_uri(), patience_s=0, create=True)
        self.checkpoints = Checkpoints(self.store, directory, topic, "d", every_s=1, keep=3, owned=frozenset)

    def apply(self, offset: int) -> None:
        self.stage(offset)
        self.directory.partition(2).commit()

    def stage(self, offset: int) -> None:
        self.directory.partition(2).stage({b"k": b"%d" % offset}, Position(self._topic, 2, offset))

    def keep(self) -> None:
        self.checkpoints._keep(2)

    def restored(self, wanted: bool = True) -> int:
        self.checkpoints.restore(2, lambda: wanted)
        return self.directory.partition(2).applied.get(f"{self._topic}:2", -1)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with ExitStack() as stack:

        def make(name: str, topic: str = TOPIC, at_rest: AtRest = UNENCRYPTED) -> Kept:
            fingerprint = SETTINGS.fingerprint(HASHING)
            directory = StateDirectory.open(tmp_path / name, fingerprint, SETTINGS.cache_bytes, at_rest=at_rest)
            return Kept(stack.enter_context(directory), tmp_path / "store", topic)

        yield make


def test_folder_far_behind_is_replaced_while_wanted(made: Made) -> None:
    one, other = made("one"), made("other")
    one.apply(FAR_BEHIND + 7)
    one.keep()
    other.apply(6)
    assert other.restored(wanted=False) == 6
    assert other.restored() == FAR_BEHIND + 7
    assert other.directory.partition(2).get(b"k") == b"%d" % (FAR_BEHIND + 7)


def test_checkpoint_that_holds_less_is_not_taken(made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = made("one"), made("other")
    one.apply(10)
    one.keep()
    before = {*tmp_path.glob("store/p002/objects/*")}
    one.apply(3 * FAR_BEHIND)
    one.keep()
    for added in {*tmp_path.glob("store/p002/objects/*")} - before:
        added.write_bytes(bytes(added.stat().st_size))
    other.apply(1_000)
    assert other.restored() == 1_000
    assert "older than the local folder" in caplog.text
    assert made("empty").restored() == 10


def test_a_checkpoint_of_another_topic_is_nobodys(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    one = made("one", topic="staging.events")
    one.apply(3 * FAR_BEHIND)
    one.keep()
    assert made("other").restored() == -1
    assert "give each topic its own --checkpoint-to" in caplog.text


def test_checkpoint_under_another_key_is_not_taken(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    one, other = (
        made(name, at_rest=AtRest(LocalMasterKey(bytes([count] * 32)))) for name, count in (("a", 1), ("b", 2))
    )
    one.apply(3 * FAR_BEHIND)
    one.keep()
    other.apply(6)
    assert other.restored() == 6
    assert "partition 2 was not restored from a checkpoint" in caplog.text
    assert made("c", at_rest=AtRest(LocalMasterKey(bytes([1] * 32)))).restored() == 3 * FAR_BEHIND


def test_a_checkpoint_says_no_more_than_it_holds(made: Made) -> None:
    one = made("one")
    one.apply(5)
    one.stage(6)
    one.keep()
    newest = one.store.newest(2)
    assert newest is not None
    assert newest.about.offset == 5


@pytest.mark.parametrize(
    ("differs", "taken"),
    [({}, True), ({"state_format": keys.FORMAT_VERSION + 1}, False), ({"fingerprint": {}}, False)],
    ids=["ours", "another format", "other settings"],
)
def test_readable_checkpoint_alone_is_taken(made: Made, tmp_path: Path, differs: dict[str, Any], taken: bool) -> None:
    one, other = made("one"), made("other")
    one.apply(3 * FAR_BEHIND)
    one.keep()
    manifest = one.store.fetch_newest(2, tmp_path / "copy")
    assert manifest is not None
    shutil.rmtree(tmp_path / "store" / "p002")
    one.store.save(2, tmp_path / "copy", replace(manifest.about, **differs))
    assert other.restored() == (3 * FAR_BEHIND if taken else -1)
    assert not [*(tmp_path / "other").glob("*arriv*")]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC], ids=os.strerror)
def test_checkpoint_that_cannot_be_written_is_kept_later(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    one = made("one")
    one.apply(5)
    with monkeypatch.context() as patch:
        patch.setattr("recallflow.connectors.checkpoints.objects.open_private", fail)
        one.keep()
    assert os.strerror(number) in caplog.text
    one.keep()
    assert one.checkpoints.results == {"failed": 1, "kept": 1}


def test_missing_store_fails_one_checkpoint(made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, store = made("one"), tmp_path / "store"
    one.apply(5)
    store.rename(tmp_path / "away")
    one.keep()
    assert one.restored() == 5
    assert [record.levelname for record in caplog.records].count("WARNING") == 2  # of keeping and of restoring
    (tmp_path / "away").rename(store)
    one.keep()
    assert one.checkpoints.results == {"failed": 1, "kept": 1}


def test_full_disk_of_the_state_fails_only_the_checkpoint(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one = made("one")
    one.apply(5)
    monkeypatch.setattr("tempfile.TemporaryDirectory", fail)
    one.keep()
    assert one.checkpoints.results == {"failed": 1}


def test_one_at_a_time_restores_a_partition(made: Made) -> None:
    one, other = made("one"), made("other")
    one.apply(7)
    one.keep()
    first, second = threading.Event(), threading.Event()
    asked = list[str]()

    def slow() -> bool:
        first.set()
        second.wait(0.2)  # never set while the first restores
        asked.append("first")
        return True

    def late() -> bool:
        second.set()
        asked.append("second")
        return False

    threads = [threading.Thread(target=other.checkpoints.restore, args=(2, slow))]
    threads[0].start()
    first.wait()
    threads.append(threading.Thread(target=other.checkpoints.restore, args=(2, late)))
    threads[1].start()
    for thread in threads:
        thread.join()
    assert asked == ["first", "second"]
    assert other.restored(wanted=False) == 7


def test_added_partition_has_a_folder(made: Made) -> None:
    one, other, added = made("one"), made("other"), SETTINGS.partitions + 1
    for kept, offset in ((one, 10), (other, -1)):
        if offset >= 0:
            kept.directory.partition(added).stage({b"k": b"v"}, Position(TOPIC, added, offset))
            kept.directory.partition(added).commit()
            kept.checkpoints._keep(added)
        kept.checkpoints.restore(added, lambda: True)
        assert kept.directory.partition(added).applied == {f"{TOPIC}:{added}": 10}
