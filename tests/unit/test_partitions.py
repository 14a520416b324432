"""Partitions: of a record, released, restored and on standby."""

import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from confluent_kafka import TopicPartition, cimpl
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.flows.partition_copies import (
    FAR_BEHIND,
    NEVER,
    RELEASED_MS,
    Checkpoints,
    ReleasedPartitions,
    Standby,
    standby_partitions,
    without,
)
from recallflow.flows.router import OwningPartitions
from recallflow.flows.settings import Settings
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.events import Misrouted, Refused, by_partition, decode, partition_by_owner
from recallflow.owner import Owner, partition_of, state_partition
from recallflow.records import MOVED_HEADER, Position, Record
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.folders import numbers_in, partition_folder, released_since_ms, unmark_released
from tests.unit.operators.harness import HASHING
from tests.unit.state.member import PARTITIONS, Member, told


def librdkafka() -> Callable[[bytes, int], int]:
    """The partitioner `murmur2` of the librdkafka that producers here are made with."""
    found = ctypes.CDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
    found.restype = ctypes.c_int32
    found.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, *[ctypes.c_void_p] * 2]
    return lambda key, partitions: int(found(None, key, len(key), partitions, None, None))


@given(st.binary(max_size=64), st.integers(1, 1_000))
def test_a_key_is_where_librdkafka_puts_it(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == librdkafka()(key, partitions)


@given(st.text(min_size=1), st.text(min_size=1), st.text(), st.integers(1, 64))
def test_an_owner_is_in_the_partition_of_its_records(tenant: str, user: str, environment: str, partitions: int) -> None:
    key = Owner(tenant, environment, user).record_key
    assert state_partition(tenant, user, partitions) == librdkafka()(key, partitions)


@given(st.none() | st.binary(max_size=64), st.integers(1, 64))
def test_a_refused_record_goes_where_its_key_says(key: bytes | None, partitions: int) -> None:
    record = Record(Position("memory.events", 0, 7), b"{", 0, key)
    refused = Refused(record, InvalidRecord("invalid_json", [FieldProblem("", "is no JSON")]), "decode")
    ((_, batch),) = by_partition([refused], partial(partition_by_owner, partitions=partitions))
    assert batch.partition == librdkafka()(key or b"", partitions)


SIXTEEN = 16


def record(tenant: str, user: str, partition: int, key: bytes | None) -> Record:
    value = f'{{"type":"message","tenant_id":"{tenant}","user_id":"{user}","content":"tea"}}'.encode()
    return Record(Position("memory.events", partition, 7), value, 0, key)


@pytest.mark.parametrize(
    ("key", "shift", "reason"),
    [(b"acme/ann", 0, None), (None, 0, None), (b"x", 0, None), (None, 1, "no_key"), (b"x", 1, "other_key"),
     (b"acme/ann", 1, "other_partition")],
)  # fmt: skip
def test_a_record_is_misplaced_where_its_owner_is_not(key: bytes | None, shift: int, reason: str | None) -> None:
    homes, home = OwningPartitions(SIXTEEN), state_partition("acme", "ann", SIXTEEN)
    item = homes.judge(decode(record("acme", "ann", (home + shift) % SIXTEEN, key)))
    assert isinstance(item, Misrouted) == (reason is not None)
    assert homes.counts == ({} if reason is None else {reason: 1})
    if isinstance(item, Misrouted):
        assert (item.owning_partition, item.owner.user_id) == (home, "ann")


def test_first_misrouted_record_alone_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    homes, home = OwningPartitions(SIXTEEN), state_partition("acme", "ann", SIXTEEN)
    lost = record("acme", "ann", (home + 1) % SIXTEEN, None)
    homes.judge(decode(lost._replace(silent=True)))
    assert (caplog.messages, homes.counts) == ([], {})
    for _ in range(3):
        homes.judge(decode(lost))
    assert (len(caplog.messages), homes.counts["no_key"]) == (1, 3)


def test_unreadable_record_is_refused_in_its_partition() -> None:
    broken = Record(Position("memory.events", 3, 0), b"{", 0, b"acme/ann")
    assert not isinstance(OwningPartitions(SIXTEEN).judge(decode(broken)), Misrouted)


@given(st.binary(max_size=60), st.integers(0, 20))
def test_origin_is_another_partition_or_unknown(said: bytes, partition: int) -> None:
    one = Record(Position("memory.events", partition, 7), b"", 0, headers=((MOVED_HEADER, said),))
    assert one.moved_from is None or (one.moved_from.topic, one.moved_from.partition) != one.position[:2]
    assert one.original_position == (one.moved_from or one.position)


BEGAN_MS = 1_000
EVERY = range(PARTITIONS)


class Life:
    """A member that once had every partition and has none now, unless a test says otherwise."""

    def __init__(self, path: Path, member: Member) -> None:
        self.path, self.now_ms = path, BEGAN_MS
        self.others, self.ours, self.warm = frozenset(EVERY), frozenset[int](), frozenset[int]()
        self.is_recoverable, self.stopping = True, threading.Event()
        self._elsewhere = ReleasedPartitions(
            member.directory,
            others=lambda: self.others,
            ours=lambda: self.ours,
            standbys=lambda: self.warm,
            is_recoverable=lambda _: self.is_recoverable,
            stopping=self.stopping,
            clock_ms=lambda: self.now_ms,
        )

    def look(self, times: int = 1, *, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        for _ in range(times):
            self._elsewhere.check()

    def marked(self) -> dict[int, int]:
        found = {number: released_since_ms(partition_folder(self.path, number)) for number in numbers_in(self.path)}
        return {number: since_ms for number, since_ms in found.items() if since_ms is not None}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told(0, 1))
    with Member.on(tmp_path / "s") as member:
        yield Life(tmp_path / "s", member)


def test_folder_is_marked_at_the_second_look(life: Life) -> None:
    life.others, life.ours = frozenset({1, 2}), frozenset({3})
    life.look()
    assert life.marked() == {}
    life.others = frozenset({2, 3})  # 1 is on its way back, 3 is about to be ours
    life.look()
    assert life.marked() == {2: BEGAN_MS}
    life.look(after_ms=5)
    assert life.marked() == {2: BEGAN_MS}


def test_checks_end_when_the_member_stops(life: Life) -> None:
    life.look()
    life.stopping.set()
    life.look(2)
    assert life.marked() == {}


def test_partition_regained_while_marked_is_kept(life: Life) -> None:
    life.others = frozenset({1})
    life._elsewhere.ours = lambda: frozenset(life.marked())
    life.look(2)
    assert life.marked() == {}


def test_a_folder_goes_after_a_day(life: Life) -> None:
    life.look(2)
    life.look(after_ms=RELEASED_MS - 1)
    assert numbers_in(life.path) == [*EVERY]
    unmark_released(partition_folder(life.path, 1))  # it was ours in between
    life.look(after_ms=1)
    assert (numbers_in(life.path), life.marked()) == ([1], {1: BEGAN_MS + RELEASED_MS})


def test_folder_with_expired_log_records_is_kept(life: Life) -> None:
    life.is_recoverable = False
    life.look(2)
    life.look(after_ms=RELEASED_MS)
    assert numbers_in(life.path) == [*EVERY]


def test_folder_of_a_dropped_standby_is_kept_a_day(life: Life) -> None:
    life.warm = frozenset({2})
    life.look(2)
    life.look(after_ms=RELEASED_MS)
    assert (numbers_in(life.path), life.marked()) == ([2], {2: BEGAN_MS + RELEASED_MS})
    life.warm = frozenset()
    life.look(after_ms=RELEASED_MS - 1)
    assert numbers_in(life.path) == [2]
    life.look(after_ms=1)
    assert numbers_in(life.path) == []


TOPIC = "memory.events"
SETTINGS = Settings(partitions=4)
Made = Callable[..., "Kept"]


class Kept:
    def __init__(self, directory: StateDirectory, store: Path, topic: str) -> None:
        self.directory, self._topic = directory, topic
        self.store = CheckpointStore.open(store.as_uri(), patience_s=0, create=True)
        settings: Any = {"interval_s": 1, "generations": 3}
        self.checkpoints = Checkpoints(self.store, directory, topic, "d", **settings, open_partitions=frozenset)

    def apply(self, offset: int) -> None:
        self.stage(offset)
        self.directory.partition(2).commit()

    def stage(self, offset: int) -> None:
        self.directory.partition(2).stage({b"k": b"%d" % offset}, Position(self._topic, 2, offset))

    def keep(self) -> None:
        self.checkpoints._save(2)

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
    assert (other.restored(wanted=False), other.restored()) == (6, FAR_BEHIND + 7)
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
    assert (asked, other.restored(wanted=False)) == (["first", "second"], 7)


def test_added_partition_has_a_folder(made: Made) -> None:
    one, other, added = made("one"), made("other"), SETTINGS.partitions + 1
    for kept, offset in ((one, 10), (other, -1)):
        if offset >= 0:
            kept.directory.partition(added).stage({b"k": b"v"}, Position(TOPIC, added, offset))
            kept.directory.partition(added).commit()
            kept.checkpoints._save(added)
        kept.checkpoints.restore(added, lambda: True)
        assert kept.directory.partition(added).applied == {f"{TOPIC}:{added}": 10}


SHARES = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 4), min_size=1, max_size=6)
LOG_BEGINS, LOG_ENDS = 3, 90
OTHERS = 7  # a partition of another topic


