"""Topics of a flow over a Kafka in this process: offsets, quotas, earlier outputs and known topics."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka import admin, sender
from recallflow.connectors.kafka.admin import TopicDescription, describe_required_topics
from recallflow.connectors.kafka.cluster import TopicWatcher
from recallflow.connectors.kafka.messages import Outgoing
from recallflow.connectors.kafka.owned import OwnedSource, lane_at, lane_progress, records_of
from recallflow.connectors.kafka.partition import Lane, LogProgress, PartitionProgress, RoundRobinQueue
from recallflow.connectors.kafka.sender import DeliverySink, EarlierOutputs, OutputSender, ToSend
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader
from recallflow.control import ControlHistory, Quota
from recallflow.errors import SourceError, StateError, StorageError
from recallflow.flows import initial_progress
from recallflow.flows.initial_progress import DeliveredOffsets, answered_requests, find_delivered, since_first_record
from recallflow.flows.kafka import MainFlow
from recallflow.flows.ownership import Ownership
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.reembed import MemoryTopicReplay
from recallflow.flows.runner import RecipeLoop
from recallflow.flows.settings import Settings, TopicNames
from recallflow.flows.topic_checks import TopicRegistry
from recallflow.kafka_options import KafkaOptions
from recallflow.limits import EVENTS_PER_S, QUERIES_PER_S
from recallflow.llm import EmbeddingService
from recallflow.operators.events import Refused, decode
from recallflow.operators.quotas import Rates
from recallflow.operators.step import StateStep
from recallflow.outputs import Ack, Answer, Output, OutputBarrier, ReceiptOutput
from recallflow.owner import state_partition
from recallflow.process import OUTAGE_S
from recallflow.records import MOVED_HEADER
from recallflow.state.description import TOPICS as TOPICS_FILE
from recallflow.state.directory import StateDirectory
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.connectors.fake_consumer import message as made_message
from tests.unit.connectors.fake_kafka import FakeProducer
from tests.unit.operators.harness import CLOCKS, HASHING, MEMORIES, QUERIES, FlatEmbedder

SYNC_S = 1.0
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))
SETTINGS = Settings(partitions=2)
FINGERPRINT = SETTINGS.fingerprint(HASHING)


class HeldDisk(Executor):
    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []
        self.syncs = 0

    def submit(self, work: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future = Future[Any]()
        self.waiting.append((future, lambda: work(*args)))
        return future

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future, work in waiting:
            if future.set_running_or_notify_cancel():
                self.syncs += 1
                future.set_result(work())


class Engine:
    """A member's source, state and sink in one loop, over a Kafka in this process."""

    def __init__(self, path: Path, kafka: FakeKafka, producer: FakeProducer) -> None:
        self.kafka, self.producer, self.disk, self.now_s = kafka, producer, HeldDisk(), 0.0
        self.directory = StateDirectory.open(path, FINGERPRINT)
        self.directory._disk = self.disk
        self.committed: dict[int, tuple[int, int]] = {}  # offsets of memories and of queries, by partition
        self.answered = 0
        to = OutputSender(KafkaOptions("nowhere:1"), {"out": 10**6}, lambda _: None, OUTAGE_S, threading.Event())
        self.sink = DeliverySink(to, EarlierOutputs(), self._commit)
        self.source = OwnedSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            sync_s=SYNC_S,
            tails=lambda: ({}, 0),
            failure=lambda: self.directory.storage_failure,
            new_consumer=kafka.consumer,
            clock_s=lambda: self.now_s,
            settle=self.sink.settle,
        )
        rules = SETTINGS.rules(HASHING, QUERIES, input_ends=False)
        open_state = StateStep.opener(self.directory, HASHING, rules, CLOCKS)
        flow = MainFlow(decode, lambda item: item, HASHING, open_state, self._route, Mock(spec=RecordSpans))
        self._loop = RecipeLoop(flow.recipe(self.source, self.sink))
        for number in range(2):
            queries = lane_at(QUERIES, number, LogProgress(0), 0)
            queries.queue = RoundRobinQueue(())
            self.source.own(number, lane_at(MEMORIES, number, LogProgress(0), 0), queries)
        self.turn()

    def turn(self) -> None:
        self._loop.step()

    def tell(self, number: int, count: int = 1) -> None:
        """Append memories, and apply them."""
        for _ in range(count):
            self._append(MEMORIES, number, {"type": "message", "content": "walnut"})
        self._run_to_ends()

    def ask(self, number: int) -> None:
        """Append a query that changes nothing, and answer it."""
        self._append(QUERIES, number, {"type": "memories.list"})
        answered = self.answered
        self._run_to_ends()
        assert self.answered == answered + 1

    def mark(self) -> None:
        self.now_s += SYNC_S
        self.turn()
        self.turn()

    def close(self) -> None:
        self._loop.close()
        self.disk.release()
        self.directory.close()

    def _append(self, topic: str, number: int, event: dict[str, Any]) -> None:
        event |= {"tenant_id": "acme", "user_id": f"u{number}", "timestamp": 1_000}
        self.kafka.append(topic, number, orjson.dumps(event), b"acme/u%d" % number, append_ms=1_000)

    def _run_to_ends(self) -> None:
        def at_ends() -> bool:
            self.turn()
            lanes = [lane for reader in self.source.readers() for lane in reader.lanes.values()]
            return len(lanes) == 4 and all(
                lane.next_offset == self.kafka.end(lane.topic, lane.number) for lane in lanes
            )

        self.kafka.await_(at_ends)

    def _route(self, outputs: list[tuple[str, Output | OutputBarrier]]) -> Iterator[ToSend | OutputBarrier]:
        for _, output in outputs:
            if isinstance(output, OutputBarrier):
                yield output
            if isinstance(output, Ack):
                self.source.counters.count_finished(output.source.partition(":")[0], len(output.offsets))
            if isinstance(output, Answer | ReceiptOutput):
                self.answered += isinstance(output, Answer)
                yield ToSend("out", 0, Outgoing(str(output.position), output.number, output.key, output.body))

    def _commit(self, marks: list[OutputBarrier]) -> None:
        for mark in marks:
            given = self.source.barrier_progress(mark.partition, mark.number)
            assert given is not None
            self.committed[mark.partition] = given.memory.next_offset, given.queries.next_offset


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()
    monkeypatch.setattr(sender, "Producer", lambda _: made)
    return made


