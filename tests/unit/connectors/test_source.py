"""The source over a Kafka in this process: what comes out of its parts, in what order, and from where on."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.hub import IN_FLIGHT_MAX, Hub
from recallflow.connectors.kafka.order import Place
from recallflow.connectors.kafka.source import BATCH_BYTES, KafkaPart, KafkaSource, Offsets, Progress
from recallflow.errors import SourceError
from recallflow.records import Record
from tests.unit.connectors.fake_consumer import FakeKafka

MEMORIES, QUERIES = "memories", "queries"


class Flow:
    """A source, its parts, and what was taken of them."""

    def __init__(self, kafka: FakeKafka, parts: int = 2, begin: dict[str, int] | None = None, **more: Any) -> None:
        self.kafka = kafka
        self.progress = Progress()
        self.source = KafkaSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            progress=self.progress,
            begin=begin if begin is not None else {f"{QUERIES}:{n:05d}": 0 for n in range(2)},
            parts=parts,
            new_consumer=kafka.consumer,
            **more,
        )
        self.parts: list[KafkaPart] = []

    def start(self, resume: dict[str, Offsets] | None = None) -> "Flow":
        names = self.source.list_parts()
        self.parts = [self.source.build_part("records", name, (resume or {}).get(name)) for name in names]
        return self

    def taken(self) -> list[Record]:
        """All there is, as it comes; each batch goes through the state before the next is asked for."""
        records = [record for part in self.parts for record in self.batch(part)]  # … and takes over what was added
        lanes = [entry for reader in self.source.readers() for entry in reader.lanes.items()]
        self.kafka.await_(lambda: all(lane.reached == self.kafka.end(*part) for part, lane in lanes))
        while batch := [record for part in self.parts for record in self.batch(part)]:
            records += batch
        return records

    def batch(self, part: KafkaPart) -> list[Record]:
        batch = part.next_batch()
        for record in batch:
            self.progress.done(record.position.topic, 1)
        return batch

    def snapshots(self) -> dict[str, Offsets]:
        return {f"{number:05d}": part.snapshot() for number, part in enumerate(self.parts)}

    def close(self) -> None:
        for part in self.parts:
            part.close()


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka(**{MEMORIES: 2, QUERIES: 2})


@pytest.fixture
def flows() -> Iterator[list[Flow]]:
    made: list[Flow] = []
    yield made
    for flow in made:
        flow.close()


def names(records: list[Record]) -> list[str]:
    return [record.value.decode() for record in records]


def found(**partitions: int) -> dict[str, Described]:
    return {topic: Described("id", count) for topic, count in partitions.items()}


def test_queries_come_before_memories_and_records_as_they_are(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.append(MEMORIES, 0, b"m", b"acme/ann", append_ms=70)
    kafka.append(QUERIES, 0, b"q", b"acme/ann", append_ms=80)
    flows.append(flow := Flow(kafka, parts=1).start())
    records = flow.taken()
    assert names(records) == ["q", "m"]
    assert str(records[1].position) == "memories:0:0"
    assert (records[1].key, records[1].append_ms, records[1].silent) == (b"acme/ann", 70, False)


def test_a_null_value_is_an_empty_one(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.append(MEMORIES, 1, None)
    flows.append(flow := Flow(kafka).start())
    assert [record.value for record in flow.taken()] == [b""]


def test_a_part_goes_on_where_its_snapshot_was(kafka: FakeKafka, flows: list[Flow]) -> None:
    for name in (b"a", b"b"):
        kafka.append(MEMORIES, 1, name, append_ms=5)
    flows.append(flow := Flow(kafka).start())
    flow.taken()
    kafka.append(MEMORIES, 1, b"c", append_ms=6)
    kafka.append(QUERIES, 0, b"q")
    flows.append(again := Flow(kafka).start(flow.snapshots()))
    assert sorted(names(again.taken())) == ["c", "q"]
    assert again.source.first_offsets == {"memories:0": 0, "memories:1": 2, "queries:0": 0, "queries:1": 0}


def test_offsets_may_have_gaps(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.append(MEMORIES, 0, b"a", at=3)
    kafka.append(MEMORIES, 0, b"b", at=9)
    flows.append(flow := Flow(kafka).start())
    assert names(flow.taken()) == ["a", "b"]
    assert flow.snapshots()["00000"]["memories:0"] == Place(10)


def test_queries_begin_where_the_topic_ended_and_those_of_later_partitions_at_the_beginning(
    kafka: FakeKafka, flows: list[Flow]
) -> None:
    for partition, name in ((0, b"old"), (0, b"new"), (1, b"added")):
        kafka.append(QUERIES, partition, name)
    flows.append(flow := Flow(kafka, begin={f"{QUERIES}:00000": 1}).start())
    assert sorted(names(flow.taken())) == ["added", "new"]


def test_what_is_read_again_comes_out_silent(kafka: FakeKafka, flows: list[Flow]) -> None:
    for name in (b"a", b"b", b"c", b"d"):
        kafka.append(MEMORIES, 0, name)
    flows.append(flow := Flow(kafka, rewind={"memories:0": 1}).start({"00000": Offsets({"memories:0": Place(3, 0)})}))
    records = flow.taken()
    assert [(record.value, record.silent) for record in records] == [(b"b", True), (b"c", True), (b"d", False)]
    # A kill on the way there does not make them loud.
    halfway = {"00000": Offsets({"memories:0": Place(2, 3)})}
    flows.append(again := Flow(kafka).start(halfway))
    assert [(record.value, record.silent) for record in again.taken()] == [(b"c", True), (b"d", False)]


def test_a_stop_ends_every_part(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.append(MEMORIES, 0, b"a")
    flows.append(flow := Flow(kafka).start())
    assert flow.source.ready()
    flow.source.stopping.set()
    assert not flow.source.ready()
    for part in flow.parts:
        with pytest.raises(StopIteration):
            part.next_batch()


def test_a_part_that_fails_to_close_says_so_later(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytewax closes parts while an error is on its way, and a second one would abort the process."""
    closing = Closing()
    flow = Flow(kafka, closing=closing).start()

    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    flow.close()
    monkeypatch.setattr(Hub, "remove_part", lambda _: fail())
    flow.close()
    with pytest.raises(KafkaException):
        closing.check()


