"""Which member stands by for another, and what its source reads."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.flows.standby import NEVER, Standby, warm_at, without

SHARES = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 4), min_size=1, max_size=6)
LOG_BEGINS, LOG_ENDS = 3, 90
OTHERS = 7  # a partition of another topic


@given(SHARES, st.integers(1, 3))
def test_partition_is_warm_at_enough_other_members(shares: dict[str, int], count: int) -> None:
    numbers = iter(range(100))
    assigned = {member: frozenset(next(numbers) for _ in range(share)) for member, share in shares.items()}
    warm = {member: warm_at(member, assigned, count) for member in assigned}
    for member, own in assigned.items():
        assert not warm[member] & own
        for number in own:
            assert sum(number in found for found in warm.values()) == min(count, len(assigned) - 1)


def test_lost_partition_goes_to_the_least_loaded_member() -> None:
    shares = {"a": frozenset({3, 9}), "b": frozenset({1, 10, 2}), "c": frozenset({4})}
    assert without(shares, "b") == {"a": frozenset({3, 9, 2}), "c": frozenset({4, 10, 1})}
    assert warm_at("c", shares, 1) == {10, 1, 3, 9}
    assert warm_at("a", shares, 1) == {2, 4}
    assert warm_at("a", shares, 2) == {1, 2, 4, 10}  # where c is lost behind b
    assert without({"a": frozenset({3})}, "a") == {}


@pytest.mark.parametrize("me", [None, "another"])
def test_non_members_stand_by_for_no_partition(me: str | None) -> None:
    assert warm_at(me, {"a": frozenset({0}), "b": frozenset({1})}, 1) == frozenset()


class Member:
    """The member `me` of a group, with a source that records its calls."""

    def __init__(self, **assigned: Iterable[int]) -> None:
        self.applied: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.source = Mock(spec=OwnedSource)
        self.has(owned=assigned["me"])
        self.restored: list[int] = []
        self.expected = frozenset[int]()
        self.standby = Standby(
            KafkaOptions("nowhere:1"),
            "group",
            "log",
            Mock(path=Path("nowhere"), partition=self._partition),
            self.source,
            lambda: "me",
            1,
            restore=self._restore,
            expected=lambda: self.expected,
        )
        self.group(**assigned)

    def has(self, *, owned: Iterable[int] = (), warm: Iterable[int] = ()) -> None:
        self.source.partitions.return_value, self.source.kept_warm.return_value = frozenset(owned), frozenset(warm)

    def group(self, **assigned: Iterable[int]) -> None:
        """Members with their partitions, as the coordinator describes them; each has another topic's as well."""
        members = [
            SimpleNamespace(
                member_id=name,
                assignment=SimpleNamespace(
                    topic_partitions=[
                        TopicPartition("other", OTHERS),
                        *(TopicPartition("log", number) for number in has),
                    ]
                ),
            )
            for name, has in assigned.items()
        ]
        described = Mock()
        described.result.return_value.members = members
        self.standby._shares._admin = Mock(describe_consumer_groups=Mock(return_value={"group": described}))

    def look(self) -> list[Any]:
        self.source.reset_mock(return_value=False)
        reader = Mock(spec=TopicReader, span=lambda *_: (LOG_BEGINS, LOG_ENDS))
        reader.consumer = Mock(committed=self._committed)
        self.standby._check(reader)
        return [one for one in self.source.mock_calls if one not in (call.partitions(), call.kept_warm())]

    def _restore(self, number: int, wanted: Callable[[], bool]) -> None:
        if wanted():
            self.restored.append(number)

    def _partition(self, number: int) -> Any:
        return SimpleNamespace(applied={f"log:{number}": self.applied[number]} if number in self.applied else {})

    def _committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:  # noqa: ARG002
        return [TopicPartition("log", one.partition, self.committed.get(one.partition, -1001)) for one in asked]


def test_warm_partition_follows_its_owner() -> None:
    member = Member(a=(1, 2), me=(0,))
    member.applied, member.committed = {1: 40}, {1: 50, OTHERS: 50}  # of 2 its owner has said nothing yet
    ((name, (number, lane), _),) = member.look()
    assert (name, number, member.restored) == ("warm", 1, [1])
    assert (lane.source, lane.next_offset, lane.limit, lane.answered_from) == ("log:1", 41, 50, NEVER)
    member.has(owned=(0,), warm=(1,))
    member.committed = {1: 60}
    assert member.look() == [call.allow(1, 60)]
    assert member.restored == [1]  # never in the place of a folder that is open


def test_partition_of_another_standby_is_cooled() -> None:
    member = Member(n=(1,), a=(2,), me=(0,))  # of a and me, a's id is the first, and of me and n, mine
    member.has(owned=(0,), warm=(1,))
    member.committed, member.applied = {1: 50, 2: 50}, {2: 49}
    assert [one[:2] for one in member.look()[:1]] == [("cool", (1,))]
    assert [one[0] for one in member.look()] == ["cool", "warm"]
    member.has(owned=(0, 2))  # it is ours already, and the coordinator does not know yet
    assert member.look() == []


def test_folder_of_an_expected_partition_is_left_alone() -> None:
    member = Member(a=(1,), me=(0,))
    member.committed, member.expected = {1: 50}, frozenset({0, 1})
    member.applied = {1: 40}
    member.look()
    assert member.restored == []


def test_log_with_a_gap_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(a=(1,), me=(0,))
    member.applied, member.committed = {1: LOG_BEGINS - 2}, {1: 50}
    assert member.look() == []
    assert caplog.messages == ["partition 1 has no standby copy here: its log starts only at offset 3"]
    member.applied = {1: LOG_BEGINS - 1}
    assert [one[0] for one in member.look()] == ["warm"]