@pytest.fixture
def engine(tmp_path: Path, producer: FakeProducer) -> Iterator[Engine]:
    made = Engine(tmp_path / "state", FakeKafka(**{MEMORIES: 2, QUERIES: 2}), producer)
    made.mark()  # that the partitions are ours
    assert made.committed == {0: (0, 0), 1: (0, 0)}
    yield made
    made.close()


def test_held_sync_answers_queries_and_commits_nothing(engine: Engine) -> None:
    engine.tell(0)
    engine.producer.flush()
    engine.mark()
    for _ in range(3):
        engine.ask(0)
        engine.mark()
    assert engine.committed[0] == (0, 0)
    assert len(engine.disk.waiting) == 1  # one at most for a partition
    engine.disk.release()
    engine.turn()
    assert engine.committed[0] == (1, 0)  # up to the mark before the sync
    engine.producer.flush()
    engine.mark()
    engine.turn()
    assert engine.committed[0] == (1, 3)


def test_partitions_sync_in_parallel(engine: Engine) -> None:
    engine.tell(0)
    engine.tell(1)
    engine.producer.flush()
    engine.mark()
    assert len(engine.disk.waiting) == 2
    engine.disk.waiting[1:], late = [], engine.disk.waiting[1:]
    engine.disk.release()
    engine.turn()
    assert engine.committed == {0: (1, 0), 1: (0, 0)}
    engine.disk.waiting = late


def test_queries_that_change_nothing_sync_nothing(engine: Engine) -> None:
    for _ in range(3):
        engine.ask(0)
        engine.producer.flush()
        engine.mark()
        engine.source.set_progress(0, b"a place", has_open=False)
    assert (engine.committed[0], (engine.disk.syncs, engine.disk.waiting)) == ((0, 3), (0, []))


