"""The source of a member over a Kafka in this process: ownership of partitions follows their records."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recallflow.connectors.kafka.hub import MemoryEnds
from recallflow.connectors.kafka.order import Lane, RoundRobinQueue
from recallflow.connectors.kafka.owned import BATCH_BYTES, IDLE_S, NOT_OURS, BarrierProgress, OwnedSource, lane_at
from recallflow.connectors.kafka.place import LogProgress
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Mark, Open, Record
from tests.unit.connectors.fake_consumer import FakeKafka

MEMORIES, QUERIES = "memories", "queries"
MARK_S = 1.0
TAILS = {"responses": {0: 7}}
START = LogProgress(0)


class Member:
    def __init__(self, kafka: FakeKafka, memory_ends: MemoryEnds | None = None, **chosen: Any) -> None:
        self.kafka, self.now_s = kafka, 100.0
        self.source = OwnedSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            mark_s=MARK_S,
            tails=lambda: (TAILS, 70),
            new_consumer=kafka.consumer,
            clock_s=lambda: self.now_s,
            memory_ends=memory_ends,
            **chosen,
        )
        self.part = self.source.build()

    def own(self, partition: int, memory: LogProgress = START, queries: LogProgress = START) -> tuple[Lane, Lane]:
        memories = lane_at(MEMORIES, partition, memory, self.kafka.end(MEMORIES, partition))
        asked = lane_at(QUERIES, partition, queries, self.kafka.end(QUERIES, partition))
        asked.queue = RoundRobinQueue(queries.ahead)
        self.source.own(partition, memories, asked)
        return memories, asked

    def batch(self) -> list[Any]:
        found = self.part.next_batch()
        for record in found:
            if isinstance(record, Record):
                self.source.progress.done(record.position.topic, 1)
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

    def given(self, mark: Mark) -> BarrierProgress:
        found = self.source.given(mark.partition, mark.number)
        assert found is not None
        return found


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka(**{MEMORIES: 2, QUERIES: 2})


@pytest.fixture
def member(kafka: FakeKafka) -> Iterator[Member]:
    made = Member(kafka)
    yield made
    made.part.close()


def values(found: list[Any]) -> list[str]:
    return [one.value.decode() for one in found if isinstance(one, Record)]


def signals(found: list[Any]) -> list[Any]:
    return [one for one in found if not isinstance(one, Record)]


def fill(kafka: FakeKafka, topic: str, partition: int, words: str) -> None:
    for word in words.split():
        kafka.append(topic, partition, word.encode(), word[:1].encode() + b"/ann", append_ms=5)


def test_a_partition_that_rests_is_marked_seldom(kafka: FakeKafka, member: Member) -> None:
    member.own(0)
    member.batch()
    member.now_s += MARK_S
    assert signals(member.batch()) == [Mark(0, 0)]  # that it is ours
    member.now_s += IDLE_S
    assert member.batch() == []  # the mark before is under way
    member.given(Mark(0, 0))
    assert signals(member.batch()) == [Mark(0, 1)]
    member.given(Mark(0, 1))
    member.now_s += MARK_S
    assert member.batch() == []
    member.source.keep(0, b"a place", open_left=True)  # a query waits: how far it is may change by itself
    member.now_s += MARK_S
    assert signals(member.batch()) == [Mark(0, 2, b"a place")]
    member.given(Mark(0, 2))
    fill(kafka, QUERIES, 0, "q")
    member.records(1)
    member.now_s += MARK_S
    assert signals(member.batch()) == [Mark(0, 3)]  # a place is kept once


def test_warm_partition_is_given_up_to_its_limit(kafka: FakeKafka, member: Member) -> None:
    fill(kafka, MEMORIES, 1, "a b c")
    lane = lane_at(MEMORIES, 1, LogProgress(0), 3)
    lane.limit, lane.answered_from = 2, 2**63 - 1
    member.source.warm(1, lane)
    found = member.records(2)
    kafka.await_(lambda: lane.reached == 3)
    assert (found[0], values(found), member.batch()) == (Open(1), ["a", "b"], [])
    assert all(one.silent for one in found[1:])
    member.source.allow(1, 3)
    assert values(member.records(1)) == ["c"]
    member.source.cool(1)
    assert member.batch() == [Mark(1, NOT_OURS, last=True)]
    assert (member.source.kept_warm(), member.source.given(1, NOT_OURS)) == (frozenset(), None)


def test_owned_warm_partition_stays_open(kafka: FakeKafka, member: Member) -> None:
    fill(kafka, MEMORIES, 1, "a b c")
    warm = lane_at(MEMORIES, 1, LogProgress(0), 3)
    warm.limit, warm.answered_from = 2, 2**63 - 1
    member.source.warm(1, warm)
    member.records(2)
    member.own(1, LogProgress(2))
    member.source.cool(1)
    member.source.warm(1, lane_at(MEMORIES, 1, LogProgress(0), 3))
    found = member.records(1)
    assert (signals(found), values(found), found[0].silent) == ([], ["c"], False)
    assert (member.source.kept_warm(), member.source.partitions()) == (frozenset(), frozenset({1}))
    fill(kafka, MEMORIES, 1, "d")
    assert values(member.records(1)) == ["d"]  # once, of two that would read it
    assert [lane for one in member.source.readers() for lane in one.lanes.values() if lane is warm] == []


def test_own_partitions_precede_standby_partitions(kafka: FakeKafka, member: Member) -> None:
    warm = lane_at(MEMORIES, 1, LogProgress(0), 1)
    member.source.warm(1, warm)
    mine, _ = member.own(0)
    assert member.batch() == [Open(1), Open(0)]
    fill(kafka, MEMORIES, 1, "theirs")
    fill(kafka, MEMORIES, 0, "ours ours")
    kafka.await_(lambda: warm.held() == 1 and mine.held() == 2)
    assert values(member.records(3)) == ["ours", "ours", "theirs"]


def test_limit_of_a_cooled_partition_changes_nothing(kafka: FakeKafka, member: Member) -> None:
    fill(kafka, MEMORIES, 1, "a b")
    lane = lane_at(MEMORIES, 1, LogProgress(0), 2)
    lane.limit = 1
    member.source.warm(1, lane)
    member.source.warm(1, lane_at(MEMORIES, 1, LogProgress(0), 2))  # is so already
    member.records(1)
    member.source.cool(1)
    member.source.cool(1)
    assert member.batch() == [Mark(1, NOT_OURS, last=True)]
    member.source.allow(1, 2)
    assert (lane.limit, member.batch()) == (1, [])


def test_queries_in_flight_are_bounded(kafka: FakeKafka) -> None:
    member = Member(kafka, queries_in_flight_max=3)
    memories, queries = member.own(0)
    member.part.next_batch()
    fill(kafka, QUERIES, 0, "a b c d e")
    fill(kafka, MEMORIES, 0, "m")
    kafka.await_(lambda: queries.held() == 5 and memories.held() == 1)
    taken = [*member.part.next_batch(), *member.part.next_batch()]
    assert sorted(values(taken)) == ["a", "b", "c", "m"]
    member.source.progress.done(QUERIES, 2)
    assert values(member.part.next_batch()) == ["d", "e"]
    member.part.close()


@pytest.mark.parametrize("topic", [MEMORIES, QUERIES])
def test_a_batch_of_large_records_is_short(kafka: FakeKafka, member: Member, topic: str) -> None:
    lane = next(one for one in member.own(0) if one.topic == topic)
    member.batch()
    for _ in range(9):
        kafka.append(topic, 0, b"x" * (BATCH_BYTES // 3))
    kafka.await_(lambda: lane.held() == 9)
    sizes: list[int] = []
    while sum(sizes) < 9:
        sizes.append(len(values(member.batch())))
    assert max(sizes) <= 4
    assert lane.held_bytes() == 0


def test_a_null_value_is_an_empty_one(kafka: FakeKafka, member: Member) -> None:
    kafka.append(MEMORIES, 1, None)
    member.own(1)
    assert values(member.records(1)) == [""]
