"""A member of a group: its partitions and sends, its places, and how far it has to catch up."""

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.cluster import CatchUp
from recallflow.connectors.kafka.group_consumer import Committed
from recallflow.connectors.kafka.group_members import overlapping
from recallflow.connectors.kafka.lease import Holder, Lease, await_active
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.partition import METADATA_CHARACTERS_MAX, LogProgress, PartitionProgress
from recallflow.errors import DeploymentLost, MembershipLost, SinkError, SourceError, UsageError
from recallflow.kafka_options import KafkaOptions
from recallflow.process import TimeLimit
from tests.unit.connectors.clock import Clock

SESSION_S = 45.0
GIVE_UP_S = 30.0
SHARED: dict[str, object] = {"gap": 20.0, "embedder": "hash"}


def parts(numbers: Collection[int]) -> list[TopicPartition]:
    return [TopicPartition("memory", number) for number in numbers]


class FakeConsumer:
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

    def gain(self, texts: dict[int, str | None]) -> None:
        self.gained |= texts

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        self.began.set()
        assert self.through.wait(GIVE_UP_S)
        self.given |= set(partitions)
        return {partition: Committed(8, 9, "last") for partition in partitions}


class Group:
    """A group with one member, whose clock and coordinator a test moves."""

    def __init__(self, path: Path) -> None:
        self.consumer, self.flow, self.clock, self._path = FakeConsumer(), Flow(), Clock(), path
        self._threads: list[tuple[Membership, threading.Thread]] = []

    def make(self, *partitions: int, **chosen: Any) -> Membership:
        usual: dict[str, Any] = {"clock_s": self.clock, "new_consumer": self.consumer, "is_rebalancing": lambda: True}
        chosen = usual | chosen
        assignee, is_new = chosen.pop("assignee", self.flow), chosen.pop("is_new", True)
        options = KafkaOptions("nowhere:9092")
        made = Membership(options, "d", ("memory", "queries"), assignee, self._path, SESSION_S, **chosen)
        made._consumer.join(is_new)
        chosen["new_consumer"].events.append(lambda: chosen["new_consumer"].give(*partitions))
        made.step()
        return made

    def begin_revocation(self, member: Membership, partition: int) -> threading.Thread:
        """Begin a step in which a partition is revoked, and which ends when something else has happened."""
        self.consumer.events.append(lambda: self.consumer.take(partition))

        def run() -> None:
            with contextlib.suppress(SourceError):  # `failure` returns it
                member.step()

        self._threads.append((member, threading.Thread(target=run)))
        self._threads[-1][1].start()
        return self._threads[-1][1]

    def holds(self, partition: int, *offsets: int) -> bool:
        parts = [self.consumer.held.get((topic, partition)) for topic in ("memory", "queries")]
        return [part and part.offset for part in parts] == [*offsets]

    def note(self, partition: int) -> Holder:
        found = Holder.parse(self.consumer.held["queries", partition].metadata)
        assert found is not None
        return found

    def close(self) -> None:
        for member, thread in self._threads:
            member.close()
            thread.join(GIVE_UP_S)
            assert not thread.is_alive()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


def until(true: Callable[[], bool]) -> None:
    waiting = TimeLimit(GIVE_UP_S)
    while not true():
        assert not waiting.poll_expired()


def test_accepted_newest_offsets_are_committed(group: Group) -> None:
    member = group.make(0, 1)
    assert member.is_committed([0, 1])
    group.consumer.failing = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    member.commit({1: Committed(5, 6, "so far")})
    for _ in range(2):
        assert (member.is_committed([0]), member.is_committed([0, 1])) == (True, False)
        member.step()
    group.consumer.failing = None
    member.step()
    assert member.is_committed([0, 1])
    member.commit({1: Committed(6, 7, "further")})
    assert not member.is_committed([1])


def test_offsets_of_owned_partitions_alone_are_committed(group: Group) -> None:
    member = group.make(0)
    member.commit({0: Committed(3, 4, "here"), 1: Committed(3, 4, "not ours")})
    member.step()
    assert group.holds(0, 3, 4)
    assert ("memory", 1) not in group.consumer.held


