"""Outputs on their way to topics and callers: the sink, publishers, ends of topics, and outcomes."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors import local_inputs
from recallflow.connectors.kafka import cluster, sender
from recallflow.connectors.kafka.admin import TopicConfig
from recallflow.connectors.kafka.cluster import SKEW_MS, EndOffsetPoller, earliest, read_tails
from recallflow.connectors.kafka.messages import NUMBER_HEADER, RECORD_OVERHEAD_BYTES, SOURCE_HEADER, Letter, Outgoing
from recallflow.connectors.kafka.partition import TopicOffsets
from recallflow.connectors.kafka.sender import DeliverySink, EarlierOutputs, OutputSender, Publisher, ToSend
from recallflow.connectors.kafka.service import EARLY_MAX, Expected, ExpectedOutcomes
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.local_inputs import LocalCalls
from recallflow.errors import MembershipLost, SinkError, SourceError
from recallflow.kafka_options import KafkaOptions
from recallflow.outputs import OutputBarrier
from recallflow.process import OUTAGE_S, CloseErrors
from recallflow.records import Position
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.connectors.fake_kafka import FakeProducer


def to_send(offset: int) -> ToSend:
    return ToSend("responses", 3, Outgoing(f"queries:0:{offset}", 0, b"key", b"{}"))


@pytest.fixture(autouse=True)
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()

    def connect(options: dict[str, object]) -> FakeProducer:
        made.options = options
        return made

    monkeypatch.setattr(sender, "Producer", connect)
    return made


def sending(stopping: threading.Event | None = None, closing: CloseErrors | None = None) -> DeliverySink:
    to = output_sender(stopping=stopping)
    return DeliverySink(to, EarlierOutputs(), lambda _: None, closing or CloseErrors())


@pytest.mark.parametrize(
    ("code", "stops", "error"),
    [
        (KafkaError._MSG_TIMED_OUT, False, MembershipLost), (KafkaError._MSG_TIMED_OUT, True, SinkError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, SinkError),
    ],
)  # fmt: skip
def test_failed_output_ends_membership_or_the_process(
    producer: FakeProducer, code: int, stops: bool, error: type[Exception]
) -> None:
    stopping = threading.Event()
    if stops:
        stopping.set()
    producer.fails[b"{}"] = [KafkaError(code)]
    with pytest.raises(error) as raised:
        sending(stopping).write_batch([to_send(1), OutputBarrier(0, 0, {}, True, lambda: True)])
    assert type(raised.value) is error


def test_closed_sink_sends_nothing_after_an_expired_output(producer: FakeProducer) -> None:
    producer.fails[b"{}"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    closing = CloseErrors()
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


def output_sender(outage_s: float = OUTAGE_S, stopping: threading.Event | None = None) -> OutputSender:
    sizes, stopping = {"responses": 50_000, "dead.letters": 20_000}, stopping or threading.Event()
    return OutputSender(KafkaOptions("nowhere:1"), sizes, lambda _: None, outage_s, stopping)


def answer(number: int, *, has_replacement: bool = False) -> ToSend:
    made = Outgoing(f"queries:0:{number}", 0, b"acme/ann", b"answer %d" % number)
    if has_replacement:
        made = replace(made, replacement=lambda why: Outgoing(made.source, 0, made.key, why.encode()))
    return ToSend("responses", 0, made)


def deliver(*items: ToSend, outage_s: float = OUTAGE_S) -> None:
    made = output_sender(outage_s)
    for item in items:
        made.deliver(item)
    made.poll_outputs()
    made.flush_outputs()


def sent(producer: FakeProducer) -> list[bytes | None]:
    return [record.value for record in producer.log]


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
    with pytest.raises(MembershipLost, match="1 records were not acknowledged"):
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
    deliver(answer(1, has_replacement=True), answer(2, has_replacement=True))
    assert sent(producer) == [KafkaError(code).str().encode(), b"answer 2"]
    assert producer.log[0].headers == {SOURCE_HEADER: b"queries:0:1", NUMBER_HEADER: b"0"}
    assert "an output of queries:0:1 was refused" in caplog.text


def test_output_with_refused_replacement_is_left_out(producer: FakeProducer, caplog: pytest.LogCaptureFixture) -> None:
    why = KafkaError(KafkaError.INVALID_RECORD)
    producer.fails |= {b"answer 1": [why] * 2, why.str().encode(): [why]}
    deliver(answer(1, has_replacement=True), answer(2))
    assert sent(producer) == [b"answer 2"]
    assert "is left out" in caplog.text


def test_sizes_follow_the_largest_topic_and_batches_the_smallest(producer: FakeProducer) -> None:
    output_sender()
    assert (producer.options["message.max.bytes"], producer.options["batch.size"]) == (50_000, 20_000)


TOPIC = "memory.events"
MOST_BYTES = 20_000


@pytest.fixture
def reached() -> list[int]:
    return []


@pytest.fixture
def publisher(reached: list[int], monkeypatch: pytest.MonkeyPatch) -> Publisher:
    kafka = FakeKafka(**{TOPIC: 1})
    monkeypatch.setattr(sender, "TopicReader", partial(TopicReader, new_consumer=kafka.consumer))
    monkeypatch.setattr(sender, "topic_configs", lambda _, topics: {topic: TopicConfig(MOST_BYTES) for topic in topics})
    return Publisher(KafkaOptions("nowhere:1"), TOPIC, reached.append, ())


def test_progress_waits_for_the_first_record_that_is_open(
    publisher: Publisher, producer: FakeProducer, reached: list[int]
) -> None:
    for number in range(4):
        publisher.send(b"acme/ann", b"event %d" % number)
    producer.acknowledge(2)  # another partition was quicker
    producer.acknowledge(1)
    assert reached == []
    producer.acknowledge(0)
    assert reached == [3]
    publisher.flush()
    assert reached == [3, 4]


def test_skipped_record_counts_as_progress(publisher: Publisher, producer: FakeProducer, reached: list[int]) -> None:
    publisher.send(b"acme/ann", b"event 0")
    publisher.skip()
    publisher.send(b"acme/ann", b"event 2")
    assert reached == []
    producer.acknowledge()
    assert reached == [2]
    publisher.skip()
    publisher.flush()
    assert reached == [2, 4]


def test_a_failed_delivery_is_an_error_and_no_progress(
    publisher: Publisher, producer: FakeProducer, reached: list[int]
) -> None:
    producer.fails[b"event 1"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    for number in range(3):
        publisher.send(b"acme/ann", b"event %d" % number)
    with pytest.raises(SinkError, match="run the same command again"):
        publisher.flush()
    assert reached == [1]
    with pytest.raises(SinkError, match="was not delivered"):
        publisher.send(b"acme/ann", b"event 3")


def test_sender_knows_the_record_limit_of_the_topic(publisher: Publisher, producer: FakeProducer) -> None:
    largest = MOST_BYTES - RECORD_OVERHEAD_BYTES - len(b"acme/ann")
    assert publisher.fits(b"acme/ann", b"x" * largest)
    assert not publisher.fits(b"acme/ann", b"x" * (largest + 1))
    assert producer.options["message.max.bytes"] == MOST_BYTES
    assert producer.options["batch.size"] == MOST_BYTES


NOWHERE = KafkaOptions("127.0.0.1:1", {"log_level": "0"})


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka(responses=2, receipts=1)
    monkeypatch.setattr(cluster, "TopicReader", partial(TopicReader, new_consumer=made.consumer))
    return made


def seen(begin: TopicOffsets, end: TopicOffsets) -> list[str]:
    found: list[str] = []
    read_tails(NOWHERE, begin, end, threading.Event(), lambda one: found.append(f"{one.topic()}:{one.offset()}"))
    return sorted(found)


def fill(kafka: FakeKafka, topic: str, count: int, partition: int = 0, begin_ms: int = 0) -> None:
    for number in range(count):
        kafka.append(topic, partition, b"{}", append_ms=begin_ms + number)


def test_records_after_a_position_are_found(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 5)
    fill(kafka, "responses", 3, partition=1)
    fill(kafka, "receipts", 2)
    begin = {"responses": {0: 3, 1: 3}, "receipts": {0: 0}}
    assert seen(begin, {"responses": {0: 5, 1: 3}, "receipts": {0: 2}}) == [
        "receipts:0", "receipts:1", "responses:3", "responses:4",
    ]  # fmt: skip
    assert seen(begin, {"responses": {0: 3, 1: 3}}) == []
    assert kafka.consumers[-1].closed


def test_an_end_behind_the_last_record_is_reached(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 2)
    kafka.topics["responses"][0].end = 5
    assert seen({"responses": {0: 1}}, {"responses": {0: 5}}) == ["responses:1"]


def test_earliest_known_tail_is_taken() -> None:
    ends = {"responses": {0: 50, 1: 60}, "receipts": {0: 70}}
    known = [{"responses": {0: 9, 1: 8}, "receipts": {0: 3}}, {"responses": {0: 7}, "receipts": {0: 4}}]
    assert earliest(known, ends) == {"responses": {0: 7, 1: 0}, "receipts": {0: 3}}
    assert earliest([], ends) == ends  # nothing is to be looked for


def test_time_leads_to_outputs_since_it_with_skew(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 4, begin_ms=SKEW_MS)
    ends = EndOffsetPoller(NOWHERE, {"responses": 2, "receipts": 1})
    assert ends.at(2 * SKEW_MS + 2) == {"responses": {0: 2, 1: 0}, "receipts": {0: 0}}


def test_failed_partition_is_asked_again_for_its_offset(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.kafka.topic_reader.TRY_AGAIN_S", 0)
    fill(kafka, "responses", 4)
    reader = TopicReader(NOWHERE, new_consumer=kafka.consumer)
    failed = [Mock(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE), offset=-1001)]
    answers = [failed, reader.consumer.offsets_for_times([TopicPartition("responses", 0, 2)])]
    monkeypatch.setattr(reader.consumer, "offsets_for_times", lambda *_, **__: answers.pop(0))
    assert reader.offset_at("responses", 0, 2) == 2


@pytest.mark.parametrize(
    ("low", "begin", "at_ms", "lost"),
    [
        (0, 3, 100, False),
        (5, 5, 100, False),
        (5, 3, 100, True),  # what is left is from since then, and so may be what is gone
        (5, 3, 500, False),  # what is left is older, and so is what is gone
        (5, 0, 100, False),  # the partition held nothing of ours
        (8, 3, 100, True),  # nobody knows what was there
    ],
)
def test_lost_tail_is_reported_where_it_matters(kafka: FakeKafka, low: int, begin: int, at_ms: int, lost: bool) -> None:
    fill(kafka, "responses", 8, begin_ms=200)
    log = kafka.topics["responses"][0]
    log.low, log.messages = low, log.messages[low:]
    ends = EndOffsetPoller(NOWHERE, {"responses": 2, "receipts": 1})
    assert ends.first_loss({"responses": {0: begin, 1: 0}}, at_ms) == ("responses:0" if lost else None)


LETTER_HEADERS = [
    ("error.code", b"invalid_event"), ("error.detail", b"no content"), ("error.source", b"memory.events:3:7"),
]  # fmt: skip


def message(headers: Any) -> Message:
    return Message("dead.letters", 0, 5, b"acme/ann", b"{", headers)


def test_own_headers_of_a_record_stay_separate() -> None:
    own = [("error.code", b"of somebody else"), ("error.source", b"elsewhere:0:1")]
    letter = Letter.of(message([*own, *LETTER_HEADERS]))
    assert letter is not None
    assert letter.headers == tuple(own)
    assert letter.error["code"] == "invalid_event"
    assert letter.source == Position("memory.events", 3, 7)
    assert letter.missing == []


@pytest.mark.parametrize(
    "headers",
    [
        [], *([("error.code", b"500"), *source] for source in ([], [("error.source", b"")], [("error.source", b"x")])),
        [LETTER_HEADERS[0], LETTER_HEADERS[2]], [*LETTER_HEADERS, ("error.size", b"9")],
        [*LETTER_HEADERS, ("error.sha256", b"9")],
    ],
)  # fmt: skip
def test_foreign_record_without_all_headers_is_no_letter(headers: list[tuple[str, bytes]]) -> None:
    assert Letter.of(message(headers)) is None


def test_letter_with_fields_names_each_problem() -> None:
    wrong = ("error.fields", b'[["content","is blank"],["id","is there"]]')
    of_before, of_now = Letter.of(message(LETTER_HEADERS)), Letter.of(message([*LETTER_HEADERS, wrong]))
    assert of_before is not None
    assert of_now is not None
    assert (of_before.refusal.code, of_before.refusal.fields) == ("invalid_event", (("", "no content"),))
    assert of_now.refusal.fields == (("content", "is blank"), ("id", "is there"))


KEYS = (b"acme/ann", b"acme/bob")
CALLERS, OTHERS = 4, 3


class Output(NamedTuple):
    """An output of the engine's, of a record at a position; the sender of that gave it a header of the same name."""

    of: bytes
    position: Position

    def key(self) -> bytes:
        return self.of

    def headers(self) -> Any:
        return [(SOURCE_HEADER, b"forged"), (SOURCE_HEADER, str(self.position).encode())]


