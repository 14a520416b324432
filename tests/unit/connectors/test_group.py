"""Members of a deployment's consumer group, before and after they join."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recallflow.connectors.kafka.group import Holder, Lease, await_lively, name_of, overlapping

SESSION_S = 45.0


def test_a_name_is_one_that_a_broker_takes() -> None:
    assert name_of({0, 1, 2, 9}) == "own-0-2_9"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["own-0-3"], None),  # our own place
        (["own-4-7_9", "own-12"], None),
        (["own-4-7", "own-2_3-5"], "2,3-5"),
        (["engine", "own-", "own-a", "pod-0-3"], None),
        ([], None),
    ],
)
def test_who_owns_what_is_ours_is_found(names: list[str], found: str | None) -> None:
    assert overlapping({0, 1, 2, 3}, names) == found


class Pauses(threading.Event):
    """Each wait takes its time on a clock of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        return self.is_set()


class Group:
    """What members have committed, look for look."""

    def __init__(self, *looks: list[Holder]) -> None:
        self.looks = [*looks]
        self.seen = 0

    def __call__(self) -> list[Holder]:
        self.seen += 1
        return self.looks[min(self.seen, len(self.looks)) - 1]


@pytest.fixture
def me(tmp_path: Path) -> Holder:
    return Holder.here(tmp_path)


@pytest.fixture
def wait(me: Holder) -> Callable[[Group], float]:
    """How long it waits, in seconds."""

    def begin(group: Group) -> float:
        pauses = Pauses()
        await_lively(group, me, Lease(SESSION_S, lambda: pauses.now_s), pauses)
        return pauses.now_s

    return begin


def other(name: str, renewals: int, **fields: object) -> Holder:
    return replace(Holder("host", "there", "directory", 1, "", run=name, renewals=renewals), **fields)  # type: ignore[arg-type]


def test_nobody_is_waited_for_where_nobody_is(wait: Callable[[Group], float]) -> None:
    assert wait(Group([])) == 0
    assert wait(Group([other("a", 3, released=True)])) == 0


def test_who_is_at_work_lets_us_in(wait: Callable[[Group], float]) -> None:
    group = Group([other("a", 3), other("b", 7)], [other("a", 4), other("b", 8)])
    assert wait(group) == 2.5
    assert group.seen == 2


def test_silent_member_is_waited_for_until_its_partitions_move(wait: Callable[[Group], float]) -> None:
    silent = other("b", 7)
    group = Group(*([other("a", count), silent] for count in range(5)), [other("a", 6)])
    assert wait(group) == 12.5


def test_not_for_longer_than_a_session(wait: Callable[[Group], float]) -> None:
    group = Group(*([other("a", count), other("b", 7)] for count in range(100)))
    assert SESSION_S < wait(group) < SESSION_S + 10


def test_where_all_are_silent_nobody_is_disturbed(wait: Callable[[Group], float]) -> None:
    assert wait(Group([other("a", 3), other("b", 7)])) == 2.5


def test_ones_own_place_is_taken_at_once(wait: Callable[[Group], float], me: Holder) -> None:
    assert wait(Group([other("a", 3, directory_id=me.directory_id)])) == 0


def test_a_run_is_as_lively_as_its_last_word(wait: Callable[[Group], float]) -> None:
    """It renews its partitions one after the other."""
    assert wait(Group([other("a", 3), other("a", 4)], [other("a", 3), other("a", 5)])) == 2.5