def test_failed_sync_ends_the_dataflow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.tell(0)
    engine.producer.flush()
    engine.mark()
    partition = engine.directory.partition(0)

    def fail() -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(partition, "sync", fail)
    engine.disk.release()
    with pytest.raises(StorageError):
        engine.turn()
    assert engine.committed[0] == (0, 0)
    monkeypatch.undo()


MEMORY_TOPIC, QUERY_TOPIC = TopicNames().memory, TopicNames().queries
LIMITS = {"acme": 2, "globex": 1}  # the third tenant has none
SAID = {MEMORY_TOPIC: {"type": "message", "content": "x"}, QUERY_TOPIC: {"type": "recall", "query": "x"}}
ALL = 1_000

Log = list[tuple[str, int]]  # tenants, and how long after the record before it each came
Verdicts = dict[tuple[str, int], bool]  # whether a record is refused

LOGS = st.lists(st.tuples(st.sampled_from(("acme", "globex", "initech")), st.integers(0, 400)), max_size=20)
# After so many records another member comes, whose folder lacks the last few that are applied.
MOVES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=4)


class Deployment:
    def __init__(self, memories: Log, queries: Log) -> None:
        self._kafka = FakeKafka(**{MEMORY_TOPIC: 1, QUERY_TOPIC: 1})
        self._place = PartitionProgress(LogProgress(0), LogProgress(0), 1)
        for topic, log in ((MEMORY_TOPIC, memories), (QUERY_TOPIC, queries)):
            at_ms = 10_000
            for tenant, later_ms in log:
                at_ms += later_ms
                value = orjson.dumps({"tenant_id": tenant, "user_id": "ann", **SAID[topic]})
                self._kafka.append(topic, 0, value, f"{tenant}/ann".encode(), append_ms=at_ms)
        self.verdicts: Verdicts = {}

    def work(self, count: int, lacks: int = 0) -> None:
        rates = Rates(decided(), QUERY_TOPIC, (MEMORY_TOPIC, QUERY_TOPIC))
        lanes = self._opened(lacks)
        for lane in lanes:
            for message in self._kafka.topics[lane.topic][0].messages[lane.next_offset :]:
                lane.queue.append(message)
            judged = 0
            while judged < count and (records := records_of(lane, 1)):
                refused = isinstance(rates.judge(decode(records[0])), Refused)
                position = (lane.topic, records[0].position.offset)
                if not records[0].silent:
                    judged += 1
                    assert position not in self.verdicts
                    self.verdicts[position] = refused
                elif lane is lanes[0] and position[1] > self._applied(lacks):
                    assert refused == self.verdicts[position]  # the folder takes it in, as another's did
        memory, queries = map(lane_progress, lanes)
        self._place = PartitionProgress.decode(PartitionProgress(memory, queries, 1).encode())

    def _applied(self, lacks: int) -> int:
        return max(-1, self._place.memory.next_offset - 1 - lacks)

    def _opened(self, lacks: int) -> tuple[Lane, Lane]:
        applied = {f"{MEMORY_TOPIC}:0": self._applied(lacks)}
        partition = SimpleNamespace(path=Path("nowhere"), applied=applied, counts=SimpleNamespace(memories=0, owners=0))
        source = Mock(spec=OwnedSource)
        source.stopping = None
        owned = Ownership(
            KafkaOptions("nowhere:1"),
            (MEMORY_TOPIC, QUERY_TOPIC),
            Mock(partition=lambda _: partition),
            source,
            EarlierOutputs(),
            Mock(),
            ignored,
            lambda _: True,
            initial_progress=Mock(),
            deployment="d",
            needs_rate_history=lambda: True,
        )
        with TopicReader(KafkaOptions("nowhere:1"), new_consumer=self._kafka.consumer) as reader:
            owned._open(reader, 0, self._place, set())
        assert owned._progress[0].generation == self._place.generation + 1
        ((_, memory, queries),) = (call.args for call in source.own.call_args_list)
        return memory, queries


