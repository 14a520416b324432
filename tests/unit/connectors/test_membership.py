"""What a member of a group may send of, and when it gives up what: with a clock that is set by hand, and a consumer
that calls back when the test says so."""

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from recallflow.background import Patience
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import membership as module
from recallflow.connectors.kafka.group import Holder
from recallflow.connectors.kafka.group_consumer import Committed
from recallflow.connectors.kafka.membership import Membership
from recallflow.errors import DeploymentLost, MembershipLost, SinkError, SourceError, UsageError
from tests.unit.connectors.clock import Clock

SESSION_S = 45.0
GIVE_UP_S = 30.0
SHARED: dict[str, object] = {"gap": 20.0, "embedder": "hash"}


def parts(numbers: Collection[int]) -> list[TopicPartition]:
    return [TopicPartition("memory", number) for number in numbers]


class FakeConsumer:
    """The group's coordinator, and one member's consumer."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], TopicPartition] = {}
        self.commits: list[list[TopicPartition]] = []
        self.events: list[Callable[[], object]] = []  # what the next polls serve
        self.assigned: set[int] = set()
        self.member = "member-1"
        self.failing: KafkaError | None = None  # of commits
        self.unknown: set[tuple[str, int]] = set()
        self.closed = False
        self.subscriptions = 0

    def __call__(self, options: dict[str, object]) -> "FakeConsumer":
        self.options = options
        return self

    def subscribe(self, _: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._back = on_assign, on_revoke, on_lost
        self.subscriptions += 1

    def give(self, *partitions: int) -> None:
        self._back[0](self, parts(partitions))

    def take(self, *partitions: int) -> None:
        self._back[1](self, parts(partitions))

    def lose(self, *partitions: int) -> None:
        self._back[2](self, parts(partitions))

    def unsubscribe(self) -> None:
        self.assigned.clear()

    def incremental_assign(self, given: list[TopicPartition]) -> None:
        self.assigned |= {part.partition for part in given}

    def incremental_unassign(self, given: list[TopicPartition]) -> None:
        self.assigned -= {part.partition for part in given}

    def assign(self, given: list[TopicPartition]) -> None:
        assert given == []

    def pause(self, given: list[TopicPartition]) -> None:
        assert {part.partition for part in given} <= self.assigned

    def memberid(self) -> str:
        return self.member

    def poll(self, _: float) -> None:
        if self.events:
            self.events.pop(0)()

    def committed(self, given: list[TopicPartition], timeout: float) -> list[TopicPartition]:  # noqa: ARG002
        return [self.held.get((part.topic, part.partition), part) for part in given]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[Any]:
        assert not asynchronous
        self.commits.append(offsets)
        if not offsets:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))
        if self.failing is not None:
            raise KafkaException(self.failing)
        answers = []
        for one in offsets:
            known = (one.topic, one.partition) not in self.unknown
            if known:
                self.held[one.topic, one.partition] = one
            error = None if known else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            answers.append(type("Answer", (), {"partition": one.partition, "error": error}))
        return answers

    def close(self) -> None:
        self.closed = True


class Flow:
    """Gives up at once, unless `through` is taken from it."""

    def __init__(self) -> None:
        self.gained: dict[int, str | None] = {}
        self.given: set[int] = set()
        self.through = threading.Event()
        self.through.set()
        self.began = threading.Event()

    def gain(self, places: dict[int, str | None]) -> None:
        self.gained |= places

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        self.began.set()
        assert self.through.wait(GIVE_UP_S)
        self.given |= set(partitions)
        return {partition: Committed(8, 9, "last") for partition in partitions}


@pytest.fixture
def consumer() -> FakeConsumer:
    return FakeConsumer()


@pytest.fixture
def flow() -> Flow:
    return Flow()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(consumer: FakeConsumer, flow: Flow, clock: Clock, tmp_path: Path) -> Callable[..., Membership]:
    def new(*partitions: int, **chosen: Any) -> Membership:
        """A member that has entered, and was assigned partitions."""
        options = KafkaOptions("nowhere:9092")
        usual: dict[str, Any] = {"clock_s": clock, "new_consumer": consumer, "is_rebalancing": lambda: True}
        chosen = usual | chosen
        assignee, is_new = chosen.pop("assignee", flow), chosen.pop("is_new", True)
        made = Membership(options, "d", "memory", "queries", assignee, tmp_path, SESSION_S, **chosen)
        made.enter(is_new)
        chosen["new_consumer"].events.append(lambda: chosen["new_consumer"].give(*partitions))
        made.step()
        return made

    return new


@pytest.fixture
def on_its_thread() -> Iterator[Callable[[Membership], threading.Thread]]:
    """One more step, where it does not come to its end before something else happens."""
    threads: list[tuple[Membership, threading.Thread]] = []

    def step(member: Membership) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(SourceError):  # `failure` tells it
                member.step()

        threads.append((member, threading.Thread(target=run)))
        threads[-1][1].start()
        return threads[-1][1]

    yield step
    for member, thread in threads:
        member.close()
        thread.join(GIVE_UP_S)
        assert not thread.is_alive()


def may_send(member: Membership, clock: Clock) -> bool:
    """Whether `check` returns without waiting."""
    try:
        member.check(lambda: Patience(0.0, threading.Event(), clock))
    except SinkError:
        return False
    return True


def until(true: Callable[[], bool]) -> None:
    waiting = Patience(GIVE_UP_S)
    while not true():
        assert not waiting.ended()


def note(consumer: FakeConsumer, partition: int) -> Holder:
    found = Holder.parse(consumer.held["queries", partition].metadata)
    assert found is not None
    return found


def test_accepted_newest_offsets_are_committed(make: Callable[..., Membership], consumer: FakeConsumer) -> None:
    member = make(0, 1)
    assert member.is_committed([0, 1])
    consumer.failing = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    member.commit({1: Committed(5, 6, "so far")})
    for _ in range(2):
        assert (member.is_committed([0]), member.is_committed([0, 1])) == (True, False)
        member.step()
    consumer.failing = None
    member.step()
    assert member.is_committed([0, 1])
    member.commit({1: Committed(6, 7, "further")})
    assert not member.is_committed([1])


def test_partitions_are_renewed_in_turn(make: Callable[..., Membership], consumer: FakeConsumer, clock: Clock) -> None:
    member = make(0, 1, 2)
    consumer.commits.clear()
    for _ in range(6):
        clock.now_s += 1.1
        member.step()
        member.step()
    assert [[one.partition for one in commit] for commit in consumer.commits] == [[1], [2], [0], [1], [2], [0]]


def test_revoked_partition_works_until_next_rebalance_has_begun(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    on_its_thread: Callable[[Membership], threading.Thread],
) -> None:
    begun = threading.Event()
    member = make(0, 1, is_rebalancing=begun.is_set)
    consumer.events.append(lambda: consumer.take(1))
    thread = on_its_thread(member)
    for number in range(5):
        member.commit({1: Committed(10 + number, 20, "meanwhile")})
        wanted = {"queries": 20, "memory": 10 + number}
        until(lambda: all((at := consumer.held.get((topic, 1))) and at.offset == end for topic, end in wanted.items()))  # noqa: B023
    assert not flow.began.is_set()
    assert member.partitions == {0, 1}
    begun.set()
    thread.join(GIVE_UP_S)
    assert flow.given == {1}
    assert member.partitions == {0}


def test_revoked_partition_is_released_when_no_rebalance_begins(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    clock: Clock,
    on_its_thread: Callable[[Membership], threading.Thread],
) -> None:
    member = make(0, 1, is_rebalancing=lambda: False)
    consumer.events.append(lambda: consumer.take(1))
    thread = on_its_thread(member)
    for _ in range(45):
        assert not flow.began.is_set()
        clock.now_s += 1
        until(lambda: member.seconds_left() > SESSION_S - 1)
    clock.now_s += 3
    thread.join(GIVE_UP_S)
    assert flow.given == {1}


@pytest.mark.parametrize(("is_new", "joins"), [(True, 2), (False, 1)], ids=["new", "restarted static member"])
def test_new_member_begins_the_second_rebalance(
    make: Callable[..., Membership], consumer: FakeConsumer, is_new: bool, joins: int
) -> None:
    member = make(is_new=is_new)
    assert consumer.subscriptions == joins
    consumer.events.append(lambda: consumer.give(1))
    member.step()
    assert consumer.subscriptions == joins


def test_what_was_not_begun_with_moves_on_as_it_came(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    on_its_thread: Callable[[Membership], threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = make(0)
    monkeypatch.setattr(flow, "give_up", lambda _: {})
    consumer.events.append(lambda: consumer.give(1))
    consumer.held["memory", 1] = TopicPartition("memory", 1, 3, "told before")
    consumer.held["queries", 1] = TopicPartition("queries", 1, 4)
    member.step()
    consumer.events.append(lambda: consumer.take(1))
    on_its_thread(member).join(GIVE_UP_S)
    assert member.failure() is None
    assert note(consumer, 1).released
    assert consumer.held["queries", 1].offset == 4
    at = consumer.held["memory", 1]
    assert (at.offset, at.metadata) == (3, "told before")


def test_what_stays_is_renewed_while_something_is_given_up(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    clock: Clock,
    on_its_thread: Callable[[Membership], threading.Thread],
) -> None:
    member = make(0, 1)
    flow.through.clear()
    consumer.events.append(lambda: consumer.take(1))
    thread = on_its_thread(member)
    assert flow.began.wait(GIVE_UP_S)
    for _ in range(20):
        clock.now_s += 1.1
        until(lambda: member.seconds_left() > SESSION_S - 1)
    assert 1 in consumer.assigned
    flow.through.set()
    thread.join(GIVE_UP_S)
    assert consumer.assigned == {0}


def test_late_handover_ends_membership_and_keeps_partitions(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    clock: Clock,
    on_its_thread: Callable[[Membership], threading.Thread],
) -> None:
    member = make(0, 1)
    flow.through.clear()
    consumer.events.append(lambda: consumer.take(1))
    thread = on_its_thread(member)
    assert flow.began.wait(GIVE_UP_S)
    while member.failure() is None:
        clock.now_s += 1
        until(lambda: member.seconds_left() > SESSION_S - 1 or member.failure() is not None)
    with pytest.raises(MembershipLost, match="was not through within 45 s"):
        may_send(member, clock)
    assert not member.held
    assert consumer.assigned == {0, 1}
    member.close()
    thread.join(GIVE_UP_S)
    flow.through.set()
    assert consumer.assigned == {0}


def test_who_was_replaced_under_its_name_does_not_come_back(
    make: Callable[..., Membership], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "static_members", lambda *_: {"a": "member-2"})
    member = make(0, instance_id="a")
    clock.now_s += SESSION_S + 1
    with pytest.raises(DeploymentLost, match="another process has joined deployment d as a"):
        member.step()


def test_commit_into_an_empty_group_renews_nothing(
    make: Callable[..., Membership], consumer: FakeConsumer, clock: Clock
) -> None:
    member = make(0)
    consumer.member = ""
    clock.now_s += 10
    member.step()
    assert not may_send(member, clock)


def test_a_refusal_is_no_rebalance(make: Callable[..., Membership], consumer: FakeConsumer) -> None:
    member = make(0)
    consumer.failing = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    member.commit({0: Committed(1, 1, "x")})
    with pytest.raises(SourceError, match="consumer group cannot be used"):
        member.step()


def test_partition_missing_in_queries_delays_no_other(
    make: Callable[..., Membership], consumer: FakeConsumer, flow: Flow
) -> None:
    consumer.unknown = {("queries", 1)}
    member = make(0, 1)
    assert flow.gained.keys() == {0}
    consumer.unknown = set()
    member.step()
    assert flow.gained.keys() == {0, 1}


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, True),
        ({"released": True}, False),
        ({"instance": "b"}, False),
        ({"directory_id": "ours"}, False),
        ({"directory_id": ""}, True),
    ],
    ids=["at work", "handed over", "of another name", "of our directory", "of no directory"],
)
def test_another_process_of_our_name_is_waited_for(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    flow: Flow,
    clock: Clock,
    tmp_path: Path,
    fields: dict[str, Any],
    waits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fields.get("directory_id") == "":  # where the kernel names none, ours has no name either
        monkeypatch.setattr("recallflow.connectors.kafka.group.directory_id", lambda _: "")
    here = Holder.here(tmp_path, "a")
    other = {"directory_id": "another"} | fields
    if fields.get("directory_id") == "ours":
        other["directory_id"] = here.directory_id
    consumer.held["queries", 0] = TopicPartition("queries", 0, 3, replace(here, **other).encode())
    member = make(0, instance_id="a")
    assert (0 not in flow.gained) == waits
    clock.now_s += SESSION_S - 1
    member.step()
    assert (0 not in flow.gained) == waits
    clock.now_s += 2
    if waits:
        member.step()
        assert 0 in flow.gained


def test_partition_of_previous_static_member_moves_late(
    make: Callable[..., Membership],
    consumer: FakeConsumer,
    clock: Clock,
    tmp_path: Path,
    on_its_thread: Callable[[Membership], threading.Thread],
) -> None:
    other = replace(Holder.here(tmp_path, "a"), directory_id="another")
    consumer.held["queries", 0] = TopicPartition("queries", 0, 3, other.encode())
    member = make(0, 1, instance_id="a")
    consumer.events.append(lambda: consumer.take(0))
    thread = on_its_thread(member)
    for _ in range(40):
        clock.now_s += 1.1
        until(lambda: member.seconds_left() > SESSION_S - 1)
    assert consumer.assigned == {0, 1}
    clock.now_s += 2
    thread.join(GIVE_UP_S)
    assert consumer.assigned == {1}


def test_partitions_of_ones_own_are_those_whatever_the_group_assigns(
    make: Callable[..., Membership], consumer: FakeConsumer, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[frozenset[int]] = []
    monkeypatch.setattr(module, "check_alone", lambda _, __, own: looked.append(own))
    member = make(0, 1, own=frozenset({2, 3}))
    consumer.unassign = lambda: None  # type: ignore[attr-defined]
    consumer.events += [lambda: consumer.take(0, 1), lambda: consumer.give(1)]
    member.step()
    member.step()
    assert flow.gained.keys() == member.partitions == {2, 3}
    assert not flow.given
    assert looked == [{2, 3}]
    assert consumer.options["group.instance.id"] == "own-2-3"
    assert consumer.options["partition.assignment.strategy"] == "range"


def test_partitions_of_ones_own_are_a_name_already(make: Callable[..., Membership]) -> None:
    with pytest.raises(UsageError, match="give an instance id or partitions"):
        make(0, own=frozenset({0}), instance_id="a")


def committed_by(tmp_path: Path, partition: int, settings: dict[str, object]) -> TopicPartition:
    other = Holder.here(tmp_path, settings=settings)
    return TopicPartition("queries", partition, 3, replace(other, released=True).encode())


@pytest.mark.parametrize("partition", [0, 2], ids=["of the first partition", "of a partition that comes later"])
def test_other_settings_in_a_note_refuse_the_member(
    make: Callable[..., Membership], consumer: FakeConsumer, flow: Flow, tmp_path: Path, partition: int
) -> None:
    consumer.held["queries", partition] = committed_by(tmp_path, partition, {"gap": 30.0, "embedder": "hash"})
    consumer.held["queries", 0] = consumer.held.get(("queries", 0)) or committed_by(tmp_path, 0, SHARED)
    member = make(settings=SHARED)
    consumer.events.append(lambda: consumer.give(partition or 1))
    with pytest.raises(UsageError, match=re.escape("other settings: gap is 30.0 there and 20.0 here. ")):
        member.step()
    assert flow.gained == {}
    assert not member.held


def test_settings_of_a_new_deployment_come_from_the_first_partition(
    make: Callable[..., Membership], consumer: FakeConsumer, flow: Flow, tmp_path: Path
) -> None:
    member = make(1, settings=SHARED)
    member.step()
    assert (flow.gained, consumer.commits) == ({}, [])
    consumer.held["queries", 0] = committed_by(tmp_path, 0, SHARED)
    member.step()
    assert flow.gained.keys() == {1}
    assert note(consumer, 1).settings == SHARED


def test_one_of_two_different_settings_begins(
    make: Callable[..., Membership], consumer: FakeConsumer, flow: Flow
) -> None:
    second_flow, second_consumer = Flow(), FakeConsumer()
    second_consumer.held = consumer.held
    second = make(1, settings={"gap": 30.0, "embedder": "hash"}, new_consumer=second_consumer, assignee=second_flow)
    make(0, settings=SHARED)
    assert flow.gained.keys() == {0}
    with pytest.raises(UsageError):
        second.step()
    assert second_flow.gained == {}