def at(number: int) -> Position:
    return Position("query.events", 0, number)


class Caller:
    def __init__(self, outcomes: ExpectedOutcomes, number: int) -> None:
        self.key, self.position = KEYS[number % len(KEYS)], at(number)
        self.got: list[object] = []
        self.expected = Expected(self.key, self.got.append)
        self._outcomes = outcomes
        outcomes.expect(self.expected)

    @property
    def output(self) -> Output:
        return Output(self.key, self.position)

    def place(self) -> None:
        self._outcomes.set_position(self.expected, self.position)

    def drop(self) -> None:
        self._outcomes.drop(self.expected)


@given(st.permutations([*range(2 * CALLERS + OTHERS)]))
def test_news_may_come_in_any_order(order: list[int]) -> None:
    outcomes = ExpectedOutcomes()
    callers = [Caller(outcomes, number) for number in range(CALLERS)]
    outputs = [*(caller.output for caller in callers), *(Output(KEYS[0], at(100 + n)) for n in range(OTHERS))]
    for step in order:
        if step < CALLERS:
            callers[step].place()
        else:
            outcomes.receive(outputs[step - CALLERS])
    assert [caller.got for caller in callers] == [[caller.output] for caller in callers]
    for caller in callers:
        caller.drop()
    assert outcomes._by_key == {}