ignored: Callable[[Any], None] = Mock()


def decided() -> ControlHistory:
    history = ControlHistory()
    for tenant, limit in LIMITS.items():
        for name in (EVENTS_PER_S, QUERIES_PER_S):
            history.add(0, Quota(type="quota", tenant_id=tenant, name=name, limit=limit))
    return history


@given(LOGS, LOGS, MOVES)
def test_next_partition_owner_continues_the_count(memories: Log, queries: Log, moves: list[tuple[int, int]]) -> None:
    stayed, moved = (Deployment(memories, queries) for _ in range(2))
    stayed.work(ALL)
    for count, lacks in moves:
        moved.work(count, lacks)
    moved.work(ALL)
    assert moved.verdicts == stayed.verdicts
    assert len(moved.verdicts) == len(memories) + len(queries)


READ = ("memories", "queries", "control")
FLAGS = ("--memory-topic", "--query-topic", "--control-topic")
WRITTEN = ("responses", "control")


def described(**partitions: int) -> dict[str, TopicDescription]:
    counts = dict.fromkeys((*READ, *WRITTEN), 2) | partitions
    return {topic: TopicDescription(f"{topic}-1", count) for topic, count in counts.items()}


def known(path: Path, there: dict[str, TopicDescription], read: tuple[str, ...] = READ) -> TopicRegistry:
    return TopicRegistry.open(path, there, dict(zip(FLAGS, read, strict=True)))


@pytest.mark.parametrize("topic", READ)
def test_an_input_of_another_id_is_another_topic(tmp_path: Path, topic: str) -> None:
    known(tmp_path, described())
    with pytest.raises(SourceError, match=topic):
        known(tmp_path, described() | {topic: TopicDescription("another", 2)})
    known(tmp_path, described())  # what was refused has changed nothing


@pytest.mark.parametrize(
    "read",
    [
        ("other", "queries", "control"), ("memories", "other", "control"), ("memories", "queries", "other"),
        ("queries", "memories", "control"),
    ],
)  # fmt: skip
def test_a_directory_of_other_topics_is_refused_with_both_names(tmp_path: Path, read: tuple[str, ...]) -> None:
    known(tmp_path, described())
    there = described(other=2)
    flag, was, now = next(one for one in zip(FLAGS, READ, read, strict=True) if one[1] != one[2])
    with pytest.raises(SourceError, match=rf"{was}.*{now}.*{flag} {was}"):
        known(tmp_path, there, read)
    known(tmp_path, there)  # what was refused has changed nothing


def test_an_output_topic_made_anew_is_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    known(tmp_path, described())
    for _ in range(2):
        again = known(tmp_path, described() | {"responses": TopicDescription("another", 3)})
        assert again.ids["responses"] == "another"
    assert len(caplog.messages) == 1
    assert "responses was recreated" in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    known(tmp_path, described())
    path = tmp_path / TOPICS_FILE
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"read": {}}))
    with pytest.raises(StateError, match=TOPICS_FILE):
        known(tmp_path, described())


def test_added_partitions_are_reported_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told: list[int] = []
    watch = TopicWatcher(lambda: described(queries=5), described())
    watch.add_listeners(lambda there: told.append(there["queries"].partitions))
    watch.check()
    watch.check()
    assert (told, (watch.added["queries"], watch.added["memories"])) == ([5, 5], (3, 0))
    assert caplog.messages == ["queries has 5 partitions, and had 2"]


def test_failed_description_is_retried() -> None:
    watch = TopicWatcher(Mock(side_effect=AWAY), described())
    watch.check()
    assert watch.failure() is None


def test_failed_description_at_a_start_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Mock(side_effect=[AWAY, described()])
    monkeypatch.setattr(admin, "describe_topics", describe)
    monkeypatch.setattr(admin, "TopicReader", partial(TopicReader, new_consumer=FakeKafka(queries=2).consumer))
    assert describe_required_topics(KafkaOptions("nowhere:1"), ["queries"]) == described()
    assert describe.call_count == 2


