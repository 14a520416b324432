"""The sink over a fake client: checked deliveries, refusals, and what was delivered before a crash."""

import pytest
from confluent_kafka import KafkaError

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import sender, sink
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER, Identity, Outgoing
from recallflow.connectors.kafka.patience import OUTAGE_S
from recallflow.connectors.kafka.sink import Delivered, KafkaSink, SinkPart
from recallflow.errors import SinkError
from tests.unit.connectors.fake_kafka import FakeProducer

TOPIC = "recall.responses"
PART = f"{TOPIC}:00000"


class Broker:
    """One producer, and a partition's tail as the next part to be built will find it."""

    def __init__(self) -> None:
        self.producer = FakeProducer()
        self.tail: list[Identity] = []
        self.end = 0
        self.asked_from: list[object] = []

    def connect(self, options: dict[str, object]) -> FakeProducer:
        self.producer.options = options
        return self.producer

    def read_tail(self, *asked: object) -> tuple[list[Identity], int]:
        self.asked_from.append(asked[3])
        return self.tail, self.end


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(sender, "Producer", made.connect)
    monkeypatch.setattr(sink, "read_tail", made.read_tail)
    return made


def build(resumed: Delivered | None = None, outage_s: float = OUTAGE_S, closing: Closing | None = None) -> SinkPart:
    kafka = KafkaSink(
        KafkaOptions("nowhere:1"),
        partitions={TOPIC: 1},
        begin={PART: 3},
        ids={TOPIC: "id"},
        most_bytes={TOPIC: 50_000, "dead.letters": 20_000},
        sources=("query.events",),
        outage_s=outage_s,
        closing=closing,
    )
    return kafka.build_part("outputs", PART, resumed)


def output(number: int, instead: bool = False) -> Outgoing:
    made = Outgoing(f"query.events:0:{number}", 0, b"acme/ann", b"answer %d" % number)
    if not instead:
        return made
    return Outgoing(
        made.source, 0, made.key, made.value, instead=lambda why: Outgoing(made.source, 0, made.key, why.encode())
    )


def sent(broker: Broker) -> list[bytes | None]:
    return [record.value for record in broker.producer.log]


def test_an_output_carries_its_identity_and_a_snapshot_waits_for_it(broker: Broker) -> None:
    part = build()
    part.write_batch([output(1), output(2)])
    assert part.snapshot() == Delivered(2, (), "id")
    assert sent(broker) == [b"answer 1", b"answer 2"]
    assert broker.producer.log[0].headers == {SOURCE_HEADER: b"query.events:0:1", NUMBER_HEADER: b"0"}
    assert broker.asked_from == [3]  # where the topic ended when the state directory was new


def test_what_the_tail_holds_is_not_sent_again_however_many_snapshots_later(broker: Broker) -> None:
    broker.tail, broker.end = [output(n).identity for n in (1, 2, 3)], 40
    part = build(Delivered(37, (), "id"))
    part.write_batch([output(1)])
    kept = part.snapshot()
    assert kept == Delivered(40, (output(2).identity, output(3).identity), "id")
    # A kill: what was there is behind the snapshot's offset now, and the dataflow has not come by it again.
    broker.tail = []
    part = build(kept)
    part.write_batch([output(2), output(4)])
    kept = part.snapshot()
    assert kept.unclaimed == (output(3).identity,)
    part = build(kept)
    part.write_batch([output(3), output(5)])
    assert part.snapshot().unclaimed == ()
    assert sent(broker) == [b"answer 4", b"answer 5"]
    assert broker.asked_from == [37, 40, 40]


def test_the_same_identity_twice_is_sent_the_second_time(broker: Broker) -> None:
    broker.tail = [output(1).identity]
    part = build()
    part.write_batch([output(1), output(1)])
    part.snapshot()
    assert sent(broker) == [b"answer 1"]


def test_what_others_sent_to_the_topic_is_not_remembered(broker: Broker) -> None:
    """Another flow's outputs never come by here: they would be in every snapshot for ever."""
    broker.tail = [output(1).identity, (b"enrichment.results:0:1", b"0"), (b"query.events:1:9", b"0")]
    part = build()
    assert part.snapshot().unclaimed == (output(1).identity, (b"query.events:1:9", b"0"))


def test_a_full_queue_is_waited_for(broker: Broker) -> None:
    broker.producer.room = 2
    part = build()
    part.write_batch([output(n) for n in range(7)])
    part.snapshot()
    assert sent(broker) == [b"answer %d" % n for n in range(7)]


def test_a_failed_delivery_stops_the_flow(broker: Broker) -> None:
    broker.producer.fails[b"answer 1"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    part = build()
    part.write_batch([output(1), output(2)])
    with pytest.raises(SinkError, match="was not delivered"):
        part.snapshot()
    with pytest.raises(SinkError, match="was not delivered"):
        part.write_batch([output(3)])


def test_the_first_failure_is_the_one_that_is_told_wherever_it_shows(broker: Broker) -> None:
    broker.producer.fails[b"answer 1"] = [KafkaError(KafkaError._UNKNOWN_PARTITION)]
    broker.producer.fails[b"answer 2"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    closing = Closing()
    part = build(closing=closing)
    part.write_batch([output(1), output(2)])
    part.close()  # Bytewax closes parts while an error is on its way, and a second one would abort the process
    for told in (closing.check, part.snapshot, lambda: part.write_batch([output(3)])):
        with pytest.raises(SinkError, match=rf"^{TOPIC}:0: a record was not delivered: .*[Uu]nknown partition"):
            told()


def test_what_is_not_acknowledged_in_time_stops_the_flow(broker: Broker) -> None:
    broker.producer.stuck = True
    part = build(outage_s=0.0)
    part.write_batch([output(1)])
    with pytest.raises(SinkError, match="1 records were not acknowledged"):
        part.snapshot()


def test_a_refused_batch_is_sent_again_one_by_one(broker: Broker) -> None:
    for number in (1, 2):
        broker.producer.fails[b"answer %d" % number] = [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)]
    part = build()
    part.write_batch([output(1), output(2), output(3)])
    assert part.snapshot() == Delivered(3, (), "id")
    assert sorted(filter(None, sent(broker))) == [b"answer 1", b"answer 2", b"answer 3"]


@pytest.mark.parametrize(
    "code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD]
)
def test_what_is_refused_alone_too_is_replaced(broker: Broker, caplog: pytest.LogCaptureFixture, code: int) -> None:
    broker.producer.fails[b"answer 1"] = [KafkaError(code)] * 2
    broker.producer.fails[b"answer 2"] = [KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)]
    part = build()
    part.write_batch([output(1, instead=True), output(2, instead=True)])
    part.snapshot()
    assert sent(broker) == [KafkaError(code).str().encode(), b"answer 2"]
    assert broker.producer.log[0].headers == {SOURCE_HEADER: b"query.events:0:1", NUMBER_HEADER: b"0"}
    assert "an output of query.events:0:1 was refused" in caplog.text


def test_what_nothing_can_replace_is_left_out_and_said(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    why = KafkaError(KafkaError.INVALID_RECORD)
    broker.producer.fails |= {b"answer 1": [why] * 2, why.str().encode(): [why]}
    part = build()
    part.write_batch([output(1, instead=True), output(2)])
    part.snapshot()
    assert sent(broker) == [b"answer 2"]
    assert "is left out" in caplog.text


def test_the_producer_takes_what_the_largest_topic_takes_and_batches_what_the_smallest_does(broker: Broker) -> None:
    build()
    assert broker.producer.options["message.max.bytes"] == 50_000
    assert broker.producer.options["batch.size"] == 20_000
