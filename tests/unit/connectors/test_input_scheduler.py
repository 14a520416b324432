"""The order of service, pauses, and how far is read ahead."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError

from recallflow.connectors.kafka import input_scheduler as limits
from recallflow.connectors.kafka.input_scheduler import InputScheduler, LaneReader
from recallflow.connectors.kafka.partition import Lane
from recallflow.errors import RegistryUnavailable, SourceError
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.async_call import CallCompletion, Completions
from recallflow.schema_registry import RETRY_S
from tests.unit.connectors.clock import Clock
from tests.unit.connectors.fake_consumer import FakeKafka

MakeScheduler = Callable[..., InputScheduler]
NOWHERE = KafkaOptions("127.0.0.1:1", {"log_level": "0"})


def add(reader: LaneReader, topic: str, number: int = 0, end: int = 0) -> Lane:
    lane = Lane(topic, number, 0, end)
    reader.add(lane)
    reader.lanes = reader.lanes | {(topic, number): lane}  # as its thread does before it reads on
    return lane


class Told(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(super().wait(timeout))
        return self.waits[-1]


@pytest.fixture
def make_scheduler() -> Iterator[MakeScheduler]:
    made: list[InputScheduler] = []

    def make(wake: Any = None, failure: Any = lambda: None, in_flight: Any = lambda: 0, **more: Any) -> InputScheduler:
        wake, consumer = wake or threading.Event(), more.pop("new_consumer", Consumer)
        queries, memories = (LaneReader(name, NOWHERE, wake, consumer) for name in ("queries", "memories"))
        made.append(InputScheduler(queries, memories, wake, in_flight, lambda: limits.BATCH_MAX, failure, **more))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.stop()


def test_a_completion_ends_the_rest(make_scheduler: MakeScheduler) -> None:
    completions = Completions(wake := Told())
    scheduler = make_scheduler(wake)
    finished = CallCompletion(key="000", call=7)
    completions.put(finished)
    scheduler.begin()
    scheduler.wait()
    assert wake.waits == [True]  # it waited for this very event, and found it set
    assert not wake.is_set()  # cleared before anybody looks, so that the next completion wakes again
    assert completions.pop_all() == [finished]


@pytest.mark.parametrize(("queued", "waits"), [(0, [False]), (1, [])])
def test_empty_queue_alone_gives_a_short_rest(make_scheduler: MakeScheduler, queued: int, waits: list[bool]) -> None:
    scheduler = make_scheduler(wake := Told())
    add(scheduler.queries, "query.events").queue.extend(["a record"] * queued)
    scheduler.begin()
    scheduler.wait()
    assert wake.waits == waits


def test_blocked_partition_is_paused(make_scheduler: MakeScheduler) -> None:
    """While a call fills the room in flight, polling again and again would use a whole processor."""
    wake, in_flight = Told(), [limits.IN_FLIGHT_MAX]
    scheduler = make_scheduler(wake, in_flight=lambda: in_flight[0])
    add(scheduler.memories, "enrichment.requests").queue.append("a record")
    scheduler.begin()
    assert scheduler.memories_allowed() == 0
    scheduler.wait()
    assert wake.waits == [False]
    in_flight[0] = limits.IN_FLIGHT_MAX - 1
    assert scheduler.memories_allowed() == 1
    scheduler.wait()
    assert wake.waits == [False]


def test_other_failures_stop_the_source(make_scheduler: MakeScheduler) -> None:
    failed: list[SourceError] = []
    scheduler = make_scheduler(None, lambda: failed[0] if failed else None)
    scheduler.begin()
    failed.append(SourceError("the control topic is gone"))
    with pytest.raises(SourceError, match="the control topic is gone"):
        scheduler.begin()


def waiting(scheduler: InputScheduler, queries: int, memories: int) -> None:
    add(scheduler.queries, "query.events").queue.extend(range(queries))
    add(scheduler.memories, "memory.events").queue.extend(range(memories))


def learn(scheduler: InputScheduler) -> None:
    """Shows the scheduler that an event costs next to nothing: it then gives BATCH_MAX at a time."""
    scheduler.begin()
    scheduler.add_memories(limits.BATCH_MAX)
    scheduler.begin()


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def test_memories_wait_for_queries_but_not_for_long(make_scheduler: MakeScheduler, clock: Clock) -> None:
    scheduler = make_scheduler(clock_s=clock)
    learn(scheduler)
    waiting(scheduler, queries=1, memories=5)
    assert scheduler.memories_allowed() == 0
    clock.now_s += limits.STARVED_S * 0.9
    assert scheduler.memories_allowed() == 0
    clock.now_s += limits.STARVED_S * 0.2
    assert scheduler.memories_allowed() > 0  # however many queries come
    scheduler.add_memories(5)
    assert scheduler.memories_allowed() == 0


def test_no_more_is_in_flight_than_the_bound(make_scheduler: MakeScheduler, clock: Clock) -> None:
    in_flight, most = [0], limits.IN_FLIGHT_MAX
    scheduler = make_scheduler(in_flight=lambda: in_flight[0], clock_s=clock)
    learn(scheduler)
    waiting(scheduler, queries=0, memories=5)
    for taken, allowed in ((0, limits.BATCH_MAX), (most - 3, 3), (most, 0), (most + 9, 0)):
        in_flight[0] = taken
        assert scheduler.memories_allowed() == allowed


def test_batch_fits_the_budget_shared_by_partitions(make_scheduler: MakeScheduler, clock: Clock) -> None:
    scheduler = make_scheduler(clock_s=clock)
    scheduler.begin()
    scheduler.add_memories(10)
    clock.now_s += 10 * limits.MEMORIES_BUDGET_S / 8  # an event costs an eighth of the budget
    scheduler.begin()
    waiting(scheduler, queries=0, memories=5)
    assert scheduler.memories_allowed() == 8
    add(scheduler.memories, "memory.events", 1).queue.append("a record")
    assert scheduler.memories_allowed() == 4
    for lane, allowed in zip(scheduler.memories.lanes.values(), (8, 4), strict=True):
        lane.waiting_queries.update({7} if allowed == 8 else ())
        assert scheduler.allowed_of(lane, 4) == allowed


def test_queries_that_take_long_are_given_few_at_a_time(make_scheduler: MakeScheduler, clock: Clock) -> None:
    scheduler = make_scheduler(clock_s=clock)
    waiting(scheduler, queries=600, memories=0)
    scheduler.begin()
    first = scheduler.queries_allowed()
    scheduler.add_queries(first)
    clock.now_s += first * limits.QUERIES_BUDGET_S / 5.5
    scheduler.begin()
    assert (first, scheduler.queries_allowed()) == (limits.FIRST_QUERIES_MAX, 5)
    add(scheduler.queries, "query.events", 1).queue.append("a record")
    assert scheduler.queries_allowed() == 3
    allowed = [scheduler.queries_allowed()]
    for _ in range(40):
        scheduler.add_queries(6)
        clock.now_s += 6 * limits.QUERIES_BUDGET_S / 100.5  # and more where they take less
        scheduler.begin()
        allowed.append(scheduler.queries_allowed())
    # … but not at once: of as many cheap ones as fit, the next might be as many that are not
    assert allowed == sorted(allowed)
    assert max(later - before for before, later in pairwise(allowed)) <= 6
    assert allowed[-1] == 50


def reader(kafka: FakeKafka) -> LaneReader:
    return LaneReader("test", NOWHERE, threading.Event(), kafka.consumer)


def read_until_full(of: LaneReader) -> None:
    for _ in range(100):
        of.read()


def test_a_reader_reads_ahead_so_far_and_no_further() -> None:
    kafka = FakeKafka(events=1)
    for _ in range(3 * limits.READ_AHEAD):
        kafka.append("events", 0, b"")
    one = reader(kafka)
    lane = add(one, "events", end=3 * limits.READ_AHEAD)
    read_until_full(one)
    assert limits.READ_AHEAD <= len(lane.queue) <= limits.READ_AHEAD + limits.READ_BATCH
    assert one.lag() == {("events", 0): 3 * limits.READ_AHEAD}
    lane.queue.clear()
    read_until_full(one)
    assert len(lane.queue) >= limits.READ_AHEAD
    assert lane.queue[0].offset() == 3 * limits.READ_AHEAD - one.lag()["events", 0]
    one.stop()


def test_reader_reads_past_other_partitions_to_awaited_records() -> None:
    kafka = FakeKafka(events=2)
    for _ in range(3 * limits.READ_AHEAD):
        kafka.append("events", 0, b"")
    kafka.append("events", 1, b"")
    one = reader(kafka)
    backlog, awaited = add(one, "events", 0), add(one, "events", 1)
    read_until_full(one)
    assert (len(awaited.queue), len(backlog.queue) < 2 * limits.READ_AHEAD) == (0, True)
    awaited.waiting_queries.add(7)
    read_until_full(one)
    assert len(awaited.queue) == 1
    one.stop()


def test_partition_removed_at_its_limit_is_read_after_its_return() -> None:
    kafka = FakeKafka(events=1)
    for _ in range(4 * limits.PAUSE_RECORDS):
        kafka.append("events", 0, b"")
    one = reader(kafka)
    limited = Lane("events", 0, 0, 4 * limits.PAUSE_RECORDS, stop_offset=1)
    one.add(limited)
    read_until_full(one)
    assert limited.paused
    one.remove(limited)
    again = Lane("events", 0, 0, 4 * limits.PAUSE_RECORDS)
    one.add(again)
    read_until_full(one)
    assert len(again.queue) >= limits.READ_AHEAD
    one.stop()


@pytest.mark.parametrize("partitions", [1, 4])
def test_fewer_large_records_are_read_ahead(partitions: int) -> None:
    large = b"x" * (limits.READ_AHEAD_BYTES // 50)
    kafka = FakeKafka(events=partitions)
    for number in range(200):
        kafka.append("events", number % partitions, large, b"key", append_ms=1_000)
    one = reader(kafka)
    kafka.consumers[0].most = 5  # librdkafka has its own bound of what it holds
    lanes = [add(one, "events", number, 200) for number in range(partitions)]
    read_until_full(one)
    assert limits.READ_AHEAD_BYTES <= sum(lane.queued_bytes() for lane in lanes) <= limits.READ_AHEAD_BYTES * 2
    for lane in lanes:
        lane.queue.clear()
        lane.delivered_bytes = lane.read_bytes
    read_until_full(one)
    assert sum(lane.queued_bytes() for lane in lanes) >= limits.READ_AHEAD_BYTES
    one.stop()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError._AUTO_OFFSET_RESET, "the next record .* is gone from the topic"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "create the topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant the right"), (KafkaError._BAD_MSG, "cannot be read"),
    ],
)  # fmt: skip
def test_an_error_for_good_stops_the_source(make_scheduler: MakeScheduler, code: int, says: str) -> None:
    kafka = FakeKafka(events=1)
    scheduler = make_scheduler(new_consumer=kafka.consumer)
    add(scheduler.memories, "events")
    kafka.fail("events", 0, code)
    with pytest.raises(SourceError, match=says):
        scheduler.memories.read()
    scheduler.memories.start()
    kafka.fail("events", 0, code)
    assert scheduler.wake.wait(30)
    with pytest.raises(SourceError, match=says):
        scheduler.begin()


def test_a_reader_thread_that_fails_of_itself_stops_the_source(make_scheduler: MakeScheduler) -> None:
    kafka = FakeKafka(events=1)
    scheduler = make_scheduler(new_consumer=kafka.consumer)
    lane = add(scheduler.memories, "events")
    lane.queue = None  # as a defect of ours would leave it
    kafka.append("events", 0, b"")
    scheduler.memories.start()
    assert scheduler.wake.wait(30)
    with pytest.raises(TypeError):
        scheduler.begin()


def test_an_error_that_passes_is_counted_and_read_over() -> None:
    kafka = FakeKafka(events=1)
    one = reader(kafka)
    lane = add(one, "events")
    kafka.fail("events", 0, KafkaError._TRANSPORT)
    kafka.append("events", 0, b"after")
    one.read()
    assert (one.retried, [message.value() for message in lane.queue]) == (1, [b"after"])
    one.stop()


class RegistryAway:
    def __init__(self, *errors: SourceError) -> None:
        self.errors = [*errors]

    def open(self, message: Any) -> None:
        if message.value() == b"\0registered" and self.errors:
            raise self.errors.pop(0)


def test_unavailable_registry_stops_one_partition_before_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, now_s = FakeKafka(m=2), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for number, values in enumerate(([b"{}", b"\0registered", b"{}"], [b"{}", b"{}"])):
        for value in values:
            kafka.append("m", number, value)
    reader = LaneReader("memories", NOWHERE, threading.Event(), kafka.consumer)
    reader._registry = RegistryAway(RegistryUnavailable("away"), RegistryUnavailable("away"))  # type: ignore[assignment]
    lanes = [add(reader, "m", number) for number in range(2)]
    for _ in range(3):
        reader.read()
    assert [lane.reached for lane in lanes] == [1, 2]
    for expected in (1, 3):  # the second attempt fails as well
        now_s[0] += RETRY_S
        for _ in range(3):
            reader.read()
        assert lanes[0].reached == expected
    reader.stop()
    assert [message.offset() for message in lanes[0].queue] == [0, 1, 2]


def test_reader_that_ended_with_an_error_keeps_it() -> None:
    consumer = Mock(poll=Mock(side_effect=ValueError))
    reader = LaneReader("memories", NOWHERE, threading.Event(), lambda _: consumer)
    reader.start()
    reader._thread.join()
    reader.start()
    assert isinstance(reader.error, ValueError)