def test_partitions_are_renewed_in_turn(group: Group) -> None:
    member = group.make(0, 1, 2)
    group.consumer.commits.clear()
    for _ in range(6):
        group.clock.now_s += 1.1
        member.step()
        member.step()
    assert [[one.partition for one in commit] for commit in group.consumer.commits] == [[1], [2], [0], [1], [2], [0]]


def test_revoked_partition_works_until_next_rebalance_has_begun(group: Group) -> None:
    begun = threading.Event()
    member = group.make(0, 1, is_rebalancing=begun.is_set)
    thread = group.begin_revocation(member, 1)
    for offset in range(10, 15):
        member.commit({1: Committed(offset, 20, "meanwhile")})
        until(partial(group.holds, 1, offset, 20))
    assert not group.flow.began.is_set()
    assert member.partitions == {0, 1}
    begun.set()
    thread.join(GIVE_UP_S)
    assert group.flow.given == {1}
    assert member.partitions == {0}


def test_revoked_partition_is_released_when_no_rebalance_begins(group: Group) -> None:
    member = group.make(0, 1, is_rebalancing=lambda: False)
    thread = group.begin_revocation(member, 1)
    for _ in range(45):
        assert not group.flow.began.is_set()
        group.clock.now_s += 1
        until(lambda: member._lease.seconds_left() > SESSION_S - 1)
    group.clock.now_s += 3
    thread.join(GIVE_UP_S)
    assert group.flow.given == {1}


@pytest.mark.parametrize(("is_new", "joins"), [(True, 2), (False, 1)], ids=["new", "restarted static member"])
def test_new_member_begins_the_second_rebalance(group: Group, is_new: bool, joins: int) -> None:
    member = group.make(is_new=is_new)
    assert group.consumer.subscriptions == joins
    group.consumer.events.append(lambda: group.consumer.give(1))
    member.step()
    assert group.consumer.subscriptions == joins


