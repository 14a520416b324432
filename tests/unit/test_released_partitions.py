"""Deletion of folders whose partitions other members have, with a clock set by the test."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recallflow.flows.standby import KEPT_MS, ReleasedPartitions
from recallflow.state.folders import elsewhere_since_ms, numbers_in, partition_folder, unmark_elsewhere
from tests.unit.state.member import PARTITIONS, Member, told

BEGAN_MS = 1_000
EVERY = range(PARTITIONS)


class Life:
    """A member that once had every partition and has none now, unless a test says otherwise."""

    def __init__(self, path: Path, member: Member) -> None:
        self.path, self.now_ms = path, BEGAN_MS
        self.others, self.ours, self.warm = frozenset(EVERY), frozenset[int](), frozenset[int]()
        self.can_come_again, self.stopping = True, threading.Event()
        self._elsewhere = ReleasedPartitions(
            member.directory,
            others=lambda: self.others,
            ours=lambda: self.ours,
            warm=lambda: self.warm,
            can_come_again=lambda _: self.can_come_again,
            stopping=self.stopping,
            clock_ms=lambda: self.now_ms,
        )

    def look(self, times: int = 1, *, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        for _ in range(times):
            self._elsewhere.check()

    def marked(self) -> dict[int, int]:
        found = {number: elsewhere_since_ms(partition_folder(self.path, number)) for number in numbers_in(self.path)}
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
    life._elsewhere._ours = lambda: frozenset(life.marked())
    life.look(2)
    assert life.marked() == {}


def test_a_folder_goes_after_a_day(life: Life) -> None:
    life.look(2)
    life.look(after_ms=KEPT_MS - 1)
    assert numbers_in(life.path) == [*EVERY]
    unmark_elsewhere(partition_folder(life.path, 1))  # it was ours in between
    life.look(after_ms=1)
    assert numbers_in(life.path) == [1]
    assert life.marked() == {1: BEGAN_MS + KEPT_MS}


def test_folder_with_expired_log_records_is_kept(life: Life) -> None:
    life.can_come_again = False
    life.look(2)
    life.look(after_ms=KEPT_MS)
    assert numbers_in(life.path) == [*EVERY]


def test_warm_folder_is_kept_a_day_after_cooling(life: Life) -> None:
    life.warm = frozenset({2})
    life.look(2)
    life.look(after_ms=KEPT_MS)
    assert (numbers_in(life.path), life.marked()) == ([2], {2: BEGAN_MS + KEPT_MS})
    life.warm = frozenset()
    life.look(after_ms=KEPT_MS - 1)
    assert numbers_in(life.path) == [2]
    life.look(after_ms=1)
    assert numbers_in(life.path) == []
