"""Offsets are committed behind the disk and the brokers, and the dataflow waits for neither."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import sender
from recallflow.connectors.kafka.delivery import DeliverySink, EarlierOutputs, ToSend
from recallflow.connectors.kafka.messages import Outgoing
from recallflow.connectors.kafka.order import RoundRobinQueue
from recallflow.connectors.kafka.owned import OwnedSource, lane_at
from recallflow.connectors.kafka.place import LogProgress
from recallflow.errors import StorageError
from recallflow.flows.kafka import MainFlow
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.runner import Loop
from recallflow.flows.settings import Settings
from recallflow.operators.events import decode
from recallflow.operators.step import StateStep
from recallflow.outputs import Answer, Done, Marked, Output, Receipted
from recallflow.state.directory import StateDirectory
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.connectors.fake_kafka import FakeProducer
from tests.unit.operators.harness import CLOCKS, HASHING, MEMORIES, QUERIES

MARK_S = 1.0
SETTINGS = Settings(partitions=2)
FINGERPRINT = SETTINGS.fingerprint(HASHING)


class HeldDisk(Executor):
    """A disk that syncs when the test says so."""

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
        self.directory = StateDirectory.open(path, FINGERPRINT, 2**20, disk=self.disk)
        self.committed: dict[int, tuple[int, int]] = {}  # offsets of memories and of queries, by partition
        self.answered = 0
        self.sink = DeliverySink(
            KafkaOptions("nowhere:1"), most_bytes={"out": 10**6}, sent=EarlierOutputs(), marked=self._commit
        )
        self.source = OwnedSource(
            KafkaOptions("nowhere:1"),
            MEMORIES,
            QUERIES,
            mark_s=MARK_S,
            tails=lambda: ({}, 0),
            failure=lambda: self.directory.broken,
            new_consumer=kafka.consumer,
            clock_s=lambda: self.now_s,
            settle=self.sink.settle,
        )
        rules = SETTINGS.rules(HASHING, QUERIES, input_ends=False)
        open_state = StateStep.opener(self.directory, HASHING, rules, CLOCKS)
        flow = MainFlow(decode, lambda item: item, HASHING, open_state, self._route, Mock(spec=RecordSpans))
        self._loop = Loop(flow.recipe(self.source, self.sink))
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
        self.now_s += MARK_S
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

    def _route(self, outputs: list[tuple[str, Output | Marked]]) -> Iterator[ToSend | Marked]:
        for _, output in outputs:
            if isinstance(output, Marked):
                yield output
            if isinstance(output, Done):
                self.source.progress.done(output.source.partition(":")[0], len(output.offsets))
            if isinstance(output, Answer | Receipted):
                self.answered += isinstance(output, Answer)
                yield ToSend("out", 0, Outgoing(str(output.position), output.number, output.key, output.body))

    def _commit(self, marks: list[Marked]) -> None:
        for mark in marks:
            given = self.source.given(mark.partition, mark.number)
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
        engine.source.keep(0, b"a place", open_left=False)
    assert engine.committed[0] == (0, 3)
    assert (engine.disk.syncs, engine.disk.waiting) == (0, [])


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