@given(SHARES, st.integers(1, 3))
def test_partition_is_warm_at_enough_other_members(shares: dict[str, int], count: int) -> None:
    numbers = iter(range(100))
    assigned = {follower: frozenset(next(numbers) for _ in range(share)) for follower, share in shares.items()}
    warm = {follower: standby_partitions(follower, assigned, count) for follower in assigned}
    for follower, own in assigned.items():
        assert not warm[follower] & own
        for number in own:
            assert sum(number in found for found in warm.values()) == min(count, len(assigned) - 1)


def test_lost_partition_goes_to_the_least_loaded_member() -> None:
    shares = {"a": frozenset({3, 9}), "b": frozenset({1, 10, 2}), "c": frozenset({4})}
    assert without(shares, "b") == {"a": frozenset({3, 9, 2}), "c": frozenset({4, 10, 1})}
    assert standby_partitions("c", shares, 1) == {10, 1, 3, 9}
    assert standby_partitions("a", shares, 1) == {2, 4}
    assert standby_partitions("a", shares, 2) == {1, 2, 4, 10}  # where c is lost behind b
    assert without({"a": frozenset({3})}, "a") == {}


@pytest.mark.parametrize("me", [None, "another"])
def test_non_members_stand_by_for_no_partition(me: str | None) -> None:
    assert standby_partitions(me, {"a": frozenset({0}), "b": frozenset({1})}, 1) == frozenset()