def test_a_topic_made_anew_stops_the_flow(tmp_path: Path) -> None:
    watch = TopicWatcher(lambda: described() | {"memories": TopicDescription("another", 2)}, described())
    watch.add_listeners(known(tmp_path, described()).check)
    watch.check()
    assert "memories was deleted and recreated" in str(watch.failure())


PARTITIONS = 4
HOME = state_partition("acme", "ann", PARTITIONS)
ELSEWHERE = (HOME + 1) % PARTITIONS
FOUR = Settings(partitions=PARTITIONS)


class Later(FlatEmbedder):
    service: EmbeddingService = Mock(spec=EmbeddingService)  # nobody asks it here


EMBEDDER = Later()


class LateLog:
    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self.messages: list[Any] = []

    def add(self, partition: int, moved_from: Any = None, **fields: Any) -> Any:
        """A record; `moved_from`: where it was before an engine sent it on."""
        event = {"type": "memory", "tenant_id": "acme", "user_id": "ann", **fields}
        at = len(self.messages)
        came = [(MOVED_HEADER, f"log:{one.partition()}:{one.offset()}".encode()) for one in (moved_from,) if one]
        self.messages.append(made_message("log", partition, at, orjson.dumps(event), b"acme/ann", at + 1, headers=came))
        return self.messages[-1]

    def standing(self) -> tuple[dict[str, str], int]:
        """The texts without a vector, by the ids of their memories; and how many records are still astray."""
        rules = FOUR.rules(EMBEDDER)
        replay = MemoryTopicReplay(self._directory, EMBEDDER, rules, lambda item: item)
        for message in self.messages:
            replay.apply([message])
        found = [*replay.missing()]
        assert len({text.memory_id for text in found}) == len(found)
        return {text.memory_id: text.text for text in found}, len(replay.misrouted)


@pytest.fixture
def late_log(tmp_path: Path) -> Iterator[LateLog]:
    with StateDirectory.open(tmp_path, FOUR.fingerprint(EMBEDDER), FOUR.cache_bytes) as directory:
        yield LateLog(directory)


def test_forwarded_text_counts_at_its_original_position(late_log: LateLog) -> None:
    lost = late_log.add(ELSEWHERE, content="sent astray", id="a")
    late_log.add(HOME, type="memory.update", memory_id="a", content="came too early")
    late_log.add(HOME, lost, content="sent astray", id="a")
    late_log.add(HOME, content="at home", id="b")
    assert late_log.standing() == ({"a": "sent astray", "b": "at home"}, 0)


def test_unforwarded_record_is_counted_as_astray(late_log: LateLog) -> None:
    late_log.add(ELSEWHERE, content="nobody saw this", id="a")
    lost = late_log.add(ELSEWHERE, content="an engine saw that", id="b")
    late_log.add(HOME, lost, content="an engine saw that", id="b")
    assert late_log.standing() == ({"b": "an engine saw that"}, 1)