def test_unstarted_partition_moves_on_unchanged(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    member = group.make(0)
    monkeypatch.setattr(group.flow, "give_up", lambda _: {})
    group.consumer.events.append(lambda: group.consumer.give(1))
    group.consumer.held["memory", 1] = TopicPartition("memory", 1, 3, "told before")
    group.consumer.held["queries", 1] = TopicPartition("queries", 1, 4)
    member.step()
    group.begin_revocation(member, 1).join(GIVE_UP_S)
    assert member.failure() is None
    assert group.note(1).released
    assert group.consumer.held["queries", 1].offset == 4
    at = group.consumer.held["memory", 1]
    assert (at.offset, at.metadata) == (3, "told before")


def test_kept_partitions_are_renewed_during_a_revocation(group: Group) -> None:
    member = group.make(0, 1)
    group.flow.through.clear()
    thread = group.begin_revocation(member, 1)
    assert group.flow.began.wait(GIVE_UP_S)
    for _ in range(20):
        group.clock.now_s += 1.1
        until(lambda: member._lease.seconds_left() > SESSION_S - 1)
    assert 1 in group.consumer.assigned
    group.flow.through.set()
    thread.join(GIVE_UP_S)
    assert group.consumer.assigned == {0}


def test_late_handover_ends_membership_and_keeps_partitions(group: Group) -> None:
    member = group.make(0, 1)
    group.flow.through.clear()
    thread = group.begin_revocation(member, 1)
    assert group.flow.began.wait(GIVE_UP_S)
    while member.failure() is None:
        group.clock.now_s += 1
        until(lambda: member._lease.seconds_left() > SESSION_S - 1 or member.failure() is not None)
    with pytest.raises(MembershipLost, match="a hand-over took longer than"):
        member.check(TimeLimit)
    assert member._lease.seconds_left() == 0
    assert group.consumer.assigned == {0, 1}
    member.close()
    thread.join(GIVE_UP_S)
    group.flow.through.set()
    assert group.consumer.assigned == {0}


def test_replaced_member_does_not_rejoin(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.kafka.group_members.static_members", lambda *_: {"a": "member-2"})
    member = group.make(0, instance_id="a")
    group.clock.now_s += SESSION_S + 1
    with pytest.raises(DeploymentLost):
        member.step()


@pytest.mark.parametrize(("stops", "error"), [(False, MembershipLost), (True, SinkError)])
def test_commit_into_an_empty_group_renews_nothing(group: Group, stops: bool, error: type[Exception]) -> None:
    member, stopping = group.make(0), threading.Event()
    group.consumer.member = ""
    group.clock.now_s += 10
    member.step()
    if stops:
        stopping.set()
    with pytest.raises(error, match="could not be renewed") as raised:
        member.check(lambda: TimeLimit(0.0, stopping, group.clock))
    assert type(raised.value) is error


def test_a_refusal_is_no_rebalance(group: Group) -> None:
    member = group.make(0)
    group.consumer.failing = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    member.commit({0: Committed(1, 1, "x")})
    with pytest.raises(SourceError, match="consumer group cannot be used"):
        member.step()


def test_partition_missing_in_queries_delays_no_other(group: Group) -> None:
    group.consumer.unknown = {("queries", 1)}
    member = group.make(0, 1)
    assert group.flow.gained.keys() == {0}
    group.consumer.unknown = set()
    member.step()
    assert group.flow.gained.keys() == {0, 1}


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, True), ({"released": True}, False), ({"instance": "b"}, False), ({"directory_id": "ours"}, False),
        ({"directory_id": ""}, True),
    ],
    ids=["at work", "handed over", "of another name", "of our directory", "of no directory"],
)  # fmt: skip
def test_another_process_of_our_name_is_waited_for(
    group: Group, tmp_path: Path, fields: dict[str, Any], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fields.get("directory_id") == "":  # where the kernel names none, ours has no name either
        monkeypatch.setattr("recallflow.connectors.kafka.lease.directory_id", lambda _: "")
    here = Holder.here(tmp_path, "a")
    other = {"directory_id": "another"} | fields
    if fields.get("directory_id") == "ours":
        other["directory_id"] = here.directory_id
    group.consumer.held["queries", 0] = TopicPartition("queries", 0, 3, replace(here, **other).encode())
    member = group.make(0, instance_id="a")
    assert (0 not in group.flow.gained) == waits
    group.clock.now_s += SESSION_S - 1
    member.step()
    assert (0 not in group.flow.gained) == waits
    group.clock.now_s += 2
    if waits:
        member.step()
        assert 0 in group.flow.gained


def test_partition_of_previous_static_member_moves_late(group: Group, tmp_path: Path) -> None:
    other = replace(Holder.here(tmp_path, "a"), directory_id="another")
    group.consumer.held["queries", 0] = TopicPartition("queries", 0, 3, other.encode())
    member = group.make(0, 1, instance_id="a")
    thread = group.begin_revocation(member, 0)
    for _ in range(40):
        group.clock.now_s += 1.1
        until(lambda: member._lease.seconds_left() > SESSION_S - 1)
    assert group.consumer.assigned == {0, 1}
    group.clock.now_s += 2
    thread.join(GIVE_UP_S)
    assert group.consumer.assigned == {1}


def test_fixed_partitions_ignore_the_group_assignment(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[frozenset[int]] = []
    monkeypatch.setattr("recallflow.connectors.kafka.group_members.check_alone", lambda _, __, own: looked.append(own))
    member = group.make(0, 1, own=frozenset({2, 3}))
    group.consumer.unassign = lambda: None  # type: ignore[attr-defined]
    group.consumer.events += [lambda: group.consumer.take(0, 1), lambda: group.consumer.give(1)]
    member.step()
    member.step()
    assert group.flow.gained.keys() == member.partitions == {2, 3}
    assert not group.flow.given
    assert looked == [{2, 3}]
    assert group.consumer.options["group.instance.id"] == "own-2-3"
    assert group.consumer.options["partition.assignment.strategy"] == "range"


def test_partitions_of_ones_own_are_a_name_already(group: Group) -> None:
    with pytest.raises(UsageError, match="instance-id"):
        group.make(0, own=frozenset({0}), instance_id="a")


def committed_by(tmp_path: Path, partition: int, settings: dict[str, object]) -> TopicPartition:
    other = Holder.here(tmp_path, settings=settings)
    return TopicPartition("queries", partition, 3, replace(other, released=True).encode())


@pytest.mark.parametrize("partition", [0, 2], ids=["of the first partition", "of a partition that comes later"])
def test_other_settings_in_a_note_refuse_the_member(group: Group, tmp_path: Path, partition: int) -> None:
    group.consumer.held["queries", partition] = committed_by(tmp_path, partition, {"gap": 30.0, "embedder": "hash"})
    group.consumer.held["queries", 0] = group.consumer.held.get(("queries", 0)) or committed_by(tmp_path, 0, SHARED)
    member = group.make(settings=SHARED)
    group.consumer.events.append(lambda: group.consumer.give(partition or 1))
    with pytest.raises(UsageError, match=re.escape("other settings: gap is 30.0 there and 20.0 here. ")):
        member.step()
    assert group.flow.gained == {}
    assert member._lease.seconds_left() == 0


def test_settings_of_a_new_deployment_come_from_the_first_partition(group: Group, tmp_path: Path) -> None:
    member = group.make(1, settings=SHARED)
    member.step()
    assert (group.flow.gained, group.consumer.commits) == ({}, [])
    group.consumer.held["queries", 0] = committed_by(tmp_path, 0, SHARED)
    member.step()
    assert group.flow.gained.keys() == {1}
    assert group.note(1).settings == SHARED


LOG, OTHER = "memory.events:0", "memory.events:1"


def started(**ends: int) -> CatchUp:
    catch_up = CatchUp()
    catch_up.set_targets({LOG: 0} | ends)
    return catch_up


def test_a_partition_counts_while_it_is_ours() -> None:
    catch_up = CatchUp()
    catch_up.add(LOG, 3)
    assert catch_up.describe() == "the number of remaining memory records is not known yet"
    catch_up.set_targets({LOG: 5, OTHER: 2})
    assert (catch_up.remaining(), catch_up.describe()) == (2, "2 memory records remain")
    catch_up.add(OTHER, 1)
    assert (catch_up.remaining(), catch_up.remaining(OTHER)) == (3, 1)
    catch_up.remove(LOG)
    assert (catch_up.remaining(), catch_up.remaining(LOG)) == (1, None)


def test_records_of_an_earlier_run_do_not_count() -> None:
    catch_up = started(**{LOG: 5})
    catch_up.add(LOG, 3)
    catch_up.count_emitted(LOG, [3, 4], 5)
    catch_up.count_applied(LOG, (1, 2))
    assert catch_up.remaining() == 2
    catch_up.count_applied(LOG, (3, 4))
    assert catch_up.remaining() == 0


def test_after_an_outage_it_counts_anew_and_knows_nothing_meanwhile() -> None:
    catch_up = started(**{LOG: 2})
    catch_up.add(LOG, 2)
    assert catch_up.remaining() == 0
    catch_up.count_emitted(LOG, [2, 3, 4], 5)
    catch_up.note_outage()
    assert catch_up.remaining() is None
    catch_up.set_targets({LOG: 4})  # asked before the last of them was there
    assert catch_up.remaining() == 3
    catch_up.set_targets({LOG: 9})
    assert catch_up.remaining() == 7
    catch_up.count_applied(LOG, (2, 3, 4))
    catch_up.count_emitted(LOG, range(5, 12), 12)
    catch_up.count_applied(LOG, tuple(range(5, 12)))
    assert catch_up.remaining() == 0


@given(
    st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 45), st.integers(1, 7),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_progress_ends_exactly_at_the_target(records: list[bool], target: int, batch: int, draw: Random) -> None:
    offsets = [offset for offset, there in enumerate(records) if there]
    target = min(target, len(records))
    catch_up = started(**{LOG: target})
    catch_up.add(LOG, 0)
    unfinished: list[int] = []
    for at in range(0, len(offsets), batch):
        given_now = offsets[at : at + batch]
        catch_up.count_emitted(LOG, given_now, given_now[-1] + 1)
        unfinished += given_now
        draw.shuffle(unfinished)
        while len(unfinished) > 2:
            catch_up.count_applied(LOG, (unfinished.pop(),))
        left = [o for o in (*unfinished, *offsets[at + batch :]) if o < target]
        assert bool(catch_up.remaining()) or not left
    catch_up.skip_to(LOG, len(records))
    while unfinished:
        assert (catch_up.remaining() != 0) == any(offset < target for offset in unfinished)
        catch_up.count_applied(LOG, (unfinished.pop(),))
    assert catch_up.remaining() == 0


OFFSET = st.integers(0, 2**48)
OFFSETS = st.lists(OFFSET, max_size=50).map(lambda found: tuple(sorted({*found})))
REACHED = st.builds(LogProgress, OFFSET, OFFSET, OFFSETS, OFFSETS)
TAILS = st.dictionaries(st.text("abc.", min_size=1, max_size=8), st.dictionaries(st.integers(0, 30), OFFSET))
WRITERS = st.text(max_size=20)
PLACES = st.builds(
    PartitionProgress, REACHED, REACHED, st.integers(1, 1000), TAILS, OFFSET, st.booleans(), WRITERS, OFFSET
)


def without_empty(place: PartitionProgress) -> PartitionProgress:
    tails = {topic: numbers for topic, numbers in place.tails.items() if numbers}
    return replace(place, tails=tails)


@given(PLACES)
def test_a_place_is_read_as_it_was_written(place: PartitionProgress) -> None:
    assert without_empty(PartitionProgress.decode(place.encode())) == without_empty(place)


@given(PLACES, st.lists(OFFSET, max_size=2_000).map(lambda found: tuple(sorted({*found}))))
def test_text_beside_an_offset_is_bounded_and_loses_nothing(place: PartitionProgress, still: tuple[int, ...]) -> None:
    queries = place.queries._replace(open=still, ahead=tuple(one for one in place.queries.ahead if one not in still))
    place = PartitionProgress(
        place.memory._replace(open=(), ahead=()), queries, 16, place.tails, place.at_ms, False, "d"
    )
    text = place.text()
    told = PartitionProgress.decode(text)
    assert len(text) <= METADATA_CHARACTERS_MAX
    assert told.memory == place.memory
    for offset in still:
        assert not told.queries.is_done(offset)
    assert told.tails in ({}, place.tails) or without_empty(told).tails == without_empty(place).tails


def test_finished_offsets_are_below_or_ahead_and_not_open() -> None:
    at = LogProgress(10, 0, (3, 5), (12,))
    assert (at.first, [offset for offset in range(14) if at.is_done(offset)]) == (3, [0, 1, 2, 4, 6, 7, 8, 9, 12])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"memory":[1]}', "recallflow"])
def test_invalid_place_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="progress"):
        PartitionProgress.decode(text)


