"""Members of a deployment's consumer group, before and after they join."""

import threading
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


def other(name: str, renewals: int, **fields: object) -> Holder:
    return replace(Holder("host", "there", "directory", 1, "", run=name, renewals=renewals), **fields)  # type: ignore[arg-type]


A, B = other("a", 3), other("b", 7)
WAITS: dict[str, tuple[list[list[Holder]], float]] = {
    "nobody": ([[]], 0),
    "released": ([[replace(A, released=True)]], 0),
    "active members": ([[A, B], [other("a", 4), other("b", 8)]], 2.5),
    "one silent until its partitions move": ([*([other("a", n), B] for n in range(5)), [other("a", 6)]], 12.5),
    "one silent for a session": ([[other("a", n), B] for n in range(100)], 47.5),
    "all silent": ([[A, B]], 2.5),
    "a run that renews its partitions in turn": ([[A, other("a", 4)], [A, other("a", 5)]], 2.5),
}


def wait(me: Holder, *looks: list[Holder]) -> float:
    """Return how long a newcomer waits, in seconds. `looks`: what members have committed at each look."""
    pauses, left = Pauses(), [*looks]
    await_lively(lambda: left.pop(0) if left[1:] else left[0], me, Lease(SESSION_S, lambda: pauses.now_s), pauses)
    return pauses.now_s


@pytest.mark.parametrize(("looks", "seconds"), WAITS.values(), ids=WAITS)
def test_newcomer_waits_for_silent_members(tmp_path: Path, looks: list[list[Holder]], seconds: float) -> None:
    assert wait(Holder.here(tmp_path), *looks) == seconds


def test_member_of_the_same_directory_is_not_waited_for(tmp_path: Path) -> None:
    me = Holder.here(tmp_path)
    assert wait(me, [replace(A, directory_id=me.directory_id)]) == 0