RECEIPTS, LETTERS, REQUESTS = "receipts:0", "letters:0", "requests:0"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Ten memories in each of two partitions, appended at 100 ms and later."""
    monkeypatch.setattr(initial_progress, "COMPARED", 3)
    made = FakeKafka(memories=2, receipts=1, letters=1, requests=1)
    for number in range(20):
        made.append("memories", number % 2, b"{}", append_ms=100 + number)
    return made


def found(kafka: FakeKafka, *, enriches: bool = False) -> DeliveredOffsets:
    outputs = ("receipts", "letters", *(["requests"] if enriches else []))
    return find_delivered(KafkaOptions("nowhere:1"), "memories", outputs, kafka.consumer)


def test_empty_topics_have_no_sent_outputs(kafka: FakeKafka) -> None:
    assert found(kafka) == DeliveredOffsets({}, {})


def test_last_outputs_alone_are_compared(kafka: FakeKafka) -> None:
    for offset in range(8):
        kafka.append_output("receipts", 0, f"memories:0:{offset}")
    kafka.append_output("letters", 0, "memories:1:0")
    kafka.append_output("letters", 0, "memories:0:9")
    # Of 0:7, 0:8 and 0:9 each is compared, and of partition 1 all that there is.
    assert found(kafka) == DeliveredOffsets({"memories:0": 7, "memories:1": 0}, {RECEIPTS: 7, LETTERS: 0})


@pytest.mark.parametrize(
    ("source", "at_ms"),
    [
        ("memories:0:3", 99),  # sent before the first record was there: of a topic that was deleted
        ("memories:0:10", 500),  # of a record that is not there
        ("memories:7:0", 500),
        ("queries:0:3", 500),
        ("nonsense", 500),
        ("memories:\u0663:1:x", 500),
    ],
)
def test_outputs_of_other_records_say_nothing(kafka: FakeKafka, source: str, at_ms: int) -> None:
    kafka.append_output("receipts", 0, source, at_ms)
    kafka.append("receipts", 0, b"somebody else's", append_ms=500)
    assert found(kafka) == DeliveredOffsets({}, {})


def test_requests_count_where_there_are_any(kafka: FakeKafka) -> None:
    for offset in range(5):
        kafka.append_output("requests", 0, f"memories:0:{offset}")
    assert found(kafka) == DeliveredOffsets({}, {})
    assert found(kafka, enriches=True) == DeliveredOffsets({"memories:0": 2}, {REQUESTS: 2})


def test_tails_begin_with_the_first_record_of_added_partitions(kafka: FakeKafka) -> None:
    """Its records may have been rerouted since, by a member whose offsets Kafka has lost."""
    tails = {"memories": {0: 10}, "receipts": {0: 2}}
    kafka.append_output("receipts", 0, "memories:0:0", 100)
    kafka.append_output("receipts", 0, "memories:0:2", 104)
    with TopicReader(KafkaOptions("nowhere:1"), TAIL, new_consumer=kafka.consumer) as reader:
        assert since_first_record(reader, tails, []) == tails
        assert since_first_record(reader, tails, [("memories", 1)]) == {"memories": {0: 1}, "receipts": {0: 1}}


WRITTEN_TOPICS = TopicNames(enrichment="requests", results="results", dead_letters="letters")


@pytest.fixture
def requests_kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka(requests=2, results=2, letters=1)
    monkeypatch.setattr(
        initial_progress, "TopicReader", lambda *chosen: TopicReader(*chosen, new_consumer=made.consumer)
    )
    for number in range(20):
        made.append("requests", number % 2, b"{}", append_ms=100 + number)
    return made


def found_requests() -> dict[int, LogProgress]:
    return answered_requests(KafkaOptions("nowhere:1"), WRITTEN_TOPICS)


@pytest.mark.usefixtures("requests_kafka")
def test_requests_without_results_are_read_from_the_first() -> None:
    assert found_requests() == {0: LogProgress(0), 1: LogProgress(0)}


def test_requests_with_a_result_or_a_dead_letter_are_answered(requests_kafka: FakeKafka) -> None:
    for offset in (0, 1, 2, 9):
        requests_kafka.append_output("results", offset % 2, f"requests:0:{offset}")
    requests_kafka.append_output("letters", 0, "requests:1:4")
    requests_kafka.append_output("letters", 0, "memories:1:5")
    requests_kafka.append_output("results", 0, "nonsense")
    requests_kafka.append_output("results", 0, "requests:7:1")
    assert found_requests() == {0: LogProgress(10, open=(3, 4, 5, 6, 7, 8)), 1: LogProgress(5, open=(0, 1, 2, 3))}


def test_requests_older_than_the_first_result_left_count_as_answered(requests_kafka: FakeKafka) -> None:
    requests_kafka.topics["results"][0].low = 5
    requests_kafka.append("results", 0, b"{}", at=5, append_ms=110)
    # Those of 100 to 109 ms: five in each partition.
    assert found_requests() == {0: LogProgress(5), 1: LogProgress(5)}


def test_topics_without_requests_have_nothing_answered(requests_kafka: FakeKafka) -> None:
    for log in requests_kafka.topics["requests"]:
        log.low = log.end
    requests_kafka.append_output("results", 0, "requests:0:1")
    assert found_requests() == {}