@pytest.mark.parametrize("text", [None, "", '{"host":"vm","pid":1,"released":true}', '{"memory":[0,0,[],[]],"new":1}'])
def test_metadata_of_another_version_is_ignored(text: str | None) -> None:
    assert PartitionProgress.parse(text) is None


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
def test_current_owners_of_partitions_are_found(names: list[str], found: str | None) -> None:
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
    "nobody": ([[]], 0), "released": ([[replace(A, released=True)]], 0),
    "active members": ([[A, B], [other("a", 4), other("b", 8)]], 2.5),
    "one silent until its partitions move": ([*([other("a", n), B] for n in range(5)), [other("a", 6)]], 12.5),
    "one silent for a session": ([[other("a", n), B] for n in range(100)], 47.5), "all silent": ([[A, B]], 2.5),
    "a run that renews its partitions in turn": ([[A, other("a", 4)], [A, other("a", 5)]], 2.5),
}  # fmt: skip


def wait(me: Holder, *looks: list[Holder]) -> float:
    """Return the waiting time of a newcomer in seconds. `looks`: commits of the members at each look."""
    pauses, left = Pauses(), [*looks]
    await_active(lambda: left.pop(0) if left[1:] else left[0], me, Lease(SESSION_S, lambda: pauses.now_s), pauses)
    return pauses.now_s


@pytest.mark.parametrize(("looks", "seconds"), WAITS.values(), ids=WAITS)
def test_newcomer_waits_for_silent_members(tmp_path: Path, looks: list[list[Holder]], seconds: float) -> None:
    assert wait(Holder.here(tmp_path), *looks) == seconds