@given(st.permutations([*range(4)]))
def test_cancelled_waiter_leaves_nothing(order: list[int]) -> None:
    outcomes = ExpectedOutcomes()
    gone, there = Caller(outcomes, 0), Caller(outcomes, 2)
    gone.drop()
    steps: list[Callable[[], None]] = [
        gone.place,
        lambda: outcomes.receive(gone.output),
        there.place,
        lambda: outcomes.receive(there.output),
    ]
    for step in order:
        steps[step]()
    assert (gone.got, there.got) == ([], [there.output])
    there.drop()
    assert outcomes._by_key == {}


def test_early_outputs_are_kept_up_to_a_bound() -> None:
    outcomes = ExpectedOutcomes()
    caller = Caller(outcomes, 0)
    for number in range(10 * EARLY_MAX):
        outcomes.receive(Output(caller.key, at(1_000 + number)))
    outcomes.receive(caller.output)
    [of_key] = outcomes._by_key.values()
    assert len(of_key.early) == EARLY_MAX
    caller.place()
    assert caller.got == [caller.output]


@pytest.mark.parametrize("placed", [True, False])
def test_failed_reader_fails_placed_records(placed: bool) -> None:
    outcomes, error = ExpectedOutcomes(), RuntimeError("gone")
    caller = Caller(outcomes, 0)
    if placed:
        caller.place()
    outcomes.fail_all(error)
    assert caller.got == ([error] if placed else [])
    caller.drop()
    assert outcomes._by_key == {}


