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

    def __init__(self, kafka: FakeKafka, parts: int = 2, **more: Any) -> None:
        self.kafka = kafka
        self.progress = Progress()
        self.source = KafkaSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            progress=self.progress,
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
        lanes = [lane for part in self.parts for lane in (*part._queries, *part._memories)]
        self.kafka.await_(lambda: all(lane.reached == self.kafka.end(lane.topic, lane.number) for lane in lanes))
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
    lane = next(one for one in (*flow.parts[0]._queries, *flow.parts[0]._memories) if one.topic == topic)
    kafka.await_(lambda: lane.held() == 9)
    sizes: list[int] = []
    while sum(sizes) < 9:
        if batch := flow.batch(flow.parts[0]):
            sizes.append(len(batch))
    assert max(sizes) <= 4
    assert lane.held_bytes() == 0