class Follower:
    """The member `me` of a group, with a source that records its calls."""

    def __init__(self, **assigned: Iterable[int]) -> None:
        self.applied: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.source = Mock(spec=OwnedSource)
        self.has(owned=assigned["me"])
        self.restored: list[int] = []
        self.membership = Mock(spec=Membership, member_id="me", expected=frozenset())
        self.standby = Standby(
            KafkaOptions("nowhere:1"), "group", "log", Mock(path=Path("nowhere"), partition=self._partition),
            self.source, self.membership, 1, restore=self._restore,
        )  # fmt: skip
        self.group(**assigned)

    def has(self, *, owned: Iterable[int] = (), warm: Iterable[int] = ()) -> None:
        self.source.partitions.return_value, self.source.standbys.return_value = frozenset(owned), frozenset(warm)

    def group(self, **assigned: Iterable[int]) -> None:
        """Members with their partitions, as the coordinator describes them; each has another topic's as well."""
        members = [
            SimpleNamespace(
                member_id=name,
                assignment=SimpleNamespace(
                    topic_partitions=[
                        TopicPartition("other", OTHERS), *(TopicPartition("log", number) for number in has),
                    ]
                ),
            )
            for name, has in assigned.items()
        ]  # fmt: skip
        described = Mock()
        described.result.return_value.members = members
        self.standby._admin = Mock(describe_consumer_groups=Mock(return_value={"group": described}))

    def look(self) -> list[Any]:
        self.source.reset_mock(return_value=False)
        reader = Mock(spec=TopicReader, span=lambda *_: (LOG_BEGINS, LOG_ENDS))
        reader.consumer = Mock(committed=self._committed)
        self.standby._check(reader)
        return [one for one in self.source.mock_calls if one not in (call.partitions(), call.standbys())]

    def _restore(self, number: int, wanted: Callable[[], bool]) -> None:
        if wanted():
            self.restored.append(number)

    def _partition(self, number: int) -> Any:
        return SimpleNamespace(applied={f"log:{number}": self.applied[number]} if number in self.applied else {})

    def _committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:  # noqa: ARG002
        return [TopicPartition("log", one.partition, self.committed.get(one.partition, -1001)) for one in asked]


def test_warm_partition_follows_its_owner() -> None:
    follower = Follower(a=(1, 2), me=(0,))
    follower.applied, follower.committed = {1: 40}, {1: 50, OTHERS: 50}  # of 2 its owner has said nothing yet
    ((name, (number, lane), _),) = follower.look()
    assert (name, number, follower.restored) == ("add_standby", 1, [1])
    assert (lane.source, lane.next_offset, lane.stop_offset, lane.outputs_from) == ("log:1", 41, 50, NEVER)
    follower.has(owned=(0,), warm=(1,))
    follower.committed = {1: 60}
    assert follower.look() == [call.limit_standby(1, 60)]
    assert follower.restored == [1]  # never in the place of a folder that is open


def test_partition_of_another_standby_is_dropped() -> None:
    follower = Follower(n=(1,), a=(2,), me=(0,))  # of a and me, a's id is the first, and of me and n, mine
    follower.has(owned=(0,), warm=(1,))
    follower.committed, follower.applied = {1: 50, 2: 50}, {2: 49}
    assert [one[:2] for one in follower.look()[:1]] == [("drop_standby", (1,))]
    assert [one[0] for one in follower.look()] == ["drop_standby", "add_standby"]
    follower.has(owned=(0, 2))  # it is ours already, and the coordinator does not know yet
    assert follower.look() == []


def test_folder_of_an_expected_partition_is_left_alone() -> None:
    follower = Follower(a=(1,), me=(0,))
    follower.committed, follower.membership.expected = {1: 50}, frozenset({0, 1})
    follower.applied = {1: 40}
    follower.look()
    assert follower.restored == []


def test_log_with_a_gap_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower(a=(1,), me=(0,))
    follower.applied, follower.committed = {1: LOG_BEGINS - 2}, {1: 50}
    assert follower.look() == []
    assert caplog.messages == ["partition 1 has no standby copy here: its log starts only at offset 3"]
    follower.applied = {1: LOG_BEGINS - 1}
    assert [one[0] for one in follower.look()] == ["add_standby"]