TOPICS = ("events", "queries")


@pytest.mark.parametrize("topic", TOPICS)
def test_abandoned_calls_keep_the_queue_bounded(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(local_inputs, "QUEUED_MAX", 5)
    put = LocalCalls(*TOPICS)
    put.begin(dict.fromkeys(TOPICS, 0))

    def give_up() -> None:
        with put.put(topic, "acme", b"{}", ()):
            pass

    for _ in range(5):
        give_up()
    with pytest.raises(SourceError, match="5 records of this tenant wait"):
        give_up()
    # An event was given its place, and is applied; a question that nobody waits for is not asked.
    taken = sum(len(put.take()) for _ in range(3))
    assert taken == (5 if topic == "events" else 0)
    give_up()


def test_tenant_with_few_records_is_next_among_many() -> None:
    put = LocalCalls(*TOPICS)
    put.begin(dict.fromkeys(TOPICS, 0))
    with ExitStack() as open_calls:
        noisy = [open_calls.enter_context(put.put("queries", "noisy", b"%d" % n, ())) for n in range(10)]
        assert [record.value for record in put.take()] == [b"0"]
        quiet = open_calls.enter_context(put.put("queries", "quiet", b"q", ()))
        assert [record.value for record in put.take()] == [b"q"]
        assert [record.value for record in put.take()] == [b"1"]
    positions = [call.record.position.offset for call in (noisy[0], quiet, noisy[1])]
    assert positions == [0, 1, 2]  # of the log, in which no record comes before one that was taken


def test_full_line_of_a_tenant_refuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_inputs, "QUEUED_MAX", 2)
    put = LocalCalls(*TOPICS)
    put.begin(dict.fromkeys(TOPICS, 0))
    with ExitStack() as open_calls:
        for _ in range(2):
            open_calls.enter_context(put.put("events", "noisy", b"{}", ()))
        with pytest.raises(SourceError), put.put("events", "noisy", b"{}", ()):
            pass
        open_calls.enter_context(put.put("events", "quiet", b"{}", ()))
