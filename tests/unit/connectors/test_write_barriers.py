"""Read-your-writes across topics: a query waits for memory records of its key that were appended before it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.order import REACH, WAIT_S, Lane, RoundRobinQueue
from recallflow.connectors.kafka.owned import records_of
from recallflow.records import Record
from tests.unit.connectors.fake_consumer import FakeKafka, Message
from tests.unit.connectors.test_owned import MEMORIES, QUERIES, Member

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
        self.memory.queue.append(Message(MEMORIES, 0, at, b"m", key))
        self.memory.note_key(key, at)
        self.memory.reached = at + 1

    def ask(self, key: bytes | None, end: int) -> None:
        assert self.queries.barriers is not None
        self.queries.barriers.add(self.asked, end)
        self.queries.queue.append(Message(QUERIES, 0, self.asked, b"q", key))
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


def test_later_memory_of_the_key_does_not_extend_the_wait(partition: Partition) -> None:
    partition.fetch(ANN)
    partition.ask(ANN, end=1)
    assert partition.answered() == []
    partition.fetch(ANN)
    partition.give()
    assert len(partition.answered()) == 1


def test_query_without_a_key_waits_for_all(partition: Partition) -> None:
    partition.fetch(BOB)
    partition.ask(None, end=1)
    assert partition.answered() == []
    partition.give()
    assert len(partition.answered()) == 1


def test_transaction_markers_at_the_end_hold_back_nothing(partition: Partition) -> None:
    partition.fetch(ANN)
    partition.ask(ANN, end=2)  # the marker has offset 1
    partition.memory.reached = 2
    partition.give()
    assert len(partition.answered()) == 1


def test_wait_ends_at_its_deadline_and_names_missing_positions(partition: Partition) -> None:
    partition.ask(ANN, end=3)
    assert partition.answered() == []
    partition.now_s = WAIT_S
    (record,) = partition.answered()
    assert record.unread == 3


def test_backlog_beyond_reach_is_not_waited_for(partition: Partition) -> None:
    partition.ask(ANN, end=REACH + 1)
    (record,) = partition.answered()
    assert record.unread == REACH + 1


def test_waiting_query_holds_up_no_other_tenant_and_no_offset(partition: Partition) -> None:
    partition.ask(ANN, end=1)
    partition.ask(b"b/ann", end=0)
    assert [record.position.offset for record in partition.answered()] == [1]
    assert (partition.queries.next_offset, partition.queries.given_ahead()) == (0, (1,))
    partition.fetch(ANN)
    partition.give()
    assert [record.position.offset for record in partition.answered()] == [0]
    assert partition.queries.next_offset == 2


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
def kafka() -> FakeKafka:
    return FakeKafka(**{MEMORIES: 1, QUERIES: 1})


@pytest.fixture
def waiting_member(kafka: FakeKafka) -> Iterator[Member]:
    made = Member(kafka, memory_ends=lambda numbers: dict.fromkeys(numbers, 2))
    yield made
    made.part.close()


def test_source_gives_writes_before_the_query_that_follows_them(kafka: FakeKafka, waiting_member: Member) -> None:
    kafka.append(QUERIES, 0, b"q", ANN)
    _, queries = waiting_member.own(0)
    waiting_member.batch()
    kafka.await_(lambda: queries.held() == 1)
    assert [one for one in waiting_member.batch() if isinstance(one, Record)] == []
    for value in (b"m0", b"m1"):
        kafka.append(MEMORIES, 0, value, ANN)
    found = [one for one in waiting_member.records(3) if isinstance(one, Record)]
    assert [(one.value, one.unread) for one in found] == [(b"m0", 0), (b"m1", 0), (b"q", 0)]
