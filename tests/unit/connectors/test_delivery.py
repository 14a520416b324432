"""The sink of a member: no output twice, and marks are reported once everything before them is delivered."""

import threading
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from recallflow.connectors.kafka import sender
from recallflow.connectors.kafka.delivery import Delivery, DeliverySink, EarlierOutputs, OutputSender, ToSend
from recallflow.connectors.kafka.messages import NUMBER_HEADER, SOURCE_HEADER, Outgoing
from recallflow.errors import MembershipLost, SinkError
from recallflow.kafka_options import KafkaOptions
from recallflow.outputs import Marked
from recallflow.process import OUTAGE_S, Closing
from tests.unit.connectors.fake_kafka import FakeProducer


def to_send(offset: int) -> ToSend:
    return ToSend("responses", 3, Outgoing(f"queries:0:{offset}", 0, b"key", b"{}"))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()

    def connect(options: dict[str, object]) -> FakeProducer:
        made.options = options
        return made

    monkeypatch.setattr(sender, "Producer", connect)
    return made


def sending(stopping: threading.Event | None = None, closing: Closing | None = None) -> Delivery:
    made = DeliverySink(
        KafkaOptions("nowhere:1"),
        most_bytes={"responses": 50_000},
        sent=EarlierOutputs(),
        marked=lambda _: None,
        stopping=stopping,
        closing=closing,
    )
    return made.build()


@pytest.mark.parametrize(
    ("code", "stops", "error"),
    [
        (KafkaError._MSG_TIMED_OUT, False, MembershipLost),
        (KafkaError._MSG_TIMED_OUT, True, SinkError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, SinkError),
    ],
)
def test_failed_output_ends_membership_or_the_process(
    producer: FakeProducer, code: int, stops: bool, error: type[Exception]
) -> None:
    stopping = threading.Event()
    if stops:
        stopping.set()
    producer.fails[b"{}"] = [KafkaError(code)]
    with pytest.raises(error) as raised:
        sending(stopping).write_batch([to_send(1), Marked(0, 0, {}, True, lambda: True)])
    assert type(raised.value) is error


def test_closed_sink_sends_nothing_after_an_expired_output(producer: FakeProducer) -> None:
    producer.fails[b"{}"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    closing = Closing()
    to = sending(closing=closing)
    producer.stuck = True
    to.write_batch([to_send(1), to_send(2), to_send(3), to_send(4)])
    producer.acknowledge()
    producer.stuck, producer.in_flight = False, 1
    to.close()
    assert [record.headers["recallflow-source"] for record in producer.log] == [b"queries:0:2"]
    assert not producer.queue
    with pytest.raises(MembershipLost):
        closing.check()


def output_sender(outage_s: float = OUTAGE_S) -> OutputSender:
    sizes = {"responses": 50_000, "dead.letters": 20_000}
    return OutputSender(KafkaOptions("nowhere:1"), sizes, lambda _: None, outage_s, threading.Event())


def answer(number: int, *, has_stand_in: bool = False) -> ToSend:
    made = Outgoing(f"queries:0:{number}", 0, b"acme/ann", b"answer %d" % number)
    if has_stand_in:
        made = replace(made, instead=lambda why: Outgoing(made.source, 0, made.key, why.encode()))
    return ToSend("responses", 0, made)


def deliver(*items: ToSend, outage_s: float = OUTAGE_S) -> None:
    made = output_sender(outage_s)
    for item in items:
        made.deliver(item)
    made.poll_outputs()
    made.flush_outputs()


def sent(producer: FakeProducer) -> list[bytes | None]:
    return [record.value for record in producer.log]


def test_an_output_carries_its_identity(producer: FakeProducer) -> None:
    deliver(answer(1))
    assert producer.log[0].headers == {SOURCE_HEADER: b"queries:0:1", NUMBER_HEADER: b"0"}


def test_a_full_queue_is_waited_for(producer: FakeProducer) -> None:
    producer.room = 2
    deliver(*map(answer, range(7)))
    assert sent(producer) == [b"answer %d" % n for n in range(7)]


def test_first_failed_delivery_is_the_error_of_every_call(producer: FakeProducer) -> None:
    producer.fails[b"answer 1"] = [KafkaError(KafkaError._UNKNOWN_PARTITION)]
    producer.fails[b"answer 2"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    made = output_sender()
    made.deliver(answer(1))
    made.deliver(answer(2))
    for call in (made.flush_outputs, made.poll_outputs, lambda: made.deliver(answer(3))):
        with pytest.raises(SinkError, match=r"^responses:0: a record was not delivered: .*[Uu]nknown partition"):
            call()


def test_an_output_without_acknowledgement_stops_the_flow(producer: FakeProducer) -> None:
    producer.stuck = True
    with pytest.raises(SinkError, match="1 records were not acknowledged"):
        deliver(answer(1), outage_s=0.0)


def test_a_refused_batch_is_sent_again_one_by_one(producer: FakeProducer) -> None:
    for number in (1, 2):
        producer.fails[b"answer %d" % number] = [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)]
    deliver(answer(1), answer(2), answer(3))
    assert sorted(filter(None, sent(producer))) == [b"answer 1", b"answer 2", b"answer 3"]


@pytest.mark.parametrize(
    "code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD]
)
def test_output_refused_alone_is_replaced(producer: FakeProducer, caplog: pytest.LogCaptureFixture, code: int) -> None:
    producer.fails[b"answer 1"] = [KafkaError(code)] * 2
    producer.fails[b"answer 2"] = [KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)]
    deliver(answer(1, has_stand_in=True), answer(2, has_stand_in=True))
    assert sent(producer) == [KafkaError(code).str().encode(), b"answer 2"]
    assert producer.log[0].headers == {SOURCE_HEADER: b"queries:0:1", NUMBER_HEADER: b"0"}
    assert "an output of queries:0:1 was refused" in caplog.text


def test_output_with_refused_stand_in_is_left_out(producer: FakeProducer, caplog: pytest.LogCaptureFixture) -> None:
    why = KafkaError(KafkaError.INVALID_RECORD)
    producer.fails |= {b"answer 1": [why] * 2, why.str().encode(): [why]}
    deliver(answer(1, has_stand_in=True), answer(2))
    assert sent(producer) == [b"answer 2"]
    assert "is left out" in caplog.text


def test_sizes_follow_the_largest_topic_and_batches_the_smallest(producer: FakeProducer) -> None:
    output_sender()
    assert producer.options["message.max.bytes"] == 50_000
    assert producer.options["batch.size"] == 20_000