def test_what_is_gone_from_a_topic_is_named(kafka: FakeKafka) -> None:
    kafka.topics[MEMORIES][0].low = kafka.topics[MEMORIES][0].end = 7
    with pytest.raises(SourceError, match=r"memories:0: 4 records from offset 3 on are gone"):
        Flow(kafka).start({"00000": Offsets({"memories:0": Place(3, 0)})})


def test_a_topic_that_ends_before_our_place_was_made_anew(kafka: FakeKafka) -> None:
    with pytest.raises(SourceError, match="made anew"):
        Flow(kafka).start({"00000": Offsets({"memories:0": Place(3, 0)})})


def test_no_more_is_given_than_the_state_is_done_with(kafka: FakeKafka, flows: list[Flow]) -> None:
    for _ in range(IN_FLIGHT_MAX + 500):
        kafka.append(MEMORIES, 0, b"m")
    flows.append(flow := Flow(kafka, parts=1).start())
    given = 0
    while given < IN_FLIGHT_MAX:
        given += len(flow.parts[0].next_batch())
    assert flow.parts[0].next_batch() == []
    assert (given, flow.progress.in_flight()) == (IN_FLIGHT_MAX, IN_FLIGHT_MAX)


# ---------------------------------------------------------------------- growth


def test_added_partitions_are_read_by_the_parts_there_are(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.append(MEMORIES, 0, b"a")
    flows.append(flow := Flow(kafka).start())
    assert names(flow.taken()) == ["a"]
    for topic, partition, name in ((MEMORIES, 2, b"b"), (MEMORIES, 3, b"c"), (QUERIES, 2, b"q")):
        kafka.grow(topic, partition + 1)
        kafka.append(topic, partition, name)
    flow.source.grow(found(memories=4, queries=3))
    assert sorted(names(flow.taken())) == ["b", "c", "q"]
    flow.source.grow(found(memories=4, queries=3))
    assert flow.taken() == []

    resumed = flow.snapshots()
    places = {source: place[:2] for source, place in resumed["00000"].items()}
    assert places == {"queries:0": (0, 0), "memories:0": (1, 0), "memories:2": (1, 0), "queries:2": (1, 0)}
    kafka.append(MEMORIES, 3, b"d")
    flows.append(again := Flow(kafka).start(resumed))
    assert len(again.parts) == 2  # as when the directory was new: their places are kept under their names
    assert names(again.taken()) == ["d"]


def test_an_added_partition_that_cannot_be_asked_about_is_found_at_the_next_look(
    kafka: FakeKafka, flows: list[Flow], monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.append(flow := Flow(kafka).start())
    kafka.grow(MEMORIES, 3)
    kafka.append(MEMORIES, 2, b"a")
    with monkeypatch.context() as away:
        away.setattr(KafkaSource, "_lane", unreachable)
        flow.source.grow(found(memories=3, queries=2))
    assert flow.taken() == []
    flow.source.grow(found(memories=3, queries=2))
    assert names(flow.taken()) == ["a"]


def unreachable(*_: object) -> None:
    raise SourceError("cannot reach Kafka")


def test_an_owner_who_changes_partition_keeps_the_order_of_the_log(kafka: FakeKafka, flows: list[Flow]) -> None:
    kafka.grow(MEMORIES, 3)
    for partition, name, append_ms in ((2, b"3", 300), (1, b"1", 100), (0, b"2", 200), (1, b"4", 400)):
        kafka.append(MEMORIES, partition, name, b"acme/mover", append_ms=append_ms)
    flows.append(flow := Flow(kafka).start())
    assert names(flow.taken()) == ["1", "2", "3", "4"]


def test_what_another_directory_sent_outputs_for_comes_out_silent(kafka: FakeKafka, flows: list[Flow]) -> None:
    for number in range(6):
        kafka.append(MEMORIES, number % 2, b"%d" % number, append_ms=number)
    flows.append(Flow(kafka, sent={f"{MEMORIES}:0": 2}).start())
    taken = flows[-1].taken()
    assert [record.silent for record in taken] == [record.value in (b"0", b"2") for record in taken]
    flows.append(Flow(kafka).start(flows[-1].snapshots()))  # a snapshot keeps it
    assert all(part.snapshot()[f"{MEMORIES}:0"][:2] == (3, 3) for part in flows[-1].parts[:1])


@pytest.mark.parametrize("topic", [MEMORIES, QUERIES])
def test_a_batch_of_large_records_is_short(kafka: FakeKafka, flows: list[Flow], topic: str) -> None:
    for _ in range(9):
        kafka.append(topic, 0, b"x" * (BATCH_BYTES // 3))
    flows.append(Flow(kafka).start())
    flow = flows[-1]
    lane = next(one.lanes[topic, 0] for one in flow.source.readers() if (topic, 0) in one.lanes)
    kafka.await_(lambda: lane.held() == 9)
    sizes: list[int] = []
    while sum(sizes) < 9:
        if batch := flow.batch(flow.parts[0]):
            sizes.append(len(batch))
    assert max(sizes) <= 4
    assert lane.held_bytes() == 0


def asked(kafka: FakeKafka, text: str, append_ms: int = 0) -> None:
    """Appends queries, each a tenant's: `a1 a2 b1`."""
    for word in text.split():
        kafka.append(QUERIES, 0, word.encode(), word[:1].encode() + b"/ann", append_ms=append_ms)


def test_tenants_that_ask_in_one_partition_have_turns(kafka: FakeKafka, flows: list[Flow]) -> None:
    asked(kafka, "a1 a2 a3 a4 b1 b2 c1")
    flows.append(flow := Flow(kafka, in_turn=True).start())
    assert names(flow.taken()) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert flow.snapshots()["00000"]["queries:0"] == Place(7)


def test_what_was_given_before_its_turn_is_given_once_more_silently(
    kafka: FakeKafka, flows: list[Flow], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(kafka, "a1 a2 a3 a4 b1")
    monkeypatch.setattr(Hub, "queries_allowed", lambda _: 2)
    flows.append(flow := Flow(kafka, parts=1, in_turn=True).start())
    kafka.await_(lambda: len(flow.source.readers()[0].lanes[QUERIES, 0].queue) == 5)
    assert names(flow.batch(flow.parts[0])) == ["a1", "b1"]
    snapshots = flow.snapshots()
    assert snapshots["00000"]["queries:0"] == Place(1, ahead=(4,))
    flows.append(again := Flow(kafka, parts=1, in_turn=True).start(snapshots))
    kafka.await_(lambda: len(again.source.readers()[0].lanes[QUERIES, 0].queue) == 4)
    batch = again.batch(again.parts[0])
    assert [(record.value, record.silent) for record in batch] == [(b"a2", False), (b"b1", True)]
    flows.append(third := Flow(kafka, parts=1, in_turn=True).start(again.snapshots()))
    assert [(record.value, record.silent) for record in third.taken()] == [
        (b"a3", False),
        (b"b1", True),
        (b"a4", False),
    ]
    assert third.snapshots()["00000"]["queries:0"].next_offset == 5


@pytest.mark.parametrize("topic", [MEMORIES, QUERIES])
def test_the_second_at_hand_is_read_again_silently_where_somebody_counts(
    kafka: FakeKafka, flows: list[Flow], topic: str
) -> None:
    for number, append_ms in enumerate((900, 1_000, 1_001, 1_002, 1_999, 2_000)):
        kafka.append(topic, 0, b"%d" % number, b"acme/ann", append_ms=append_ms)
    resumed = {"00000": Offsets({f"{topic}:0": Place(4, since_ms=1_002)})}
    flows.append(flow := Flow(kafka, parts=1, in_turn=True, counts=lambda: True).start(resumed))
    taken = [(record.value, record.silent) for record in flow.taken()]
    assert taken == [(b"1", True), (b"2", True), (b"3", True), (b"4", False), (b"5", False)]
    flows.append(flow := Flow(kafka, parts=1, in_turn=True).start(resumed))
    assert names(flow.taken()) == ["4", "5"]


def test_a_second_is_not_read_again_from_before_the_first_query_of_a_directory(
    kafka: FakeKafka, flows: list[Flow]
) -> None:
    asked(kafka, "a1 a2 a3 a4", append_ms=1_500)
    resumed = {"00000": Offsets({"queries:0": Place(3, since_ms=1_500)})}
    begin = {f"{QUERIES}:00000": 2}
    flows.append(flow := Flow(kafka, parts=1, begin=begin, in_turn=True, counts=lambda: True).start(resumed))
    assert [(record.value, record.silent) for record in flow.taken()] == [(b"a3", True), (b"a4", False)]


def test_what_a_rewind_reads_again_begins_with_its_second(kafka: FakeKafka, flows: list[Flow]) -> None:
    for number, append_ms in enumerate((900, 1_000, 1_500, 3_000, 4_000)):
        kafka.append(MEMORIES, 0, b"%d" % number, append_ms=append_ms)
    resumed = {"00000": Offsets({"memories:0": Place(4, since_ms=3_000)})}
    flows.append(flow := Flow(kafka, parts=1, rewind={"memories:0": 2}, counts=lambda: True).start(resumed))
    assert names(flow.taken()) == ["1", "2", "3", "4"]


def test_producers_times_have_nothing_read_again(kafka: FakeKafka, flows: list[Flow]) -> None:
    for number in range(3):
        kafka.append(MEMORIES, 0, b"%d" % number, append_ms=1_500, logged=False)
    flows.append(flow := Flow(kafka, parts=1).start())
    flow.taken()
    kafka.append(MEMORIES, 0, b"3", append_ms=1_500, logged=False)
    flows.append(again := Flow(kafka, parts=1, counts=lambda: True).start(flow.snapshots()))
    assert names(again.taken()) == ["3"]
