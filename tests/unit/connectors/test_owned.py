"""The source of a member over a Kafka in this process: ownership, turns of tenants, and barriers of writes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.input_scheduler import MemoryEnds
from recallflow.connectors.kafka.owned import (
    BATCH_BYTES,
    IDLE_S,
    STANDBY_BARRIER,
    BarrierProgress,
    OwnedSource,
    lane_at,
    records_of,
)
from recallflow.connectors.kafka.partition import WAIT_MAX_S, WAIT_RECORDS_MAX, Lane, LogProgress, RoundRobinQueue
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Barrier, PartitionStart, Record
from tests.unit.connectors.fake_consumer import FakeKafka

MEMORIES, QUERIES = "memories", "queries"
SYNC_S = 1.0
TAILS = {"responses": {0: 7}}
START = LogProgress(0)


class Member:
    def __init__(self, kafka: FakeKafka, memory_ends: MemoryEnds | None = None, **chosen: Any) -> None:
        self.kafka, self.now_s = kafka, 100.0
        self.source = OwnedSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            sync_s=SYNC_S,
            tails=lambda: (TAILS, 70),
            new_consumer=kafka.consumer,
            clock_s=lambda: self.now_s,
            memory_ends=memory_ends,
            **chosen,
        )
        self.source.open()

    def own(self, partition: int, memory: LogProgress = START, queries: LogProgress = START) -> tuple[Lane, Lane]:
        memories = lane_at(MEMORIES, partition, memory, self.kafka.end(MEMORIES, partition))
        asked = lane_at(QUERIES, partition, queries, self.kafka.end(QUERIES, partition))
        asked.queue = RoundRobinQueue(queries.ahead)
        self.source.own(partition, memories, asked)
        return memories, asked

    def batch(self) -> list[Any]:
        found = self.source.next_batch()
        for record in found:
            if isinstance(record, Record):
                self.source.counters.count_finished(record.position.topic, 1)
        return found

    def until(self, true: Callable[[list[Any]], bool]) -> list[Any]:
        found: list[Any] = []

        def looked() -> bool:
            found.extend(self.batch())
            return true(found)

        self.kafka.await_(looked)
        return found

    def records(self, count: int) -> list[Any]:
        return self.until(lambda found: len(values(found)) >= count)

    def given(self, mark: Barrier) -> BarrierProgress:
        found = self.source.barrier_progress(mark.partition, mark.number)
        assert found is not None
        return found


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka(**{MEMORIES: 2, QUERIES: 2})


@pytest.fixture
def member(kafka: FakeKafka) -> Iterator[Member]:
    made = Member(kafka)
    yield made
    made.source.close()


def values(found: list[Any]) -> list[str]:
    return [one.value.decode() for one in found if isinstance(one, Record)]


def signals(found: list[Any]) -> list[Any]:
    return [one for one in found if not isinstance(one, Record)]


def fill(kafka: FakeKafka, topic: str, partition: int, words: str) -> None:
    for word in words.split():
        kafka.append(topic, partition, word.encode(), word[:1].encode() + b"/ann", append_ms=5)


def test_released_partition_has_no_oldest_barrier(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.own(0)
    monkeypatch.setattr("time.time", lambda: 10.0)
    member.batch()
    assert member.source.oldest_barrier_s() == 10.0
    member.source.give_up([0])
    member.batch()
    monkeypatch.setattr("time.time", lambda: 500.0)
    assert member.source.oldest_barrier_s() == 500.0  # an alert compares it with the time


def test_a_partition_that_rests_is_marked_seldom(kafka: FakeKafka, member: Member) -> None:
    member.own(0)
    member.batch()
    member.now_s += SYNC_S
    assert signals(member.batch()) == [Barrier(0, 0)]  # that it is ours
    member.now_s += IDLE_S
    assert member.batch() == []  # the mark before is under way
    member.given(Barrier(0, 0))
    assert signals(member.batch()) == [Barrier(0, 1)]
    member.given(Barrier(0, 1))
    member.now_s += SYNC_S
    assert member.batch() == []
    member.source.set_progress(0, b"a place", has_open=True)  # a query waits: how far it is may change by itself
    member.now_s += SYNC_S
    assert signals(member.batch()) == [Barrier(0, 2, b"a place")]
    member.given(Barrier(0, 2))
    fill(kafka, QUERIES, 0, "q")
    member.records(1)
    member.now_s += SYNC_S
    assert signals(member.batch()) == [Barrier(0, 3)]  # a place is kept once


def test_warm_partition_is_given_up_to_its_limit(kafka: FakeKafka, member: Member) -> None:
    fill(kafka, MEMORIES, 1, "a b c")
    lane = lane_at(MEMORIES, 1, LogProgress(0), 3)
    lane.stop_offset, lane.outputs_from = 2, 2**63 - 1
    member.source.add_standby(1, lane)
    found = member.records(2)
    kafka.await_(lambda: lane.reached == 3)
    assert (found[0], values(found), member.batch()) == (PartitionStart(1), ["a", "b"], [])
    assert all(one.silent for one in found[1:])
    member.source.limit_standby(1, 3)
    assert values(member.records(1)) == ["c"]
    member.source.drop_standby(1)
    assert member.batch() == [Barrier(1, STANDBY_BARRIER, last=True)]
    assert (member.source.standbys(), member.source.barrier_progress(1, STANDBY_BARRIER)) == (frozenset(), None)


def test_owned_warm_partition_stays_open(kafka: FakeKafka, member: Member) -> None:
    fill(kafka, MEMORIES, 1, "a b c")
    warm = lane_at(MEMORIES, 1, LogProgress(0), 3)
    warm.stop_offset, warm.outputs_from = 2, 2**63 - 1
    member.source.add_standby(1, warm)
    member.records(2)
    member.own(1, LogProgress(2))
    member.source.drop_standby(1)
    member.source.add_standby(1, lane_at(MEMORIES, 1, LogProgress(0), 3))
    found = member.records(1)
    assert (signals(found), values(found), found[0].silent) == ([], ["c"], False)
    assert (member.source.standbys(), member.source.partitions()) == (frozenset(), frozenset({1}))
    fill(kafka, MEMORIES, 1, "d")
    assert values(member.records(1)) == ["d"]  # once, of two that would read it
    assert [lane for one in member.source.readers() for lane in one.lanes.values() if lane is warm] == []


def test_own_partitions_precede_standby_partitions(kafka: FakeKafka, member: Member) -> None:
    warm = lane_at(MEMORIES, 1, LogProgress(0), 1)
    member.source.add_standby(1, warm)
    mine, _ = member.own(0)
    assert member.batch() == [PartitionStart(1), PartitionStart(0)]
    fill(kafka, MEMORIES, 1, "theirs")
    fill(kafka, MEMORIES, 0, "ours ours")
    kafka.await_(lambda: len(warm.queue) == 1 and len(mine.queue) == 2)
    assert values(member.records(3)) == ["ours", "ours", "theirs"]


def test_queries_in_flight_are_bounded(kafka: FakeKafka) -> None:
    member = Member(kafka, queries_in_flight_max=3)
    memories, queries = member.own(0)
    member.source.next_batch()
    fill(kafka, QUERIES, 0, "a b c d e")
    fill(kafka, MEMORIES, 0, "m")
    kafka.await_(lambda: len(queries.queue) == 5 and len(memories.queue) == 1)
    taken = [*member.source.next_batch(), *member.source.next_batch()]
    assert sorted(values(taken)) == ["a", "b", "c", "m"]
    member.source.counters.count_finished(QUERIES, 2)
    assert values(member.source.next_batch()) == ["d", "e"]
    member.source.close()


@pytest.mark.parametrize("topic", [MEMORIES, QUERIES])
def test_a_batch_of_large_records_is_short(kafka: FakeKafka, member: Member, topic: str) -> None:
    lane = next(one for one in member.own(0) if one.topic == topic)
    member.batch()
    for _ in range(9):
        kafka.append(topic, 0, b"x" * (BATCH_BYTES // 3))
    kafka.await_(lambda: len(lane.queue) == 9)
    sizes: list[int] = []
    while sum(sizes) < 9:
        sizes.append(len(values(member.batch())))
    assert max(sizes) <= 4
    assert lane.queued_bytes() == 0


def test_a_null_value_is_an_empty_one(kafka: FakeKafka, member: Member) -> None:
    kafka.append(MEMORIES, 1, None)
    member.own(1)
    assert values(member.records(1)) == [""]


TENANTS = st.sampled_from((b"a/x", b"a/y", b"b/x", b"", b"c", None))


def message(offset: int, key: bytes | None) -> Any:
    return Message("queries", 0, offset, key, b"")


def tenant(key: bytes | None) -> bytes:
    return (key or b"").split(b"/")[0]


@given(steps=st.lists(TENANTS.map(lambda key: (key,)) | st.none(), max_size=60))
def test_each_record_is_given_once_and_each_tenants_in_order(steps: list[tuple[bytes | None] | None]) -> None:
    turns, log, given_, next_offset = RoundRobinQueue(), list[Any](), list[Any](), 0
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            log.append(message(len(log), *step))
            turns.append(log[-1])
        elif turns:
            given_.append(turns.popleft())
            next_offset += len([*turns.passed()])
        assert len(turns) == len(log) - len(given_)
        offsets = {one.offset() for one in given_}
        assert offsets >= set(range(next_offset))
        assert next_offset not in offsets
        assert turns.ahead == offsets - set(range(next_offset))
    assert sorted(one.offset() for one in given_) == [*range(len(log))]
    for name in {tenant(one.key()) for one in log}:
        own = [one.offset() for one in given_ if tenant(one.key()) == name]
        assert own == sorted(own)


@given(counts=st.dictionaries(st.sampled_from((b"a", b"b", b"c", b"d")), st.integers(1, 20), min_size=1))
def test_each_tenant_has_one_turn_before_a_second(counts: dict[bytes, int]) -> None:
    turns = RoundRobinQueue()
    for offset, key in enumerate(key for key, count in counts.items() for _ in range(count)):
        turns.append(message(offset, key + b"/ann"))
    taken = [tenant(turns.popleft().key()) for _ in range(sum(counts.values()))]
    rounds = [sorted(key for key, count in counts.items() if count > turn) for turn in range(max(counts.values()))]
    at = 0
    for expected in rounds:
        assert sorted(taken[at : at + len(expected)]) == expected
        at += len(expected)


def test_early_records_stay_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.kafka.partition.AHEAD_MAX", 30)
    turns, log, given_, most = RoundRobinQueue(), list[Any](), list[int](), 0
    while len(given_) < 1_000:
        while len(turns) < 50 and len(log) < 1_000:
            log.append(message(len(log), b"waits/ann" if len(log) < 50 else b"%d/ann" % len(log)))
            turns.append(log[-1])
        given_.append(turns.popleft().offset())
        for _ in turns.passed():
            pass
        most = max(most, len(turns.ahead))
    assert sorted(given_) == [*range(1_000)]
    assert [offset for offset in given_ if offset < 50] == [*range(50)]
    assert (most, turns.ahead) == (30, set())


ANN, BOB = b"a/ann", b"a/bob"


class Partition:
    """The memory lane and the query lane of one partition. Tests play the reader threads."""

    def __init__(self) -> None:
        self.now_s, self.end, self.asked = 0.0, 0, 0
        self.memory, self.queries = Lane(MEMORIES, 0, 0, 0), Lane(QUERIES, 0, 0, 0)
        self.queries.queue = RoundRobinQueue()
        self.queries.wait_for_writes(self.memory, lambda: self.now_s)

    def fetch(self, key: bytes | None, offset: int | None = None) -> None:
        at = self.memory.reached if offset is None else offset
        self.memory.queue.append(Message(MEMORIES, 0, at, key, b"m"))
        self.memory.note_key(key, at)
        self.memory.reached = at + 1

    def ask(self, key: bytes | None, end: int) -> None:
        assert self.queries.barriers is not None
        self.queries.barriers.add(self.asked, end)
        self.queries.queue.append(Message(QUERIES, 0, self.asked, key, b"q"))
        self.asked += 1

    def give(self, count: int = 1) -> None:
        records_of(self.memory, count)

    def answered(self) -> list[Record]:
        return records_of(self.queries, 100)


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_other_keys_in_the_queue_delay_no_query(partition: Partition) -> None:
    partition.fetch(BOB)
    partition.ask(ANN, end=1)
    assert len(partition.answered()) == 1


@pytest.mark.parametrize(("written", "asking"), [(ANN, ANN), (BOB, None)], ids=["key", "no key"])
def test_query_waits_for_earlier_writes_only(partition: Partition, written: bytes, asking: bytes | None) -> None:
    partition.fetch(written)
    partition.ask(asking, end=1)
    assert partition.answered() == []
    partition.fetch(written)
    partition.give()
    assert len(partition.answered()) == 1


def test_transaction_markers_at_the_end_hold_back_nothing(partition: Partition) -> None:
    partition.fetch(ANN)
    partition.ask(ANN, end=2)  # the marker has offset 1
    partition.memory.reached = 2
    partition.give()
    assert len(partition.answered()) == 1


def test_wait_ends_at_its_deadline_or_beyond_reach(partition: Partition) -> None:
    partition.ask(ANN, end=WAIT_RECORDS_MAX + 1)
    assert [record.unapplied for record in partition.answered()] == [WAIT_RECORDS_MAX + 1]
    partition.ask(ANN, end=3)
    assert partition.answered() == []
    partition.now_s = WAIT_MAX_S
    assert [record.unapplied for record in partition.answered()] == [3]


def test_waiting_query_holds_up_no_other_tenant_and_no_offset(partition: Partition) -> None:
    partition.ask(ANN, end=1)
    partition.ask(b"b/ann", end=0)
    assert [record.position.offset for record in partition.answered()] == [1]
    assert (partition.queries.next_offset, partition.queries.delivered_ahead()) == (0, (1,))
    partition.fetch(ANN)
    partition.give()
    assert ([record.position.offset for record in partition.answered()], partition.queries.next_offset) == ([0], 2)


@given(steps=st.lists(st.sampled_from(["write ann", "write bob", "fetch", "give", "ask ann", "ask bob"]), max_size=60))
def test_no_query_overtakes_a_write_of_its_key(steps: list[str]) -> None:
    partition, log, given_, asked, answered = Partition(), list[bytes](), 0, list[tuple[bytes, int]](), 0
    for step in [*steps, *["fetch", "give"] * len(steps)]:
        verb, _, who = step.partition(" ")
        key = b"a/" + who.encode()
        if verb == "write":
            log.append(key)
        elif verb == "ask":
            asked.append((key, len(log)))
            partition.ask(key, len(log))
        elif verb == "fetch" and partition.memory.reached < len(log):
            partition.fetch(log[partition.memory.reached])
        elif verb == "give":
            partition.give()
            given_ = partition.memory.next_offset
        for record in partition.answered():
            key, end = asked[record.position.offset]
            assert key not in log[given_:end]
            answered += 1
    assert answered == len(asked)


@pytest.fixture
def one_partition_kafka() -> FakeKafka:
    return FakeKafka(**{MEMORIES: 1, QUERIES: 1})


@pytest.fixture
def waiting_member(one_partition_kafka: FakeKafka) -> Iterator[Member]:
    made = Member(one_partition_kafka, memory_ends=lambda numbers: dict.fromkeys(numbers, 2))
    yield made
    made.source.close()


def test_source_gives_writes_before_the_query_that_follows_them(
    one_partition_kafka: FakeKafka, waiting_member: Member
) -> None:
    one_partition_kafka.append(QUERIES, 0, b"q", ANN)
    _, queries = waiting_member.own(0)
    waiting_member.batch()
    one_partition_kafka.await_(lambda: len(queries.queue) == 1)
    assert [one for one in waiting_member.batch() if isinstance(one, Record)] == []
    for value in (b"m0", b"m1"):
        one_partition_kafka.append(MEMORIES, 0, value, ANN)
    found = [one for one in waiting_member.records(3) if isinstance(one, Record)]
    assert [(one.value, one.unapplied) for one in found] == [(b"m0", 0), (b"m1", 0), (b"q", 0)]
